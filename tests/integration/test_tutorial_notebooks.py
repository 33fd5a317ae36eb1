"""The tutorials' notebooks, from the first cell to the last, by a real kernel; and the scripts of the newest tutorials.

How long each takes is in ``tutorials/README.md``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import COMMAND
from tests.integration.tutorial_steps import REPOSITORY, TUTORIALS
from tests.notebooks import Kernel
from tests.waiting import patient

PICTURES = {
    "characterization": "needs.png",
    "mlperf": "latency.png",
    "mnist": "digits.png",
    "own-agent": "room.png",
    "scheduler": "scenarios.png",
    "secure-inference": "answers.png",
    "serverless": "instances.png",
    "tabular": "answers.png",
    "text": "answers.png",
    "time-series": "forecast.png",
}
"""What each notebook ends with. That of ``mpi`` is run in ``test_tutorials_mpi.py``."""

NEEDS = {"mnist": "tensorflow", "mlperf": "mlperf_loadgen"}
LONGEST_CELL_S = 900
UP = {"own-agent": ["up", "--no-tracker"], "text": ["up"]}
"""The scripts that need a server, and how it is started."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("sklearn", "mlflow", "matplotlib", "ipykernel")),
        reason="a package of the tutorials is not installed",
    ),
]


def install_heater(folder: Path, site: Path) -> None:
    """Install the package of the tutorial ``own-agent``, as ``pip install ./heater`` does."""
    info = site / "heater-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(folder / "heater" / "heater.py", site)
    project = (folder / "heater" / "pyproject.toml").read_text(encoding="utf-8")
    entry = re.findall(r'^set_heater = "(.*)"$', project, re.MULTILINE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: heater\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[scanflow.primitives]\nset_heater = {entry[0]}\n")


@pytest.fixture
def folder(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """Return a copy of a tutorial, without its picture, in an environment as its reader has one."""
    name: str = request.node.callspec.params["name"]
    if find_spec(NEEDS.get(name, "json")) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    copy = shutil.copytree(TUTORIALS / name, tmp_path / name, ignore=shutil.ignore_patterns("*.png", "__pycache__"))
    site, programs = tmp_path / "site", tmp_path / "bin"
    if name == "own-agent":
        install_heater(copy, site)
    programs.mkdir()
    (programs / "scanflow").write_text(f"#!{sys.executable}\nfrom scanflow_client.cli.main import main\nmain()\n")
    (programs / "scanflow").chmod(0o755)
    folders = [str(REPOSITORY), *(str(REPOSITORY / part) for part in ("client", "server", "agents")), str(site)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    yield copy
    if (home / "server").exists():
        run_command(["down"], copy)


def run_command(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=patient(240), check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def read_cells(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_notebook_runs_from_its_first_cell_to_its_picture(folder: Path, name: str) -> None:
    kernel = Kernel(folder)
    try:
        for cell in read_cells(folder / f"{name}.ipynb"):
            outputs, reply = kernel.run_any(cell, timeout_s=patient(LONGEST_CELL_S))
            assert reply["status"] == "ok", f"{cell}\n" + "\n".join(reply["traceback"])
            printed = "".join(output.content["text"] for output in outputs if output.kind == "stream")
            assert "Error:" not in printed, f"{cell}\n{printed}"
    finally:
        kernel.close()
    picture = (folder / PICTURES[name]).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 120_000


@pytest.mark.parametrize("name", ["own-agent", "text", "time-series"])
def test_a_script_runs_to_its_picture(folder: Path, name: str) -> None:
    environment = dict(os.environ)
    if name in UP:
        output = run_command(UP[name], folder)
        environment["SCANFLOW_URL"] = next(word for word in output.split() if word.startswith("http"))
    done = subprocess.run(
        [sys.executable, "run.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patient(LONGEST_CELL_S),
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert (folder / PICTURES[name]).read_bytes().startswith(b"\x89PNG")


def test_every_notebook_is_committed_without_outputs() -> None:
    for notebook in TUTORIALS.glob("*/*.ipynb"):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs"), notebook.name
    assert {file.stem for file in TUTORIALS.glob("*/*.ipynb")} == {*PICTURES, "mpi"}


@pytest.mark.parametrize("name", ["own-agent"])
def test_the_unit_tests_of_a_tutorial_pass(folder: Path, name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_room.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=patient(240), check=False)
    assert done.returncode == 0, done.stdout
