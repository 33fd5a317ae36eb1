"""The deployers on this machine, and the remote one with a real server: every promise, over HTTP."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.app.application import Application
from scanflow.application_loading import load_application
from scanflow.backends.memory import Memory
from scanflow.backends.run_records import Event, TaskEnded, TaskStarted
from scanflow.deployer import Deployer, EmbeddedDeployer, RemoteDeployer, RunRequest, TaskLog
from scanflow.deployer.remote_home import read_up_state
from scanflow.errors import InvalidError, StepFailedError
from scanflow.http.home_token import ensure_home_token
from scanflow.settings import Settings
from scanflow.testing.deployer import APP, DeployerContract
from scanflow_client import control_plane
from tests.conftest import home_in
from tests.serving import reserve_port
from tests.waiting import PATIENCE_S, wait_until

GATED = """
import pathlib
import time
import scanflow as sf


@sf.step
def first() -> int:
    print("first", flush=True)
    return 1


@sf.step
def second(before: int) -> int:
    print("waiting", flush=True)
    give_up = time.monotonic() + 600
    while not pathlib.Path("open").exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    with pathlib.Path("times").open("a") as file:
        file.write("x")
    print("done", flush=True)
    return before + 1


one = first.bind()
app = sf.Application(name="gated", workflows=[sf.Workflow(name="w", nodes=[one, second.bind(one)])])
"""


CHANGED = """
import pathlib
import scanflow as sf


@sf.step
def total(plus: int = 1) -> int:
    if not pathlib.Path("mended").exists():
        raise ValueError("not mended yet")
    return plus


app = sf.Application(name="changed", workflows=[sf.Workflow(name="w", nodes=[total.bind()])])
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with home_in(tmp_path_factory.mktemp("deployer")) as folder:
        yield folder


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    settings = Settings(home=home)
    with pytest.MonkeyPatch.context() as patch, reserve_port() as port:
        patch.setenv("SCANFLOW_SLOTS", "2")
        patch.setattr(control_plane, "READY_S", PATIENCE_S)
        yield control_plane.start_control_plane(settings, port=port, tracker=False).up.server.url
        control_plane.stop_control_plane(settings)


@pytest.fixture
def remote(url: str, home: Path) -> RemoteDeployer:
    return RemoteDeployer(url, ensure_home_token(home))


@pytest.mark.processes
class TestEmbeddedDeployer(DeployerContract):
    @pytest.fixture
    def deployer(self, settings: Settings) -> Deployer:
        return EmbeddedDeployer(settings)


class TestMemoryDeployer(DeployerContract):
    interrupts = keeps_files = False

    @pytest.fixture
    def deployer(self, settings: Settings) -> Deployer:
        return EmbeddedDeployer(settings, backend=Memory(settings))


@pytest.mark.processes
class TestRemoteDeployer(DeployerContract):
    @pytest.fixture
    def deployer(self, remote: RemoteDeployer) -> Deployer:
        return remote


class RunHandlesContract:
    """What ``client.run`` gives is the same wherever the client works, and whether it waited or not."""

    @pytest.fixture
    def app(self, tmp_path: Path) -> Application:
        (tmp_path / "contract_app.py").write_text(APP, encoding="utf-8")
        (tmp_path / "mended").touch()
        return load_application(str(tmp_path / "contract_app.py"))[0]

    def test_a_run_is_represented_in_one_way(self, client: sf.Client, app: Application) -> None:
        waited = client.run(app, "sums", parameters={"count": 2})
        begun = client.run(app, "sums", parameters={"count": 2}, wait=False)
        with pytest.raises(InvalidError, match=r"total\.values"):
            client.spin("total", run=begun.wait().name, parameters={"values": [1]})
        for run in (waited, begun, client.run(waited.name), client.wait(begun.name), client.resume(begun.name)):
            assert (run.state, run.app, run.team, run.workflow) == ("succeeded", "contract", "tests", "sums")
            assert [task.task for task in run.tasks] == ["load", "double.0", "double.1", "total"]
            assert (run.output("total"), run.output("double")) == (2, [0, 2])
            assert run.show() == client.show(run.name) == run
            assert run.logs("load") == client.logs("load", run=run.name) == "loading 2\na word of warning\n"
            assert run.logs().startswith("── load\nloading 2\na word of warning\n── double.0\n")
            assert run.files() == []
            assert dir(run) == dir(waited)
        spun = client.spin("total", parameters={"total.values": [1, 2]})
        assert (spun.output("total"), [task.task for task in spun.tasks]) == (3, ["total"])

    def test_a_failed_run_is_raised_and_kept_by_its_name(self, client: sf.Client, app: Application) -> None:
        (Path(app.app_dir) / "mended").unlink()
        with pytest.raises(StepFailedError, match="not mended yet"):
            client.run(app, "sums")
        run = client.run("@latest")
        assert (run.state, run.output("double")) == ("failed", [0, 2, 4])
        with pytest.raises(StepFailedError, match="not mended yet"):
            run.wait()


@pytest.mark.processes
class TestEmbeddedRunHandles(RunHandlesContract):
    @pytest.fixture
    def client(self, settings: Settings) -> sf.Client:
        return sf.Client(home=settings.home, progress=False)


class TestMemoryRunHandles(RunHandlesContract):
    @pytest.fixture
    def client(self, settings: Settings) -> sf.Client:
        return sf.Client(backend=Memory(settings), progress=False)


@pytest.mark.processes
class TestRemoteRunHandles(RunHandlesContract):
    @pytest.fixture
    def client(self, url: str, home: Path) -> sf.Client:
        return sf.Client(url, token=ensure_home_token(home), progress=False)


@pytest.fixture
def gated_application(tmp_path: Path) -> tuple[Application, Path]:
    """An application whose second step waits for a file ``open`` beside it, and its file."""
    path = tmp_path / "gated_app.py"
    path.write_text(GATED, encoding="utf-8")
    return load_application(str(path))[0], path


class Watched(threading.Thread):
    """A run of the gated application, watched until it ends; made once its second step waits."""

    def __init__(self, remote: RemoteDeployer, app: Application, source: Path) -> None:
        super().__init__(daemon=True)
        self.remote, self.app, self.source = remote, app, source
        self.seen: list[Event] = []
        self.state = ""
        self.start()
        wait_until(
            lambda: any(isinstance(event, TaskStarted) and event.step == "second" for event in self.seen), "it waits"
        )

    def run(self) -> None:
        self.state = self.remote.run(RunRequest(self.app, source=self.source), observe=self.seen.append).state


@pytest.mark.processes
def test_a_run_is_watched_to_its_end_by_the_next_server(
    remote: RemoteDeployer, url: str, home: Path, gated_application: tuple[Application, Path]
) -> None:
    watched = Watched(remote, *gated_application)
    folder = watched.source.parent
    up = read_up_state(home)
    assert up is not None
    os.kill(up.server.pid, signal.SIGKILL)
    wait_until(lambda: up.server.daemon.pid not in {up.server.pid, None}, "its shim has started another server")
    again = control_plane.start_control_plane(Settings(home=home), tracker=False)
    assert (again.server, again.up.server.url) == (False, url)
    (folder / "open").touch()
    watched.join(timeout=PATIENCE_S)
    assert watched.state == "succeeded"
    assert [event.record.task for event in watched.seen if isinstance(event, TaskEnded)] == ["first", "second"]
    assert (folder / "times").read_text() == "x"


@pytest.mark.processes
def test_what_a_run_was_started_with_is_kept_when_it_is_resumed(remote: RemoteDeployer, tmp_path: Path) -> None:
    source = tmp_path / "changed_app.py"
    source.write_text(CHANGED, encoding="utf-8")
    app = load_application(str(source))[0]
    failed = [remote.run(RunRequest(app, parameters={"plus": 5}, source=source)) for _ in range(2)]
    (tmp_path / "mended").touch()
    for run, application in zip(failed, (app, None), strict=True):
        assert remote.run(RunRequest(application, run=run.name)).state == "succeeded"
        assert remote.outputs(run.name, "total") == {"result": 5}


@pytest.mark.processes
def test_a_log_is_followed_and_what_the_server_did_is_seen_without_it(
    remote: RemoteDeployer, home: Path, gated_application: tuple[Application, Path]
) -> None:
    watched = Watched(remote, *gated_application)
    blocks = (part.data for part in remote.logs(TaskLog("@latest", "second"), follow=True))
    block = next(blocks)
    assert block == b"waiting\n"
    (watched.source.parent / "open").touch()
    assert block + b"".join(blocks) == b"waiting\ndone\n"
    watched.join(timeout=PATIENCE_S)
    over_there = remote.show("@latest")
    embedded = EmbeddedDeployer(Settings(home=home))
    here = embedded.run(RunRequest(watched.app, source=watched.source))
    for deployer in (remote, embedded):
        assert [run.name for run in deployer.runs(limit=2)] == [here.name, over_there.name]
        assert deployer.show(over_there.name) == over_there
