"""A cached step gives what its call gives, also after anything that it depends on has changed, one thing a step."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from tests.conftest import COMMAND, COMMAND_TIMEOUT_S
from tests.laws.operations import is_same

STEPS = """
import os, pathlib
import scanflow as sf


@sf.step(cache=True)
def describe(x):
    return type(x).__name__, x


@sf.step(cache=True)
def use_file(path: pathlib.Path):
    return path.read_text()


@sf.step(cache=True)
def use_folder(path: pathlib.Path):
    return sorted(file.name for file in path.iterdir())


@sf.step(cache=True)
def use_variable():
    return os.environ["LAW"]
"""
STEPS_WITH_MODULES = """
import scanflow as sf
import helper


@sf.step(cache=True)
def use_module():
    return helper.compute()
"""
APP = """
import pathlib
import scanflow as sf
from steps import describe, use_file, use_folder, use_variable
from steps_with_modules import use_module

here = pathlib.Path(__file__).parent
version = int((here / "version").read_text())


def make(value):
    def give():
        return value
    return give


nodes = [
    use_module.bind(),
    use_file.bind(here / "data.txt"),
    use_folder.bind(here / "folder"),
    use_variable.options(env={"LAW": str(version)}).bind(),
    sf.step(make(version)).options(name="use-closure", cache=True).bind(),
]
for number, pair in enumerate(VALUES):
    source = sf.step(make(pair[version])).options(name=f"source{number}").bind()
    nodes += [source, describe.options(name=f"describe{number}").bind(source)]
app = sf.Application(name="cached", workflows=[sf.Workflow(name="w", nodes=nodes)])
"""
"""Steps are in files of their own, as a change of a file, or of a module that it imports, is one of all its steps."""

VALUES: list[tuple[Any, Any]] = [
    (1, True),
    (1, 1.0),
    ([1], (1,)),
    ("1", b"1"),
    (1.5, b"1.5"),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (0.0, -0.0),
    ([[]], [()]),
]


def write_version(folder: Path, version: int) -> None:
    (folder / "version").write_text(str(version))
    (folder / "helper.py").write_text(f"from deeper import K\n\ndef compute():\n    return K + {version}\n")
    (folder / "deeper.py").write_text("K = 10\n")
    (folder / "data.txt").write_text(f"data {version}")
    (folder / "folder").mkdir(exist_ok=True)
    (folder / "folder" / f"file{version}").touch()


def run(folder: Path) -> Callable[[str], Any]:
    done = subprocess.run(
        [*COMMAND, "run", "app.py"], cwd=folder, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    client = sf.Client(progress=False)
    name = client.show().name
    return lambda step: client.output(step, run=name)


@pytest.mark.processes
def test_a_cached_step_is_run_again_when_one_thing_that_it_depends_on_has_changed(home: Path, tmp_path: Path) -> None:
    for name, text in {"steps": STEPS, "steps_with_modules": STEPS_WITH_MODULES}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "app.py").write_text(APP.replace("VALUES", repr(VALUES)), encoding="utf-8")
    for version in (0, 1):
        write_version(tmp_path, version)
        read = run(tmp_path)
        assert read("use-module") == 10 + version
        assert read("use-file") == f"data {version}"
        assert read("use-folder") == [f"file{number}" for number in range(version + 1)]
        assert read("use-variable") == str(version)
        assert read("use-closure") == version
        for number, pair in enumerate(VALUES):
            value = pair[version]
            assert is_same(read(f"describe{number}"), (type(value).__name__, value)), (number, value)
    (tmp_path / "deeper.py").write_text("K = 20\n")
    assert run(tmp_path)("use-module") == 21, "a module that a module imports counts, too"
