"""Priority on the CPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scanflow.processes.cpu_priority import yield_cpu
from tests.waiting import patient

pytestmark = pytest.mark.processes

LINUX = sys.platform == "linux"
SLICE = """
import os, threading
from pathlib import Path
from scanflow.processes.cpu_priority import take_short_slices

def slice_of(task):
    for line in Path(f"/proc/self/task/{task}/sched").read_text().splitlines():
        if line.startswith("se.slice"):
            return int(line.rpartition(":")[2])

before, done = threading.Event(), threading.Event()
early = threading.Thread(target=done.wait)
early.start()
assert take_short_slices(inherited=INHERITED)
late = threading.Thread(target=done.wait)
late.start()
print([slice_of(task) for task in (os.getpid(), early.native_id, late.native_id)])
done.set()
"""


@pytest.mark.skipif(not LINUX, reason="there is nothing to be taken")
@pytest.mark.parametrize("inherited", [True, False])
def test_every_thread_there_is_takes_short_slices(inherited: bool) -> None:
    code = SLICE.replace("INHERITED", str(inherited))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=patient(120)
    )
    main, early, late = eval(done.stdout, {}, {})
    if main is None:
        pytest.skip("this kernel does not tell its slices")
    assert (main, early) == (100_000, 100_000)
    assert (late == 100_000) is inherited


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no groups by session")
def test_a_session_stays_behind_until_it_does_no_more() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        group = Path(f"/proc/{process.pid}/autogroup")
        assert yield_cpu(process.pid, True)
        assert group.read_text().rstrip().endswith("nice 10")
        while not yield_cpu(process.pid, False):  # the kernel takes one change in a tenth of a second
            pass
        assert group.read_text().rstrip().endswith("nice 0")
        process.kill()
    assert not yield_cpu(process.pid, True)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no groups by session")
def test_a_session_that_another_process_leads_is_left_as_it_is() -> None:
    before = Path("/proc/self/autogroup").read_text()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not yield_cpu(process.pid, True)
        assert Path(f"/proc/{process.pid}/autogroup").read_text() == before
        process.kill()
