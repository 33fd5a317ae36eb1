"""Files that are written aside and then take a file's place: where there is no room, nothing is left of them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from scanflow.backends.pickles import write_signed
from scanflow.drift.detectors import detector_storage
from scanflow.errors import UnavailableError
from scanflow.http.home_token import keep_home_token
from scanflow.outputs import write_output
from scanflow.processes.background_jobs import write_whole
from scanflow.processes.shared_files import write_atomically
from scanflow.processes.shim import write_record

ROOM = 65_536
LARGE = "x" * (4 * ROOM)
WRITERS: dict[str, Callable[[Path], object]] = {
    "output": lambda folder: write_output(folder, "result", LARGE),
    "record": lambda folder: write_atomically(folder / "run.json", LARGE.encode()),
    "pickle": lambda folder: write_signed(folder / "value", LARGE.encode(), b"key"),
    "job": lambda folder: write_whole(folder / "job", LARGE),
    "shim": lambda folder: write_record(str(folder / "began"), {"reason": LARGE}),
    "token": lambda folder: keep_home_token(folder, LARGE),
    "detector": lambda folder: detector_storage.write(folder, "table", {"columns": LARGE}, {"mean": np.zeros(1)}),
}


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may be larger than the room that there is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("kind", WRITERS)
def test_what_does_not_fit_takes_no_space_and_is_named(tmp_path: Path, kind: str) -> None:
    with pytest.raises((OSError, UnavailableError)) as refused:
        WRITERS[kind](tmp_path)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file() and file.name != detector_storage.ARRAYS] == []
    assert kind == "shim" or str(tmp_path) in str(refused.value)
