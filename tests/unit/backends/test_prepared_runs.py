"""A run is checked once, by the process that enters and drives it; another process checks what was stored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.backends.definition import SavedDefinition
from scanflow.backends.local.batch.backend import LocalBackend
from scanflow.backends.local.batch.step_programs import StepPrograms
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import RunRecord
from scanflow.deployer import RunRequest
from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.errors import NotFoundError
from scanflow.settings import Settings


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The workflows that are checked, in their order."""
    checked, check = list[str](), StepPrograms.check

    def note(programs: StepPrograms) -> None:
        checked.append(programs.definition.workflow.name)
        check(programs)

    monkeypatch.setattr(StepPrograms, "check", note)
    return checked


def make_app(folder: Path, *names: str) -> sf.Application:
    for name in names:
        (folder / f"{name}.py").write_text("print(1)")
    nodes = [sf.Executor(name=name, mainfile=f"{name}.py") for name in ("first", "second")]
    workflow = sf.Workflow(name="w", nodes=nodes, edges=[sf.Dependency(dependee="first", depender="second")])
    return sf.Application(name="shop", app_dir=str(folder), workflows=[workflow])


def drive(backend: LocalBackend, run: str, definition: RunDefinition | None = None) -> RunRecord:
    return backend.drive(run, definition, environment=lambda _: {}, observe=lambda _: None)


def test_a_run_and_a_spin_are_each_checked_once(tmp_path: Path, home: Path, checks: list[str]) -> None:
    deployer = EmbeddedDeployer(Settings(home=home))
    record = deployer.run(RunRequest(make_app(tmp_path, "first", "second")))
    assert (record.state, checks) == ("succeeded", ["w"])
    spin = deployer.run(RunRequest(run=record.name, step="second"))
    assert (spin.state, checks) == ("succeeded", ["w", "w"])
    assert (Path(spin.folder) / "outputs" / "first").readlink().parts[-3:] == (record.name, "outputs", "first")
    begun = deployer.begin(RunRequest(make_app(tmp_path)))
    assert deployer.wait(begun.name).state == "succeeded"
    assert checks == ["w"] * 3


def test_a_run_and_its_functions_are_each_serialized_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serialized, saved = list[str](), list[bytes]()
    serialize, keep = SavedDefinition.from_definition, LocalBackend.keep_function

    def note(definition: RunDefinition) -> SavedDefinition:
        serialized.append(definition.workflow.name)
        return serialize(definition)

    def note_function(backend: LocalBackend, pickled: bytes) -> str:
        saved.append(pickled)
        return keep(backend, pickled)

    monkeypatch.setattr(SavedDefinition, "from_definition", note)
    monkeypatch.setattr(LocalBackend, "keep_function", note_function)
    double = sf.step(lambda number: 2 * number)
    first = double.bind(1).replace(name="first")
    workflow = sf.Workflow(name="w", nodes=[first, double.bind(first).replace(name="second")])
    app = sf.Application(name="shop", app_dir=str(home), workflows=[workflow])
    assert EmbeddedDeployer(Settings(home=home)).run(RunRequest(app)).state == "succeeded"
    assert (serialized, len(saved)) == (["w"], 1)


def test_another_process_checks_what_was_saved(tmp_path: Path, home: Path, checks: list[str]) -> None:
    here, there = (LocalBackend(Settings(home=home)) for _ in range(2))
    app = make_app(tmp_path, "first", "second")
    entered = here.enter(RunDefinition(app, app.workflows[0]))
    assert drive(there, entered.name).state == "succeeded"
    assert checks == ["w", "w"]


def test_a_refused_run_is_saved_nowhere(tmp_path: Path, home: Path) -> None:
    backend, app = LocalBackend(Settings(home=home)), make_app(tmp_path, "first")
    definition = RunDefinition(app, app.workflows[0])
    with pytest.raises(NotFoundError, match=r"no file 'second\.py'"):
        backend.prepare(definition)
    with pytest.raises(NotFoundError, match=r"no file 'second\.py'"):
        backend.enter(definition)
    with pytest.raises(NotFoundError, match=r"no file 'second\.py'"):
        EmbeddedDeployer(Settings(home=home)).run(RunRequest(app))
    assert backend.runs(limit=1) == []
    assert list(home.glob("environments/*/runs/*")) == []


def test_a_run_that_was_prepared_is_prepared(tmp_path: Path, home: Path, checks: list[str]) -> None:
    backend, app = LocalBackend(Settings(home=home)), make_app(tmp_path, "first", "second")
    definition = RunDefinition(app, app.workflows[0], {"first.n": 1}, tmp_path / "app.py", inherited=("env:KEY",))
    prepared = backend.prepare(definition)
    assert backend.prepare(prepared) is prepared
    assert (prepared.app, prepared.workflow, prepared.parameters) == (app, app.workflows[0], {"first.n": 1})
    assert (prepared.source, prepared.step, prepared.inherited) == (tmp_path / "app.py", None, ("env:KEY",))
    assert checks == ["w"]


def test_a_run_without_mpi_imports_nothing_of_it() -> None:
    program = "import sys, scanflow.backends.local.batch.backend as _; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    unneeded = ("scanflow.placement.mpi", "scanflow.backends.local.mpi.job", "yaml")
    assert [module for module in loaded if module in unneeded or module.startswith("scanflow.placement.mpi.")] == []
