"""Homes that are moved, deleted, saved and restored, with the processes that use them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import scanflow as sf
from scanflow.deployer.remote_home import UpState, read_up_state
from scanflow.settings import Settings
from scanflow_client import control_plane
from scanflow_client.backup.restore import restore_home
from scanflow_client.backup.save import save_home
from tests.conftest import Cli
from tests.integration.local_services import Services, processes
from tests.serving import held_ports
from tests.waiting import until

STANDIN = Path(__file__).with_name("standin_instance.py")


@pytest.fixture
def up(quick_cli: Cli, home: Path) -> Iterator[UpState]:
    with held_ports(1) as (port,):
        done = quick_cli("up", "--no-tracker", "--port", str(port))
        assert done.returncode == 0, done.stderr
        state = read_up_state(home)
        assert state is not None
        yield state
        control_plane.stop_control_plane(Settings(home=home))


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_home_that_vanishes_ends_its_server(home: Path, up: UpState, tmp_path: Path, *, is_moved: bool) -> None:
    pid = up.server.daemon.pid
    assert pid is not None
    if is_moved:
        home.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(home)
    until(lambda: not psutil.pid_exists(pid), "the server has ended")


def test_down_finds_the_server_of_a_home_that_was_moved(home: Path, up: UpState, tmp_path: Path) -> None:
    home.rename(moved := tmp_path / "elsewhere")
    control_plane.stop_control_plane(Settings(home=moved))
    assert not up.server.daemon.alive
    assert read_up_state(moved) is None or not read_up_state(moved).server.is_alive()  # type: ignore[union-attr]


def test_a_service_of_a_home_that_was_moved_ends_there_and_serves_again_here(home: Path, tmp_path: Path) -> None:
    services = Services(home, "class Model: ...\n", program=(str(STANDIN),))
    services.folder = services.folder.rename(tmp_path / "work")  # the application is no part of the home
    url = services.deploy().url
    home.rename(moved := tmp_path / "elsewhere")
    until(lambda: not processes(home), "nothing of the home that was is left")
    again = Services.__new__(Services)
    again.__dict__ |= services.__dict__
    again.home = moved
    again.local = type(services.local)(
        Settings(home=moved), fetch=services._fetch, remember=lambda *_: None, recall=lambda *_: None
    )
    record = again.eventually(lambda record: record.state == "ready", "it serves")
    assert (record.url, Path(record.folder).is_relative_to(moved)) == (url, True)
    again.delete_all()
    assert not home.exists()


def test_a_home_that_is_saved_while_it_runs_goes_on_elsewhere(home: Path, up: UpState, tmp_path: Path) -> None:
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
    until((tmp_path / "begun").exists, "a step runs")
    file = tmp_path / "backup.tar.gz"
    save_home(Settings(home=home), file)
    alive = up.server.daemon.pid
    restore_home(file, elsewhere := tmp_path / "elsewhere")
    shown = sf.Client(home=elsewhere).show(run)
    assert (shown.state, [task.state for task in shown.tasks]) == ("interrupted", ["succeeded", "running", "pending"])
    assert sf.Client(home=elsewhere).output("make", "number", run=run) == 7
    (tmp_path / "go").touch()
    record = sf.Client(home=elsewhere).resume(run)
    assert {task.task: task.state for task in record.tasks} == dict.fromkeys(("make", "wait", "last"), "succeeded")
    assert [task.attempts for task in record.tasks if task.task == "make"] == [1]
    until(lambda: sf.Client(home=home).show(run).state == "succeeded", "the run of the home that was saved ends, too")
    assert up.server.daemon.pid == alive
