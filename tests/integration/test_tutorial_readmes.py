"""Tutorials whose README is a list of commands, run word for word as a reader runs them, in the tutorial's folder."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import COMMAND
from tests.waiting import patient, wait_until

TUTORIALS = Path(__file__).parents[2] / "tutorials"

pytestmark = pytest.mark.slow


def read_commands(name: str) -> list[str]:
    text = (TUTORIALS / name / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [command for block in blocks for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE)]


def run_command(command: str, folder: Path) -> str:
    """Run a command in a folder, and return what it printed; ``scanflow`` and ``python`` are those of this test."""
    words = shlex.split(command)
    programs = {"scanflow": [*COMMAND], "python": [sys.executable]}
    own = [sys.executable if word == "python" else word for word in words[1:]]
    done = subprocess.run(
        [*programs[words[0]], *own], cwd=folder, capture_output=True, text=True, timeout=patient(240), check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path, home: Path, request: pytest.FixtureRequest) -> Path:
    name: str = request.node.name.removeprefix("test_the_readme_of_").replace("_", "-")
    shutil.copytree(TUTORIALS / name, tmp_path / name)
    return tmp_path / name


@pytest.mark.skipif(find_spec("mlperf_loadgen") is None, reason="LoadGen is not installed")
def test_the_readme_of_mlperf(folder: Path) -> None:
    printed = {command: run_command(command, folder) for command in read_commands("mlperf")}
    loads = {command: text for command, text in printed.items() if "--mlperf" in command}
    assert len(loads) == 5
    for command, text in loads.items():
        assert "none failed." in text, text
        assert re.search(r"valid: MLPerf (single-stream|multi-stream|server|offline)", text), text
        assert ("gRPC connections" in text) == ("--grpc" in command)
    assert "other configurations measured" in "".join(printed.values())


def test_the_readme_of_serverless(folder: Path) -> None:
    printed = []
    for command in read_commands("serverless"):
        if command == "scanflow services":
            wait_until(lambda: re.search(r"idle .* 0/0", run_command("scanflow services", folder)), "it sleeps")
        printed.append(run_command(command, folder))
    text = "\n".join(printed)
    assert re.search(r"^1 × 1 core: [\d.]+ pictures/s, 1.00 times one, 0 failed$", text, re.MULTILINE)
    assert len(re.findall(r"over 4 REST connections: none failed", text)) == 2


def test_the_readme_of_characterization(folder: Path) -> None:
    before = (folder / "app.py").read_text(encoding="utf-8")
    printed = [run_command(command, folder) for command in read_commands("characterization")]
    for text, step in zip(printed, ("compute", "sort"), strict=True):
        assert "Request: resources=sf.Resources(cpu=" in text
        assert re.search(rf'^\+{step} = .*resources=sf.Resources\(cpu=.*memory="\d+Mi"', text, re.MULTILINE), text
    assert (folder / "app.py").read_text(encoding="utf-8") == before


def test_the_readme_of_secure_inference(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []
    for command in read_commands("secure-inference"):
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            monkeypatch.setenv(name, value.replace("~/.scanflow", str(home)))
        elif command == "sleep 3":
            wait_until(lambda: "is revoked" in run_command("python ask.py ada", folder), "the revocation holds")
        else:
            text = run_command(command, folder)
            if "ask.py" in command:
                asked.append(dict(re.findall(r"^\w+ over (HTTP|gRPC): (.*)$", text, re.MULTILINE)))
            assert "scanflow load" not in command or "none failed" in text, text
    ada, eve, mallory, revoked, renewed = asked
    assert ada == renewed == {"HTTP": "200", "gRPC": "OK"}
    for answers, reason in ((eve, "CN=eve is not one of them"), (mallory, "has shown none"), (revoked, "is revoked")):
        assert answers["HTTP"].startswith("403 ")
        assert reason in answers["HTTP"]
    assert [reply["gRPC"] for reply in (eve, mallory, revoked)] == [
        "PERMISSION_DENIED",
        "UNAVAILABLE",
        "PERMISSION_DENIED",
    ]
