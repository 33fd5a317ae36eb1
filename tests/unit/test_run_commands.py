"""Commands on runs: the logs of a fan-out, a second Ctrl-C, a run that was stopped without its driver."""

from __future__ import annotations

import io
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.journal import Journal
from scanflow.backends.local.layout import Home
from scanflow.backends.run_records import Observer, RunStarted
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.errors import InvalidError, StepFailedError
from scanflow.names import RunName, StepName
from scanflow.settings import Settings
from scanflow.transport import build_path
from scanflow_client.cli.run_commands import watch
from scanflow_client.client import Client
from scanflow_client.progress import open_output
from tests.conftest import Cli


@sf.step(in_process=True)
def double(number: int) -> int:
    print(f"doubling {number}")
    return number * 2


def test_the_logs_of_a_fan_out_are_those_of_its_tasks(home: Path, quick_cli: Cli) -> None:
    client = Client(progress=False)
    client.run(sf.Workflow(name="w", nodes=[double.map([1, 2])]))
    logs = "── double.0\ndoubling 1\n── double.1\ndoubling 2\n"
    assert client.logs("double") == logs
    assert quick_cli("logs", "@latest", "double").stdout == logs
    assert quick_cli("logs", "@latest", "double.1").stdout == "doubling 2\n"
    assert "no log of 'doubel'. Did you mean 'double" in quick_cli("logs", "@latest", "doubel").stderr


@sf.step(in_process=True)
def read_once(path: str) -> int:
    print(f"reading {path}")
    return len(Path(path).read_text())


def test_logs_name_the_attempt_before_the_last(home: Path, quick_cli: Cli, tmp_path: Path) -> None:
    client = Client(progress=False)
    with suppress(StepFailedError):
        client.run(sf.Workflow(name="w", nodes=[read_once.bind(str(tmp_path / "numbers"))]))
    assert "attempt" not in quick_cli("logs").stderr
    (tmp_path / "numbers").write_text("12")
    run = client.resume().name
    command = f"scanflow logs {run} read-once --attempt 1"
    assert quick_cli("logs").stderr == f"Shown is the last attempt of read-once. The one before: {command}\n"
    assert quick_cli(*command.split()[1:]).stderr == ""


def test_a_step_of_a_run_that_was_stopped_is_not_shown_as_running(settings: Settings) -> None:
    deployer = EmbeddedDeployer(settings)
    record = deployer.run(
        RunRequest(sf.Application(name="a", workflows=[sf.Workflow(name="w", nodes=[double.bind(1)])]))
    )
    with closing(Journal(Home(settings.home).journal)) as journal:  # as a killed driver leaves it
        run = journal.run(record.name)
        task = journal.read_tasks(run)[StepName("double")]
        journal.set_task(run, task.model_copy(update={"state": "running"}))
        journal.set_run(run, "running")
    assert deployer.show(record.name).tasks[0].state == "running"
    assert deployer.stop(record.name).state == "stopped"
    assert deployer.show(record.name).tasks[0].state == "stopped"


@pytest.mark.processes
def test_a_run_goes_on_with_another_application(home: Path, quick_cli: Cli, tmp_path: Path) -> None:
    text = """
import scanflow as sf
@sf.step(in_process=True)
def half(number): {}
app = sf.Application(name="a", workflows=[sf.Workflow(name="w", nodes=[half.bind(1)])])
"""
    (tmp_path / "odd.py").write_text(text.format("raise ValueError('odd')"), encoding="utf-8")
    (tmp_path / "even.py").write_text(text.format("return 2"), encoding="utf-8")
    assert quick_cli("run", str(tmp_path / "odd.py")).returncode == 1
    assert quick_cli("resume", "--app", str(tmp_path / "even.py")).returncode == 0
    assert Client(progress=False).output("half") == 2
    again = quick_cli("resume")  # perhaps in the folder of another application, whose run is not the newest
    assert (again.returncode, "of a:w, succeeded, and has nothing to continue" in again.stderr) == (2, True)


class InterruptedTwice:
    def run(self, _request: RunRequest, *, observe: Observer) -> Any:
        observe(RunStarted(run=RunName("brave-hare-1"), steps=1))
        raise KeyboardInterrupt


def test_a_second_interrupt_says_how_to_continue(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        watch(InterruptedTwice(), RunRequest(run="brave-hare-1"), as_json=True)  # type: ignore[arg-type]
    assert capsys.readouterr().err == (
        "Left brave-hare-1 before its steps had stopped. Continue it: scanflow resume brave-hare-1\n"
    )


def test_a_name_with_a_slash_is_refused_before_a_server_sees_other_names() -> None:
    with pytest.raises(InvalidError, match=r"'home-loan/2' is not a name\. .*scanflow why"):
        build_path("intents", "home-loan/2", "why")


def test_what_an_encoding_cannot_hold_is_replaced(home: Path, quick_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Client(progress=False).run(sf.Workflow(name="w", nodes=[double.bind(1)]))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    answer = quick_cli("runs")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert b"? succeeded" in written.getvalue()


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_progress_is_plain_lines_in_a_terminal_of_another_encoding() -> None:
    written = io.BytesIO()
    with open_output(Terminal(written, encoding="latin-1")) as output:
        output.update("load")
        output.print("✓ load", "green")
    assert written.getvalue() == b"? load\n"
