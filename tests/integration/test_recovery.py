"""Homes that are moved, deleted, saved and restored, with the processes that use them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

import scanflow as sf
from scanflow.backends.run_records import RunRecord
from scanflow.deployer.remote_home import UpState, read_up_state
from scanflow.errors import StepFailedError
from scanflow.settings import Settings
from scanflow_client import control_plane
from scanflow_client.backup.restore import restore_home
from scanflow_client.backup.save import save_home
from tests.conftest import Cli
from tests.integration.local_services import Services, processes
from tests.serving import reserve_ports
from tests.waiting import wait_until

STANDIN = Path(__file__).with_name("standin_instance.py")


@pytest.fixture
def up_state(quick_cli: Cli, home: Path) -> Iterator[UpState]:
    with reserve_ports(1) as (port,):
        done = quick_cli("up", "--no-tracker", "--port", str(port))
        assert done.returncode == 0, done.stderr
        state = read_up_state(home)
        assert state is not None
        yield state
        control_plane.stop_control_plane(Settings(home=home))


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_home_that_vanishes_ends_its_server(home: Path, up_state: UpState, tmp_path: Path, *, is_moved: bool) -> None:
    pid = up_state.server.daemon.pid
    assert pid is not None
    if is_moved:
        home.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(home)
    wait_until(lambda: not psutil.pid_exists(pid), "the server has ended")


def test_down_finds_the_server_of_a_home_that_was_moved(home: Path, up_state: UpState, tmp_path: Path) -> None:
    home.rename(moved := tmp_path / "elsewhere")
    control_plane.stop_control_plane(Settings(home=moved))
    assert not up_state.server.daemon.alive
    assert read_up_state(moved) is None or not read_up_state(moved).server.is_alive()  # type: ignore[union-attr]


def test_a_service_of_a_home_that_was_moved_ends_there_and_serves_again_here(home: Path, tmp_path: Path) -> None:
    services = Services(home, "class Model: ...\n", program=(str(STANDIN),))
    services.folder = services.folder.rename(tmp_path / "work")  # the application is no part of the home
    url = services.deploy().url
    home.rename(moved := tmp_path / "elsewhere")
    wait_until(lambda: not processes(home), "nothing of the home that was is left")
    again = Services.__new__(Services)
    again.__dict__ |= services.__dict__
    again.home = moved
    again.local = type(services.local)(
        Settings(home=moved), fetch=services.fetch, remember=lambda *_: None, recall=lambda *_: None
    )
    record = again.eventually(lambda record: record.state == "ready", "it serves")
    assert (record.url, Path(record.folder).is_relative_to(moved)) == (url, True)
    again.delete_all()
    assert not home.exists()


def test_a_home_that_is_saved_while_it_runs_goes_on_elsewhere(home: Path, up_state: UpState, tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text("import scanflow as sf; sf.output('number', 7)")
    (tmp_path / "wait.py").write_text(
        "import pathlib, time\npathlib.Path('begun').touch()\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
    )
    make = sf.Executor(name="make", mainfile="make.py", cache=True)
    wait = sf.Executor(name="wait", mainfile="wait.py")
    last = sf.Executor(name="last", mainfile="make.py")
    workflow = sf.Workflow(name="w", nodes=[make, wait, last], edges=make >> wait >> last)
    app = sf.Application(name="shop", app_dir=tmp_path, workflows=[workflow])
    run = sf.Client(home=home).run(app, wait=False).name
    wait_until((tmp_path / "begun").exists, "a step runs")
    file = tmp_path / "backup.tar.gz"
    save_home(Settings(home=home), file)
    alive = up_state.server.daemon.pid
    restore_home(file, elsewhere := tmp_path / "elsewhere")
    shown = sf.Client(home=elsewhere).show(run)
    assert (shown.state, [task.state for task in shown.tasks]) == ("interrupted", ["succeeded", "running", "pending"])
    assert sf.Client(home=elsewhere).output("make", "number", run=run) == 7
    (tmp_path / "go").touch()
    record = sf.Client(home=elsewhere).resume(run)
    assert {task.task: task.state for task in record.tasks} == dict.fromkeys(("make", "wait", "last"), "succeeded")
    assert [task.attempts for task in record.tasks if task.task == "make"] == [1]
    wait_until(
        lambda: sf.Client(home=home).show(run).state == "succeeded", "the run of the home that was saved ends, too"
    )
    assert up_state.server.daemon.pid == alive


def overwrite_pages(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\x5a" * (len(content) - 4096))


def change_tables(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)

    return change


def replace_by_text(path: Path) -> None:
    path.write_bytes(b"this is not a database" * 100)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "pages": overwrite_pages,
    "text": replace_by_text,
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": Path.unlink,
    "cut off": lambda path: os.truncate(path, 5000),
    "a table": change_tables("DROP TABLE tasks"),
}


@pytest.fixture
def finished_runs(home: Path, tmp_path: Path) -> list[RunRecord]:
    """Two runs, of which the second failed; they are the journal's."""
    (tmp_path / "steps.py").write_text(
        "import pathlib\n\n\ndef make(n=2):\n    return n\n\n\ndef check(n):\n"
        "    assert n == 2 or pathlib.Path('mended').exists()\n    return n\n"
    )
    make = sf.Executor(name="make", function="steps.py:make", parameters={"n": 2})
    check = sf.Executor(name="check", function="steps.py:check", parameters={"n": make.output})
    app = sf.Application(name="shop", app_dir=tmp_path, workflows=[sf.Workflow(name="w", nodes=[make, check])])
    client = sf.Client(home=home, progress=False)
    client.run(app)
    with pytest.raises(StepFailedError):
        client.run(app, parameters={"make.n": 3})
    for path in home.glob("journal.db-*"):
        assert path.stat().st_size == 0, "what is in it would survive"
    records = [client.show(run.name) for run in client.runs()]
    assert [record.state for record in records] == ["failed", "succeeded"]
    return records


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_journal_is_made_again_of_the_runs_folders(
    home: Path, tmp_path: Path, finished_runs: list[RunRecord], damage: str
) -> None:
    DAMAGE[damage](home / "journal.db")
    client = sf.Client(home=home, progress=False)
    assert [client.show(run.name) for run in client.runs()] == finished_runs
    assert client.output("make", run=finished_runs[0].name) == 3
    (tmp_path / "mended").touch()
    record = client.resume(finished_runs[0].name)
    assert {task.task: (task.state, task.attempts) for task in record.tasks} == {
        "make": ("succeeded", 1),
        "check": ("succeeded", 2),
    }
    paths = [path for path in home.glob("journal.db.damaged-*") if not path.name.endswith(("-wal", "-shm"))]
    assert len(paths) == (damage != "deleted")
    assert len(client.runs()) == 2


def test_a_run_that_had_not_ended_is_made_again_of_its_attempts(home: Path, finished_runs: list[RunRecord]) -> None:
    ended = finished_runs[0]
    file = Path(ended.folder) / "run.json"
    document = json.loads(file.read_text())
    document["record"] |= {"state": "running", "tasks": [], "seconds": None}  # as it was when its drive began
    file.write_text(json.dumps(document))
    (home / "journal.db").unlink()
    record = sf.Client(home=home).show(ended.name)
    assert record.state == "interrupted"
    states = {task.task: (task.state, task.attempts) for task in record.tasks}
    assert states == {"make": ("succeeded", 1), "check": ("running", 1)}
    with pytest.raises(StepFailedError):
        sf.Client(home=home, progress=False).resume(ended.name)
    states = {task.task: (task.state, task.attempts) for task in sf.Client(home=home).show(ended.name).tasks}
    assert states == {"make": ("succeeded", 1), "check": ("failed", 2)}


def test_a_killed_server_and_a_killed_mlflow_come_back(quick_cli: Cli, home: Path) -> None:
    with reserve_ports(1) as (port,):
        assert quick_cli("up", "--port", str(port)).returncode == 0
        settings = Settings(home=home)
        try:
            state = read_up_state(home)
            assert state is not None
            assert state.tracker is not None
            wait_until(lambda: control_plane.read_status(settings)["tracker"]["ready"], "MLflow serves")
            for process in (state.server, state.tracker):
                pid = process.daemon.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: process.daemon.pid not in {pid, None}, "another one is started")  # noqa: B023

            def is_ready() -> bool:
                status = control_plane.read_status(settings)
                return bool(status["server"]["ready"] and status["tracker"]["ready"])

            wait_until(is_ready, "both serve")
            status = control_plane.read_status(settings)
            assert status["server"]["pid"] == state.server.daemon.pid != state.server.pid
            assert status["server"]["url"] == state.server.url
        finally:
            done = control_plane.stop_control_plane(settings)
    assert len(done.stopped) == 2
    assert not state.server.is_alive()
    assert not state.tracker.is_alive()
