"""``profile="auto"``: what bounds real MPI programs is found by a short run of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.local.mpi.mpirun import get_launcher
from scanflow.backends.local.mpi.profiling import profile
from scanflow.backends.local.mpi.profiling.mpi_calls import CallCounters
from scanflow.backends.local.mpi.profiling.perf import build_record_command
from scanflow.backends.local.mpi.profiling.profile import ProfileSamples, compute_profile, observe
from scanflow.errors import StepFailedError
from scanflow.placement.mpi.local_plan import plan_local_job
from scanflow.placement.sysfs import read_topology
from tests.waiting import patient

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(shutil.which("mpicc.openmpi") is None, reason="Open MPI is not installed"),
]

needs_hpcc = pytest.mark.skipif(shutil.which("hpcc") is None, reason="hpcc is not installed")
KERNELS = Path(__file__).parents[2] / "tutorials" / "mpi" / "kernels.c"
CG = Path(__file__).parent / "mpi_programs" / "cg.c"
LAST_S = 20.0  # of the last section: latencies take minutes to measure where cores are shared
LIMIT_S = patient(240)
HPCC_INPUT = """\
one
two
three
6 output
1 problem sizes
{size}
1 blocks
80
0 mapping
1 grids
1
{tasks}
16.0
1
2
1
4
1
2
1
1
1
1
1
0
2
64
0
0
1
8
separator
0
0
0
0
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mpi")
    subprocess.run(["mpicc.openmpi", "-O2", "-o", "cg", str(CG)], cwd=folder, check=True, timeout=patient(120))
    (folder / "fails.sh").write_text("#!/bin/sh\necho 'no input.dat' >&2\nexit 3\n")
    (folder / "fails.sh").chmod(0o755)
    return folder


def job(programs: Path, text: str, **fields: Any) -> sf.Application:
    (programs / "job.yaml").write_text(text)
    options: dict[str, Any] = {"name": "job", "mainfile": "job.yaml", "n_tasks": 2, "oversubscribe": True, **fields}
    workflow = sf.Workflow(name="bench", type="mpi", nodes=[sf.MPIWorkload(profile="auto", **options)])
    return sf.Application(name="hpc", app_dir=programs, workflows=[workflow])


def test_a_solver_that_streams_its_matrix_is_bound_by_memory_and_cut(home: Path, programs: Path) -> None:
    client = sf.Client(progress=False)
    client.run(job(programs, "program: cg\nargs: [64, 4]\n", policy="granularity"))
    output = client.output("job")
    assert output["profile"] == "memory", output
    assert "GB per CPU second" in output["profile_reason"]
    shown = client.logs("job")
    assert f"profile='auto': memory-bound: {output['profile_reason']}" in shown
    assert "2 tasks in 2 workers on 1 node: " in shown


def test_a_program_that_fails_while_it_is_measured_says_so(home: Path, programs: Path) -> None:
    with pytest.raises(
        StepFailedError, match=r"(?s)While it was profiled: Rank \d of 'job' exited with code 3.*no input"
    ):
        sf.Client(progress=False).run(job(programs, "program: fails.sh\n"))


def test_without_compiler_and_perf_the_job_is_not_cut_and_says_what_to_install(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "compile_library", lambda flavor, folder: None)
    monkeypatch.setattr(profile, "build_record_command", lambda folder: None)
    workload = sf.MPIWorkload(name="job", mainfile="cg", n_tasks=2, oversubscribe=True, profile="auto")
    program = programs / "cg"
    measurement = profile.measure(
        workload,
        plan_local_job(workload),
        [str(program)],
        launcher=get_launcher(None, program, name="job"),
        topology=read_topology(),
        folder=tmp_path,
    )
    assert measurement.profile is None
    assert "apt-get install libopenmpi-dev gcc" in measurement.reason


@pytest.mark.skipif(build_record_command(Path()) is None, reason="perf cannot record here: apt-get install linux-perf")
@pytest.mark.parametrize(("kernel", "expected"), [("ring", "network"), ("dgemm", "cpu")])
def test_without_a_compiler_perf_tells_what_a_program_is_bound_by(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, expected: str
) -> None:
    monkeypatch.setattr(profile, "compile_library", lambda flavor, folder: None)
    program = programs / "kernels"
    subprocess.run(["mpicc.openmpi", "-O2", "-o", program, KERNELS, "-lm"], check=True, timeout=patient(120))
    workload = sf.MPIWorkload(name="job", mainfile="kernels", n_tasks=2, oversubscribe=True, profile="auto")
    measurement = profile.measure(
        workload,
        plan_local_job(workload),
        [str(program), "--kernel", kernel, "--rounds", "100000000"],
        launcher=get_launcher(None, program, name="job"),
        topology=read_topology(),
        folder=tmp_path / "ranks",
    )
    assert measurement.profile == expected, measurement
    assert "by perf" in measurement.reason


def shorter_hpcc(folder: Path, *defined: str) -> str:
    """Return a library to preload, with which HPCC leaves out what the test does not look at."""
    library, program = folder / "shorter_hpcc.so", CG.with_name("shorter_hpcc.c")
    command = ["gcc", "-shared", "-fPIC", *(f"-D{macro}" for macro in defined), "-o", str(library), str(program)]
    subprocess.run(command, check=True, timeout=patient(120))
    return str(library)


def hpcc(folder: Path, *, size: int, tasks: int, last: str, preload: str = "") -> Mapping[str, ProfileSamples]:
    """Run HPCC as far as its section ``last``, and return what was seen of each; it cannot run one of them alone."""
    (folder / "hpccinf.txt").write_text(HPCC_INPUT.format(size=size, tasks=tasks))
    workload = sf.MPIWorkload(name="hpcc", mainfile="/usr/bin/hpcc", n_tasks=tasks, oversubscribe=True)
    topology, marks, over = read_topology(), dict[str, float](), threading.Event()

    def follow() -> None:
        limit = time.monotonic() + LIMIT_S
        while not over.is_set() and time.monotonic() < limit:
            text = (folder / "hpccoutf.txt").read_text() if (folder / "hpccoutf.txt").exists() else ""
            for mark in re.findall(r"(?:Begin|End) of \w+", text):
                marks.setdefault(mark, time.monotonic())
            if f"End of {last}" in marks or time.monotonic() > marks.get(f"Begin of {last}", limit) + LAST_S:
                break
            over.wait(0.005)
        marks.setdefault(f"End of {last}", time.monotonic())
        over.set()

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        seen = observe(
            workload,
            replace(plan_local_job(workload, topology), oversubscribed=True),  # others use this machine too
            ["sh", "-c", f'LD_PRELOAD="$LD_PRELOAD:{preload}" exec /usr/bin/hpcc'],
            launcher=get_launcher(None, Path("/usr/bin/hpcc"), name="hpcc"),
            topology=topology,
            folder=folder / "profile",
            enough=over.is_set,
        )
    finally:
        over.set()
        follower.join()
    assert seen is not None
    assert f"Begin of {last}" in marks
    sections = [mark.removeprefix("End of ") for mark in marks if mark.startswith("End")]
    return {name: part(seen, marks[f"Begin of {name}"], marks[f"End of {name}"]) for name in sections}


def part(seen: ProfileSamples, began: float, ended: float) -> ProfileSamples:
    """Return what was seen between two moments."""
    calls: list[list[CallCounters]] = []
    for moments in seen.calls:
        first = max((place for place, moment in enumerate(moments) if moment.at_s <= began), default=0)
        last = min((place for place, moment in enumerate(moments) if moment.at_s >= ended), default=len(moments) - 1)
        outside = 0.0  # a call in which the rank waited for this section to begin is counted whole when it returns
        for before, after in pairwise(moments[first : last + 1]):
            step = after.subtract(before)
            outside = max(0.0, outside + step.cpu_s - step.mpi_cpu_s)
        whole = moments[last].subtract(moments[first])
        inside = moments[first].mpi_cpu_s + max(0.0, whole.cpu_s - outside)
        calls.append([moments[first], moments[last]._replace(mpi_cpu_s=inside)])
    pages = [page for page in seen.pages if began + page.window_s <= page.at_s <= ended]
    return seen._replace(calls=calls, pages=pages, seconds=ended - began)


@needs_hpcc
def test_ep_stream_of_hpcc_is_bound_by_memory_and_ptrans_by_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # EP-STREAM goes ten times through its vectors, which are of 85 MB each then: long enough to be seen.
    seen = hpcc(
        tmp_path, size=8000, tasks=2, last="StarSTREAM", preload=shorter_hpcc(tmp_path, "REFUSED=9", "WITHOUT_DGEMM")
    )
    profiles = {name: compute_profile(seen[name]) for name in ("PTRANS", "StarSTREAM")}
    assert {name: profile_.profile for name, profile_ in profiles.items()} == {
        "PTRANS": "network",
        "StarSTREAM": "memory",
    }, profiles


@needs_hpcc
@pytest.mark.parametrize(
    ("size", "last", "expected"),
    [
        (1000, "LatencyBandwidth", {"MPIFFT": "network", "LatencyBandwidth": "network"}),
        (3000, "StarDGEMM", {"StarDGEMM": "cpu"}),  # its matrices of 13 MB are in a rank's share of the caches
    ],
)
def test_what_bounds_the_sections_of_hpcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, last: str, expected: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where HPCC reads its input, and writes what it found
    # Its other sections end too soon to be seen alone.
    seen = hpcc(tmp_path, size=size, tasks=2, last=last, preload=shorter_hpcc(tmp_path, "REFUSED=9"))
    profiles = {name: compute_profile(seen[name]) for name in expected}
    assert {name: profile_.profile for name, profile_ in profiles.items()} == expected, {
        name: str(profile_) for name, profile_ in profiles.items()
    }


@needs_hpcc
def test_random_access_of_hpcc_is_bound_by_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # A table of 64 MB is in no rank's share of the caches, and its updates take seconds. MPIRandomAccess comes first,
    # takes a minute with it, and is left out.
    seen = hpcc(tmp_path, size=6000, tasks=2, last="StarRandomAccess", preload=shorter_hpcc(tmp_path, "REFUSED=1"))
    profile = compute_profile(seen["StarRandomAccess"])
    assert profile.profile == "memory", profile
