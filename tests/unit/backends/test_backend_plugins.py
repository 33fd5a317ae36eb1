"""A backend of another package: nothing of scanflow changes for it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import scanflow as sf
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import MissingExtraError, NotFoundError
from scanflow.installation import explain_install
from scanflow.settings import Settings
from scanflow_client.cli.command_tree import app as commands
from tests.conftest import Cli

TOY = """
from scanflow.backends.memory import Memory


class Toy(Memory):
    def __init__(self, settings, models):
        super().__init__(settings)
        self.home = settings.home
"""


@sf.step
def hello(name: str = "world") -> str:
    return f"hello, {name}"


app = sf.Application(name="shop", workflows=[sf.Workflow(name="greet", nodes=[hello.bind()])])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "toy_backend-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[scanflow.backends]\ntoy = toy_backend:Toy\n")
    (tmp_path / "toy_backend.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_a_workflow_runs_on_the_backend_of_another_package(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANFLOW_BACKEND", "toy")
    client = sf.Client(progress=False)
    assert client.run(app, parameters={"name": "toy"}).state == "succeeded"
    assert client.output("hello") == "hello, toy"
    assert not (home / "journal.db").exists()


@pytest.mark.processes
@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("option", "variable", "own", "used"),
    [
        ("toy", "local", "local", "toy"),
        (None, "toy", "local", "toy"),
        (None, "local", "toy", "local"),
        (None, "", "toy", "toy"),
        (None, "", None, "local"),
    ],
)
def test_a_command_then_a_variable_then_the_application_names_the_backend(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str | None,
    variable: str,
    own: str | None,
    used: str,
) -> None:
    monkeypatch.setenv("SCANFLOW_BACKEND", variable)  # restored afterwards, also what the option sets
    (tmp_path / "app.py").write_text(
        "import scanflow as sf\n\n@sf.step\ndef hello():\n    return 1\n\n"
        f"app = sf.Application(name='shop', backend={own!r}, workflows=[sf.Workflow(name='w', nodes=[hello.bind()])])\n"
    )
    chosen = [] if option is None else ["--backend", option]
    done = CliRunner().invoke(commands, [*chosen, "run", str(tmp_path / "app.py"), "--json"])
    assert (done.exit_code, json.loads(done.output)["state"]) == (0, "succeeded"), done.output
    assert (home / "journal.db").exists() == (used == "local")


@pytest.mark.usefixtures("package")
def test_an_unknown_backend_is_refused_with_those_that_are_installed(home: Path) -> None:
    with pytest.raises(
        NotFoundError, match=r"no backend 'tou'. Did you mean 'toy'\? Installed: kubernetes, local, memory, toy"
    ):
        EmbeddedDeployer(Settings(home=home, backend="tou"))


def test_a_cluster_without_what_speaks_to_it_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightkube", None)
    monkeypatch.delitem(sys.modules, "scanflow.backends.kubernetes.cluster", raising=False)
    deployer = EmbeddedDeployer(Settings(home=home, backend="kubernetes"))
    with pytest.raises(MissingExtraError, match=re.escape(explain_install("kubernetes"))):
        deployer.backend.doctor()


def test_the_doctor_looks_at_the_backend_that_is_named(quick_cli: Cli) -> None:
    (only,) = json.loads(quick_cli("doctor", "--backend", "memory", "--json").stdout)
    assert only["what"] == "Python"
