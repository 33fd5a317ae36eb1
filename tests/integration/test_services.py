"""Services under a real supervisor, with stand-ins for instances that speak the same protocol."""

from __future__ import annotations

import http.client
import json
import os
import random
import resource
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

import scanflow as sf
from scanflow.app.workflow import Workflow
from scanflow.backends.local.services.api import LocalServices
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.state.desired import change
from scanflow.backends.service_change import Deployment, ServiceChange, Sizing
from scanflow.backends.service_records import Progress, ServiceRecord, Shape
from scanflow.deployer.service_client import explanation_of
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.processes.ports import next_port
from scanflow.settings import Settings
from scanflow.wire import ModelFiles
from tests.waiting import until

STANDIN = Path(__file__).with_name("standin_instance.py")


class Services:
    """Services of one home, and what was told and remembered meanwhile."""

    def __init__(self, home: Path) -> None:
        self.told: list[str] = []
        self.remembered: dict[tuple[str, int], Shape] = {}
        self.folder = home / "work"
        self.folder.mkdir(parents=True)
        (self.folder / "model.py").write_text("class Model: ...\n")
        self.local = LocalServices(
            Settings(home=home),
            fetch=self._fetch,
            remember=lambda name, version, shape: self.remembered.__setitem__((name, version), shape),
            recall=lambda name, version: self.remembered.get((name, version)),
            program=(str(STANDIN),),
            timeout_s=60,
        )

    def _fetch(self, uri: str) -> ModelFiles:
        name, _, version = uri.removeprefix("models:/").partition("/")
        return ModelFiles(name=name, version=int(version), path=f"/models/{uri}{'broken' if version == '13' else ''}")

    def observe(self, progress: Progress) -> None:
        self.told.append(progress.text)

    def app(self, *workflows: Workflow) -> sf.Application:
        return sf.Application(name="shop", app_dir=self.folder, workflows=workflows)

    def workflow(self, name: str = "w", *, serving: sf.Serving | None = None, **service: Any) -> Workflow:
        fields: dict[str, Any] = {"implementation": "model.py:Model", **service}
        if "model" in fields:
            del fields["implementation"]
        node = sf.Service(name="model", **fields)
        return sf.Workflow(name=name, type="online", nodes=[node], serving=serving or sf.Serving(grpc_port=0))

    def deploy(self, name: str = "w", *, sizing: Sizing | None = None, **fields: Any) -> ServiceRecord:
        workflow = self.workflow(name, **fields)
        return self.local.deploy(Deployment(self.app(workflow), workflow.name, sizing=sizing), observe=self.observe)

    def supervisor(self, name: str = "w") -> int:
        return int(self.path(name).supervised.read_text())

    def path(self, name: str = "w") -> ServiceFolder:
        return ServiceFolder(Path(self.local.service(name).folder))


@pytest.fixture
def services(home: Path) -> Iterator[Services]:
    made = Services(home)
    yield made
    for record in sorted(made.local.services(), key=lambda record: record.backup is None):
        made.local.delete(record.name)
    assert not mine(home)


def processes(home: Path) -> list[psutil.Process]:
    """Return the processes that work below that home, and the shims above them."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(str(home) in word for word in process.cmdline()):
                found |= {process, *process.children()}
                parent = process.parent()
                if parent is not None and any(word.endswith("restarter.py") for word in parent.cmdline()):
                    found.add(parent)
        except psutil.Error:
            continue
    return list(found)


def mine(home: Path) -> list[str]:
    """Return what those processes are."""
    return [str(process) for process in processes(home)]


def none_killed(home: Path) -> bool:
    """Kill those processes, and say whether there were none: before its turn comes, one may start another."""
    there = processes(home)
    for process in there:
        with suppress(psutil.NoSuchProcess):  # some end with another
            process.kill()
    return not there


class Caller:
    """A client with one connection that it keeps."""

    def __init__(self, url: str) -> None:
        self._http = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)

    def get(self, path: str = "/") -> dict[str, Any]:
        self._http.request("GET", path)
        answer = self._http.getresponse()
        assert answer.status == 200, answer.read()
        found: dict[str, Any] = json.loads(answer.read())
        return found

    def close(self) -> None:
        self._http.close()


def ask(url: str, path: str = "/") -> dict[str, Any]:
    caller = Caller(url)
    try:
        return caller.get(path)
    finally:
        caller.close()


def answering(url: str) -> int | None:
    """Return which process answers; None: it was killed with the request in its hands. Refused is no one."""
    try:
        return int(ask(url)["pid"])
    except (ConnectionResetError, BrokenPipeError):
        return None


def kill(pid: int | None) -> None:
    """End an instance, if it has not ended already."""
    try:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def states(record: ServiceRecord) -> list[str]:
    return [one.state for one in record.instances]


def eventually(
    services: Services, true: Callable[[ServiceRecord], object], what: str, name: str = "w"
) -> ServiceRecord:
    until(lambda: true(services.local.service(name)), what)
    return services.local.service(name)


def test_a_deployed_service_answers_and_a_deleted_one_leaves_nothing(services: Services, home: Path) -> None:
    record = services.deploy(instances=2)
    assert (record.state, states(record), record.settled) == ("ready", ["ready", "ready"], 1)
    assert {ask(record.url)["instance"] for _ in range(40)} == {"1", "2"}
    services.local.delete("w", observe=services.observe)
    assert not mine(home)
    assert not services.local.services()
    assert not Path(record.folder).exists()
    with socket.socket() as made:
        made.bind(("127.0.0.1", urlsplit(record.url).port or 0))
    with pytest.raises(NotFoundError, match="no service yet"):
        services.local.service("w")


def test_a_service_is_cut_anew_while_its_callers_keep_their_connections_open(services: Services) -> None:
    url = services.deploy(instances=2).url
    for instances, cores in ((1, 2.0), (4, 1.0)):
        record = services.local.change("w", ServiceChange(instances=instances, cores=cores), observe=services.observe)
        assert (record.state, len(record.instances)) == ("ready", instances)
        assert {one.cores for one in record.instances} == {cores}
        assert ask(url)["pid"] in {one.pid for one in record.instances}


def test_more_pinned_cores_than_the_machine_has_are_refused_with_what_there_is(services: Services) -> None:
    services.deploy()
    with pytest.raises(InvalidError, match=r"9999.*cores"):
        services.local.change("w", ServiceChange(instances=9999, cores=1, affinity="cpu"))
    assert services.local.service("w").state == "ready"


def test_an_instance_that_ends_is_started_again_at_once(services: Services) -> None:
    url = services.deploy().url
    pid = ask(url)["pid"]
    os.kill(pid, signal.SIGKILL)
    assert ask(url)["pid"] != pid  # it waits in the queue until there is one
    record = eventually(services, lambda found: found.state == "ready", "it is ready again")
    assert record.instances[0].restarts == 1
    assert "signal 9" in (record.instances[0].error or "")


def test_an_instance_that_ends_again_and_again_is_given_pauses(services: Services) -> None:
    url = services.deploy().url
    for _ in range(3):
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(url, "/?crash")
    record = services.local.service("w")
    assert record.state in {"degraded", "ready"}
    until(lambda: "and starts again in" in services.path().state.read_text(), "it pauses")
    eventually(services, lambda found: found.instances[0].restarts >= 3, "it was started again")


def test_an_instance_that_answers_no_more_is_ended_and_replaced(services: Services) -> None:
    url = services.deploy().url
    pid = ask(url)["pid"]
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as made:
        made.sendall(b"GET /?hang HTTP/1.1\r\n\r\n")
        eventually(services, lambda found: found.instances and found.instances[0].restarts, "it is replaced")
    assert ask(url)["pid"] != pid


def replaced(services: Services, supervisor: int) -> Callable[[], bool]:
    """Say whether a supervisor has been replaced by another, which has reported."""

    def is_replaced() -> bool:
        text = services.path().supervised.read_text()
        return text not in {"", str(supervisor)} and f'"by":{text}' in services.path().state.read_text()

    return is_replaced


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_ended_supervisor_is_replaced_without_a_command_and_nothing_is_started_twice(
    services: Services, number: signal.Signals
) -> None:
    url = services.deploy(instances=2).url
    pids = {one.pid for one in services.local.service("w").instances}
    caller = Caller(url)
    assert caller.get()["pid"] in pids
    for _ in range(3):
        supervisor = services.supervisor()
        os.kill(supervisor, number)
        assert {ask(url)["pid"] for _ in range(30)} <= pids  # also while there is none
        until(replaced(services, supervisor), "another has taken over")
        record = eventually(services, lambda found: found.state == "ready", "they are adopted")
        assert {one.pid for one in record.instances} == pids
        assert caller.get()["pid"] in pids
    caller.close()
    kill(min(pid for pid in pids if pid))
    for _ in range(30):
        ask(url)


def test_a_service_of_one_instance_is_three_processes(services: Services, home: Path) -> None:
    services.deploy()
    assert len(processes(home)) <= 3


def test_everything_but_the_shim_ends_at_once_and_comes_back_without_a_command(services: Services, home: Path) -> None:
    url = services.deploy(instances=2).url
    for process in processes(home):
        if not any(word.endswith("restarter.py") for word in process.cmdline()):
            process.send_signal(random.choice([signal.SIGTERM, signal.SIGKILL]))
    assert ask(url)["instance"] in {"1", "2", "3"}  # it waited in the queue
    eventually(services, lambda found: states(found) == ["ready", "ready"], "both are back")


def test_a_killed_shim_is_replaced_without_a_command_and_no_connection_is_refused(
    services: Services, home: Path
) -> None:
    url = services.deploy(instances=2).url
    pids = {one.pid for one in services.local.service("w").instances}
    (shim,) = (one for one in processes(home) if any(word.endswith("restarter.py") for word in one.cmdline()))
    shim.kill()
    until(lambda: answering(url) not in {None, *pids}, "other instances answer")
    record = eventually(services, lambda found: states(found) == ["ready", "ready"], "both are back")
    assert not {one.pid for one in record.instances} & pids
    assert len(processes(home)) == 4


def test_a_shim_that_is_asked_to_end_ends_the_whole_service(services: Services, home: Path) -> None:
    url = services.deploy(instances=2).url
    (shim,) = (one for one in processes(home) if any(word.endswith("restarter.py") for word in one.cmdline()))
    shim.terminate()
    until(lambda: not mine(home), "all of it has ended")
    assert services.local.services()[0].state == "unsupervised"
    eventually(services, lambda found: found.state == "ready", "the next command starts it again")
    assert ask(url)["instance"] in {"1", "2"}


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """Let a process write no file, as on a disk that is full."""
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


def test_a_full_disk_and_a_dead_instance_end_no_supervisor(services: Services) -> None:
    url = services.deploy(instances=2).url
    supervisor = services.supervisor()
    first, second = services.local.service("w").instances
    folder = services.path().attempts(first.instance)
    with full_disk(supervisor):
        before = folder.stat().st_mtime_ns
        kill(first.pid)
        until(lambda: folder.stat().st_mtime_ns != before, "another attempt is made, in vain")
        assert ask(url)["pid"] == second.pid
    eventually(services, lambda found: found.state == "ready", "it is well again")
    assert services.supervisor() == supervisor


def test_an_instance_that_cannot_be_loaded_once_after_it_has_served_is_tried_again(services: Services) -> None:
    url = services.deploy(parameters={"fail": "once"}).url
    kill(services.local.service("w").instances[0].pid)
    assert ask(url)["instance"] == "1"
    record = eventually(services, lambda found: found.state == "ready", "it is ready again")
    assert record.instances[0].restarts == 2


def test_what_instances_do_not_see_replaces_none_and_ends_no_canary(services: Services) -> None:
    scaling = sf.Scaling(metric="rps", target=100, min=1, max=2)
    before = services.deploy(model="models:/digits/1", scaling=scaling)
    services.local.change("w", ServiceChange(model="models:/digits/2", weight=0.25))
    after = services.deploy(model="models:/digits/1", scaling=sf.Scaling(metric="rps", target=50, min=1, max=2))
    assert [one.pid for one in after.instances] == [one.pid for one in before.instances]
    assert [one.role for one in after.revisions] == ["current", "canary"]
    assert explanation_of(services.local.service("w")).target == 50
    (services.folder / "model.py").write_text("class Model:\n    changed = True\n")
    changed = services.deploy(model="models:/digits/1", scaling=scaling)
    assert [one.pid for one in changed.instances] != [one.pid for one in before.instances]


def test_nobody_waits_for_ever_for_a_service_that_cannot_start(services: Services) -> None:
    record = services.deploy(serving=sf.Serving(grpc_port=0, deadline=0.5))
    with full_disk(services.supervisor()):
        kill(record.instances[0].pid)
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(f"{record.url}/", timeout=30)
        with failed.value as answer:
            assert (answer.code, answer.headers["Retry-After"], answer.headers["Connection"]) == (503, "5", "close")
            assert json.loads(answer.read())["status"] == 503
    until(lambda: _answers(record.url), "it answers again")


def _answers(url: str) -> bool:
    try:
        return bool(ask(url))
    except AssertionError:
        return False


def test_after_a_restart_of_the_machine_the_next_command_starts_it_again(services: Services, home: Path) -> None:
    url = services.deploy(instances=2).url
    # One that is just being started may be seen by neither look: then it serves on, and is killed at the next.
    until(lambda: none_killed(home) and services.local.services()[0].state == "unsupervised", "all of it is gone")
    record = eventually(services, lambda found: found.state == "ready", "it is ready again")
    assert (record.url, len(record.instances)) == (url, 2)
    assert ask(url)["instance"] in {"1", "2"}


def test_a_supervisor_killed_in_the_middle_of_a_change_is_replaced_and_the_change_is_made(services: Services) -> None:
    services.deploy(instances=2)
    for count in (3, 1, 2):
        os.kill(services.supervisor(), signal.SIGKILL)
        assert states(services.local.change("w", ServiceChange(instances=count))) == ["ready"] * count


def test_what_cannot_be_loaded_fails_its_first_deployment_with_the_reason(services: Services) -> None:
    with pytest.raises(UsageError, match=r"could not be deployed: instance 1: model cannot be loaded.*scanflow logs w"):
        services.deploy(parameters={"fail": "configuration"})
    record = services.local.services()[0]
    assert (record.state, record.error) == ("failed", "instance 1: model cannot be loaded")
    with closing(services.local.logs("w")) as reader:
        assert reader.read().parts
    change(
        ServiceFolder(Path(record.folder)),
        lambda found: found and found.model_copy(update={"generation": 2, "failed": None}),
    )
    begun = services.local.services()[0]
    assert (begun.state, begun.error, begun.instances) == ("starting", None, ())  # nothing of the failed deployment
    services.told.clear()
    assert services.deploy().state == "ready"
    assert not [text for text in services.told if "cannot be loaded" in text]


def test_a_service_that_could_not_be_deployed_may_get_another_port(services: Services) -> None:
    with pytest.raises(UsageError, match="could not be deployed"):
        services.deploy(parameters={"fail": "configuration"})
    first = services.local.services()[0].url
    port = next_port(47800, tried=100, host="127.0.0.1")
    record = services.deploy(serving=sf.Serving(port=port, grpc_port=0))
    assert record.url == f"http://127.0.0.1:{port}" != first
    assert ask(record.url)["instance"] == "1"
    with pytest.raises(OSError, match="refused"):
        ask(first)


def test_what_crashes_whenever_it_starts_fails_its_first_deployment(services: Services) -> None:
    with pytest.raises(UsageError, match="exit code 3"):
        services.deploy(parameters={"fail": "crash"})


def test_a_new_deployment_that_cannot_be_is_undone_and_the_old_one_serves_on(services: Services) -> None:
    url = services.deploy(instances=2).url
    pids = {one.pid for one in services.local.service("w").instances}
    with pytest.raises(UsageError, match="was undone, and what served before serves on: instance 3: model cannot"):
        services.deploy(instances=2, parameters={"fail": "configuration"})
    record = services.local.service("w")
    assert (record.state, {one.pid for one in record.instances}) == ("ready", pids)
    assert ask(url)["pid"] in pids


def test_a_deployment_replaces_the_processes_and_keeps_the_port(services: Services) -> None:
    first = services.deploy(instances=2)
    second = services.deploy(instances=2)
    assert first.url == second.url
    assert not {one.pid for one in first.instances} & {one.pid for one in second.instances}


def test_a_version_is_swapped_in_the_processes_that_run(services: Services) -> None:
    first = services.deploy(model="models:/digits/1", instances=2)
    second = services.local.change("w", ServiceChange(model="models:/digits/2"))
    assert {one.pid for one in first.instances} == {one.pid for one in second.instances}
    assert second.revisions[0].models == {"model": "models:/digits/2"}
    assert ask(second.url)["revisions"] == [second.revisions[0].id]
    back = services.local.change("w", ServiceChange(rollback=True))
    assert back.revisions[0].models == {"model": "models:/digits/1"}


def test_a_version_that_cannot_be_loaded_changes_nothing(services: Services) -> None:
    first = services.deploy(model="models:/digits/1", instances=2)
    with pytest.raises(UsageError, match="instance 1 cannot serve it"):
        services.local.change("w", ServiceChange(model="models:/digits/13"))
    record = services.local.service("w")
    assert record.revisions[0].models == {"model": "models:/digits/1"}
    assert {one.pid for one in first.instances} == {one.pid for one in record.instances}
    assert services.local.change("w", ServiceChange(model="models:/digits/2")).state == "ready"


def test_a_canary_is_promoted_and_its_shape_comes_back_on_rollback(services: Services) -> None:
    services.deploy(model="models:/digits/1", instances=2)
    record = services.local.change("w", ServiceChange(model="models:/digits/2", weight=0.25))
    assert [(one.weight, one.role) for one in record.revisions] == [(0.75, "current"), (0.25, "canary")]
    services.local.change("w", ServiceChange(promote=True))
    services.local.change("w", ServiceChange(instances=1, cores=2))
    assert services.remembered["digits", 2].instances == 1
    back = services.local.change("w", ServiceChange(rollback=True))
    assert (back.shape.instances, len(back.instances)) == (2, 2)
    assert back.revisions[0].models == {"model": "models:/digits/1"}


def test_a_service_without_instances_is_woken_by_its_first_caller(services: Services) -> None:
    scaling = sf.Scaling(metric="rps", target=100, min=0, max=2, polling=0.2, cool_down=0.5)
    url = services.deploy(scaling=scaling).url
    kept = Caller(url)
    first = kept.get()["pid"]
    asleep = eventually(services, lambda found: found.state == "idle", "it sleeps")
    assert not asleep.instances
    told = explanation_of(services.local.service("w"))
    assert "sleep" in told.decision or told.instances == 0
    second = ask(url)["pid"]
    assert second != first
    eventually(services, lambda found: found.state == "idle", "it sleeps again")
    supervisor = services.supervisor()
    kill(supervisor)
    until(replaced(services, supervisor), "another has taken over")
    eventually(services, lambda found: found.state == "idle", "its new supervisor lets it sleep")
    assert ask(url)["pid"] != second
    kept.close()


def test_a_service_scaled_to_zero_by_hand_sleeps_until_it_is_called(services: Services) -> None:
    url = services.deploy().url
    services.local.change("w", ServiceChange(instances=0))
    assert ask(url)["instance"] == "1"


def test_a_backup_takes_over_and_hands_back(services: Services) -> None:
    first = services.workflow("first", serving=sf.Serving(grpc_port=0, backup="second", hand_back_after=2))
    second = services.workflow("second")
    app = services.app(first, second)
    backup = services.local.deploy(Deployment(app, second.name), observe=services.observe)
    url = services.local.deploy(Deployment(app, first.name), observe=services.observe).url
    before = ask(url)["pid"]
    assert before != backup.instances[0].pid
    for _ in range(4):  # until its pause is long enough to be seen
        for one in services.local.service("first").instances:
            kill(one.pid)
        assert ask(url)["pid"]
    until(lambda: ask(url)["pid"] == backup.instances[0].pid, "the backup answers")
    until(lambda: ask(url)["pid"] != backup.instances[0].pid, "it hands back")
    assert services.local.service("second").state == "ready"
    with pytest.raises(UsageError, match="is the backup of 'first'"):
        services.local.delete("second")


def test_services_do_not_take_each_others_ports(services: Services) -> None:
    urls = {services.deploy(name).url for name in ("a", "b", "c")}
    assert len(urls) == 3
    port = urlsplit(min(urls)).port
    with pytest.raises(InvalidError, match="another service of this home"):
        services.deploy("d", serving=sf.Serving(port=port, grpc_port=0))


def test_a_service_of_another_application_is_not_replaced(services: Services) -> None:
    services.deploy()
    workflow = services.workflow()
    other = sf.Application(name="other", app_dir=services.folder, workflows=[workflow])
    with pytest.raises(InvalidError, match="by the application 'shop'"):
        services.local.deploy(Deployment(other, workflow.name))


def test_a_thread_variable_beyond_the_cores_is_refused_by_name(services: Services) -> None:
    serving = sf.Serving(grpc_port=0, env={"OMP_NUM_THREADS": "64"})
    with pytest.raises(InvalidError, match="OMP_NUM_THREADS=64"):
        services.deploy(serving=serving, resources=sf.Resources(cpu=1))
