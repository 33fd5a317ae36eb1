"""A home on a disk that is full, at each moment: what is said, what is believed, and that work goes on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import patient

MOUNT = 'mount -t tmpfs -o size=8m tmpfs "$1" && shift && exec "$@"'

PROGRAM = """
import os, sys
from pathlib import Path

import scanflow as sf
from scanflow.errors import ScanflowError

place, levels = Path(sys.argv[1]), [int(text) for text in sys.argv[2:]]
home, filler = place / "home", place / "filler"
make, count = "def make():\\n    return 'x' * 60_000\\n", "def count(text):\\n    return len(text)\\n"
(place / "steps.py").write_text(make + count)
make = sf.Executor(name="make", function="steps.py:make", cache=True)
count = sf.Executor(name="count", function="steps.py:count", parameters={"text": make.output})
app = sf.Application(name="shop", app_dir=place, workflows=[sf.Workflow(name="w", nodes=[make, count])])


def fill(left_bytes):
    disk = os.statvfs(place)
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(4096, disk.f_bavail * disk.f_frsize - left_bytes))


client = sf.Client(home=home, progress=False)
client.run(app)
for kib in levels:
    known = {run.name for run in client.runs()}
    fill(1024 * kib)
    try:
        client.run(app, refresh_cache=True)
        print(kib, "succeeded")
    except ScanflowError as error:
        assert "no space left on" in str(error).lower() or "No space left" in str(error), error
        print(kib, "refused")
    filler.unlink()
    for run in client.runs():
        if run.name in known:
            continue
        record = client.show(run.name)
        if record.state != "succeeded":
            record = client.resume(run.name)
        assert record.state == "succeeded"
        assert client.output("count", run=run.name) == 60_000
"""


def is_mountable(folder: Path) -> bool:
    """Return whether this user may mount a small disk for a process of its own."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-rm", "sh", "-c", MOUNT, "sh", folder, "true"], capture_output=True).returncode == 0
    )


def test_on_a_full_disk_nothing_half_written_is_believed_and_work_goes_on_when_there_is_space(tmp_path: Path) -> None:
    (disk := tmp_path / "disk").mkdir()
    if not is_mountable(disk):
        pytest.skip("this user may not mount a small disk")
    (program := tmp_path / "program.py").write_text(PROGRAM)
    levels = ["0", "56", "72", "112", "160", "240", "300", "2000"]
    command = ["unshare", "-rm", "sh", "-c", MOUNT, "sh", str(disk), sys.executable, str(program), str(disk), *levels]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(120), check=False)
    assert done.returncode == 0, done.stderr
    outcomes = [line.split()[1] for line in done.stdout.splitlines()]
    assert (outcomes[0], outcomes[-1]) == ("refused", "succeeded")
