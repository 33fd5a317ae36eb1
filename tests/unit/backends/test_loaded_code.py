"""Code that this process loaded before its file was changed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from scanflow.backends.local.batch.step_keys import find_stale_file
from scanflow.modules import load_module


def test_a_file_is_stale_once_it_differs_from_what_was_loaded(tmp_path: Path) -> None:
    file = tmp_path / "stale_app.py"
    file.write_text("x = 1")
    assert find_stale_file([str(file)]) is None, "it is not loaded"
    load_module(file)
    assert find_stale_file([str(file)]) is None
    file.write_text("x = 22")
    assert find_stale_file([str(file)]) == str(file)


def test_what_python_itself_imported_is_stale_if_written_after_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, file = ModuleType("stale_helper"), tmp_path / "stale_helper.py"
    file.write_text("")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "stale_helper", module)
    assert find_stale_file([str(file)]) == str(file)
    now = time.time()
    monkeypatch.setattr("scanflow.backends.local.batch.step_keys.compute_start_time", lambda: now + 60)
    os.utime(file, (now, now))
    assert find_stale_file([str(file)]) is None
