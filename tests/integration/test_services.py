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
from scanflow.backends.local.services.state.desired import update_desired
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer.direct_predictions import get_explanation
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.processes.ports import is_free
from tests.integration.local_services import Services, is_shim, kill, processes
from tests.serving import reserve_port
from tests.waiting import patient, wait_until

STANDIN = Path(__file__).with_name("standin_instance.py")


@pytest.fixture
def services(home: Path) -> Iterator[Services]:
    services = Services(home, "class Model: ...\n", program=(str(STANDIN),))
    yield services
    services.delete_all()
    assert not processes(home)


def kill_all(home: Path) -> bool:
    """Kill all processes, and say whether there were none: before its turn comes, one may start another."""
    there = processes(home)
    for process in there:
        with suppress(psutil.NoSuchProcess):  # some end with another
            process.kill()
    return not there


class Caller:
    def __init__(self, url: str) -> None:
        self._http = http.client.HTTPConnection(urlsplit(url).netloc, timeout=patient(60))

    def get(self, path: str = "/") -> dict[str, Any]:
        self._http.request("GET", path)
        answer = self._http.getresponse()
        assert answer.status == 200, answer.read()
        document: dict[str, Any] = json.loads(answer.read())
        return document

    def close(self) -> None:
        self._http.close()


def ask(url: str, path: str = "/") -> dict[str, Any]:
    with closing(Caller(url)) as caller:
        return caller.get(path)


def answering(url: str) -> int | None:
    """Return which process answers; None: it was killed with the request in its hands. A refused connection fails."""
    try:
        return int(ask(url)["pid"])
    except (ConnectionResetError, BrokenPipeError):
        return None


def has_socket(url: str) -> bool:
    """Say whether this process has a socket there, listening or not; another home may have the port by now."""
    return any(
        getattr(connection.laddr, "port", None) == urlsplit(url).port
        for connection in psutil.Process().net_connections("tcp")
    )


def states(record: ServiceRecord) -> list[str]:
    return [instance.state for instance in record.instances]


def pids(record: ServiceRecord) -> set[int | None]:
    return {instance.pid for instance in record.instances}


def well(count: int) -> Callable[[ServiceRecord], bool]:
    return lambda record: record.state == "ready" and states(record) == ["ready"] * count


def test_a_service_is_deployed_resized_and_deleted_without_a_trace(services: Services, home: Path) -> None:
    record = services.deploy(instances=2)
    url = record.url
    assert (record.state, states(record), record.settled) == ("ready", ["ready", "ready"], 1)
    # Whoever is quicker accepts: one of two idle instances may be it many times in a row.
    wait_until(lambda: {ask(url)["instance"] for _ in range(40)} == {"1", "2"}, "both answer")
    assert len(processes(home)) == 4  # with a shim and a supervisor
    for instances, cores in ((1, 2.0), (4, 1.0)):
        record = services.change(instances=instances, cores=cores)
        assert (record.state, len(record.instances)) == ("ready", instances)
        assert {instance.cores for instance in record.instances} == {cores}
        assert ask(url)["pid"] in pids(record)
    services.change(instances=0)
    assert ask(url)["instance"] == "1"  # scaled to zero by hand, it sleeps until it is called

    services.local.delete("w", observe=services.observe)
    assert not processes(home)
    assert not services.local.services()
    assert not Path(record.folder).exists()
    assert not has_socket(url)
    with pytest.raises(NotFoundError, match="no service yet"):
        services.local.service("w")


def test_what_cannot_be_is_refused_by_name_and_changes_nothing(services: Services) -> None:
    urls = [services.deploy(name).url for name in ("w", "v")]
    assert urls[0] != urls[1]
    before = services.local.service("w")
    with pytest.raises(InvalidError, match=r"9999.*cores"):
        services.change(instances=9999, cores=1, affinity="cpu")
    workflow = services.workflow()
    with pytest.raises(InvalidError, match="by the application 'shop'"):
        services.deploy_workflow(services.app(workflow, name="other"), "w")
    with pytest.raises(InvalidError, match="OMP_NUM_THREADS=64"):
        services.deploy(serving=sf.Serving(grpc_port=0, env={"OMP_NUM_THREADS": "64"}), resources=sf.Resources(cpu=1))
    with pytest.raises(InvalidError, match="another service of this home"):
        services.deploy("d", serving=sf.Serving(port=urlsplit(urls[0]).port, grpc_port=0))
    after = services.local.service("w")
    assert (after.state, after.generation, pids(after)) == ("ready", before.generation, pids(before))
    with pytest.raises(UsageError, match=r"was reverted, and .*: instance 2: model cannot"):
        services.deploy(parameters={"fail": "configuration"})
    undone = services.local.service("w")
    assert (undone.state, pids(undone)) == ("ready", pids(before))
    assert ask(urls[0])["pid"] in pids(before)
    replaced = services.deploy()
    assert replaced.url == urls[0]
    assert not pids(replaced) & pids(before)


def test_an_instance_that_ends_is_replaced_and_gets_pauses(services: Services) -> None:
    url = services.deploy().url
    first = ask(url)["pid"]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: answering(url) not in {None, first}, "another answers")  # requests wait in the queue for it
    record = services.eventually(well(1), "it is ready again")
    assert record.instances[0].restarts == 1
    assert "signal 9" in (record.instances[0].error or "")

    for _ in range(3):
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(url, "/?crash")
    assert services.local.service("w").state in {"degraded", "ready"}

    def pauses() -> bool:
        if "and starts again in" in services.path().state.read_text():
            return True
        with suppress(http.client.HTTPException, OSError):  # a pause that was missed is followed by a longer one
            ask(url, "/?crash")
        return False

    wait_until(pauses, "it pauses")
    services.eventually(lambda current: current.instances[0].restarts >= 4, "it was started again")


def make_replacement_check(services: Services, supervisor: int) -> Callable[[], bool]:
    def is_replaced() -> bool:
        text = services.path().supervised.read_text()
        return text not in {"", str(supervisor)} and f'"by":{text}' in services.path().state.read_text()

    return is_replaced


def test_an_ended_supervisor_is_replaced_without_a_command_and_nothing_is_started_twice(services: Services) -> None:
    record = services.deploy(instances=2)
    url, before = record.url, pids(record)
    with closing(Caller(url)) as caller:
        assert caller.get()["pid"] in before
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            supervisor = services.supervisor()
            os.kill(supervisor, number)
            assert {ask(url)["pid"] for _ in range(30)} <= before  # also while there is none
            wait_until(make_replacement_check(services, supervisor), "another has taken over")
            assert pids(services.eventually(well(2), "they are adopted")) == before
            assert caller.get()["pid"] in before
    for count in (3, 1, 2):  # in the middle of a change, which is made all the same
        kill(services.supervisor())
        assert states(services.change(instances=count)) == ["ready"] * count


def test_its_port_for_grpc_is_kept_from_others_while_no_instance_listens_on_it(services: Services, home: Path) -> None:
    record = services.deploy(serving=sf.Serving())
    assert record.grpc is not None
    host, port = record.grpc.split(":")
    assert not is_free(host, int(port))  # the stand-ins do not speak gRPC
    kill(services.supervisor())
    assert not is_free(host, int(port))
    services.eventually(well(1), "another supervises it")
    with socket.socket() as instance:
        instance.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        instance.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        instance.bind((host, int(port)))
        instance.listen()
        with socket.create_connection((host, int(port)), timeout=patient(60)):
            instance.accept()[0].close()
    services.delete_all()
    assert not processes(home)
    assert not has_socket(f"//{record.grpc}")


def test_what_is_killed_comes_back_without_a_command_and_what_was_ended_as_a_whole_with_the_next(
    services: Services, home: Path
) -> None:
    url, rng = services.deploy(instances=2).url, random.Random(7)
    for process in processes(home):
        if not is_shim(process):
            process.send_signal(rng.choice([signal.SIGTERM, signal.SIGKILL]))
    wait_until(lambda: answering(url), "another answers")  # requests wait in the queue
    before = pids(services.eventually(well(2), "both are back"))

    (shim,) = (candidate for candidate in processes(home) if is_shim(candidate))
    shim.kill()
    wait_until(lambda: answering(url) not in {None, *before}, "other instances answer")
    assert not pids(services.eventually(well(2), "both are back")) & before
    assert len(processes(home)) == 4

    (shim,) = (candidate for candidate in processes(home) if is_shim(candidate))
    shim.terminate()
    wait_until(lambda: not processes(home), "all of it has ended")
    # A process that is ending gives up its command line before its locks: the state follows a moment later.
    wait_until(lambda: services.local.services()[0].state == "unsupervised", "it says so")
    services.eventually(well(2), "the next command starts it again")
    # As when the machine restarts. One that is just being started may be seen by neither look: it is killed next.
    wait_until(lambda: kill_all(home) and services.local.services()[0].state == "unsupervised", "all of it is gone")
    assert services.eventually(well(2), "it is ready again").url == url
    assert ask(url)["instance"] in {"1", "2"}


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


def test_a_full_disk_ends_no_supervisor_and_nobody_waits_for_ever(services: Services) -> None:
    url = services.deploy(instances=2, serving=sf.Serving(grpc_port=0, deadline=2)).url
    supervisor = services.supervisor()
    first, second = services.local.service("w").instances
    folder = services.path().get_attempts_folder(first.instance)
    with full_disk(supervisor):
        before = folder.stat().st_mtime_ns
        kill(first.pid)
        wait_until(lambda: folder.stat().st_mtime_ns != before, "another attempt is made, in vain")
        assert ask(url)["pid"] == second.pid
        kill(second.pid)
        wait_until(lambda: not psutil.pid_exists(second.pid or 0), "it is gone")
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(f"{url}/", timeout=patient(60))
        with failed.value as answer:
            assert (answer.code, answer.headers["Retry-After"], answer.headers["Connection"]) == (503, "5", "close")
            assert json.loads(answer.read())["status"] == 503
    wait_until(lambda: _answers(url), "it answers again")
    services.eventually(well(2), "it is well again")
    assert services.supervisor() == supervisor


def _answers(url: str) -> bool:
    try:
        return bool(ask(url))
    except AssertionError:
        return False


def test_an_instance_that_cannot_be_loaded_once_after_it_has_served_is_tried_again(services: Services) -> None:
    record = services.deploy(parameters={"fail": "once"})
    (before,) = pids(record)
    kill(before)
    wait_until(lambda: answering(record.url) not in {None, before}, "another answers")
    assert services.eventually(well(1), "it is ready again").instances[0].restarts == 2


def test_what_instances_do_not_see_replaces_none_and_ends_no_canary(services: Services) -> None:
    scaling = sf.Scaling(metric="rps", target=100, min=1, max=2)
    before = services.deploy(model="models:/digits/1", scaling=scaling)
    services.change(model="models:/digits/2", weight=0.25)
    after = services.deploy(model="models:/digits/1", scaling=sf.Scaling(metric="rps", target=50, min=1, max=2))
    assert pids(after) == pids(before)
    assert [revision.role for revision in after.revisions] == ["current", "canary"]
    assert get_explanation(services.local.service("w")).target == 50
    tuned = services.change(scaling=sf.Scaling(metric="rps", target=25, min=1, max=2))
    assert (pids(tuned), [revision.role for revision in tuned.revisions]) == (pids(before), ["current", "canary"])
    assert tuned.scaling is not None
    assert tuned.scaling.target == 25
    (services.folder / "model.py").write_text("class Model:\n    changed = True\n")
    assert not pids(services.deploy(model="models:/digits/1", scaling=scaling)) & pids(before)


def test_a_first_deployment_that_fails_says_why_and_the_next_owes_it_nothing(services: Services) -> None:
    with pytest.raises(UsageError, match="exited with code 3"):
        services.deploy(parameters={"fail": "crash"})
    with pytest.raises(UsageError, match=r"could not be deployed: instance 1: model cannot be loaded.*scanflow logs w"):
        services.deploy(parameters={"fail": "configuration"})
    record = services.local.services()[0]
    assert (record.state, record.error) == ("failed", "instance 1: model cannot be loaded")
    with closing(services.local.logs("w")) as reader:
        assert reader.read().parts
    update_desired(
        services.path(),
        lambda current: current and current.model_copy(update={"generation": current.generation + 1, "failed": None}),
    )
    begun = services.local.services()[0]
    assert (begun.state, begun.error, begun.instances) == ("starting", None, ())  # nothing of the failed deployment

    services.messages.clear()
    with reserve_port() as port:
        after = services.deploy(serving=sf.Serving(port=port, grpc_port=0))  # it may get another port
    assert (after.state, after.url) == ("ready", f"http://127.0.0.1:{port}")
    assert not [text for text in services.messages if "cannot be loaded" in text]
    assert ask(after.url)["instance"] == "1"
    with pytest.raises(OSError, match="refused"):
        ask(record.url)


def test_versions_are_swapped_in_the_processes_that_run_tried_promoted_and_taken_back(services: Services) -> None:
    first = services.deploy(model="models:/digits/1", instances=2)

    def list_served_versions(record: ServiceRecord) -> list[str]:
        assert pids(record) == pids(first)
        return [revision.models["model"] for revision in record.revisions]

    with pytest.raises(UsageError, match="instance 1 cannot serve the new version"):
        services.change(model="models:/digits/13")
    assert list_served_versions(services.local.service("w")) == ["models:/digits/1"]
    second = services.change(model="models:/digits/2")
    assert list_served_versions(second) == ["models:/digits/2"]
    assert ask(second.url)["revisions"] == [second.revisions[0].id]
    assert list_served_versions(services.change(rollback=True)) == ["models:/digits/1"]
    canary = services.change(model="models:/digits/2", weight=0.25)
    assert [(revision.weight, revision.role) for revision in canary.revisions] == [(0.75, "current"), (0.25, "canary")]
    assert list_served_versions(services.change(promote=True)) == ["models:/digits/2"]
    services.change(instances=1, cores=2)
    assert services.remembered["digits", 2].instances == 1
    back = services.change(rollback=True)
    assert (back.shape.instances, len(back.instances)) == (2, 2)
    assert back.revisions[0].models == {"model": "models:/digits/1"}


def test_a_service_without_instances_is_woken_by_its_first_caller(services: Services) -> None:
    scaling = sf.Scaling(metric="rps", target=100, min=0, max=2, polling=0.2, cool_down=0.5)
    url = services.deploy(scaling=scaling).url

    def asleep(record: ServiceRecord) -> bool:
        return record.state == "idle"

    with closing(Caller(url)) as connection:
        first = connection.get()["pid"]
        assert not services.eventually(asleep, "it sleeps").instances
        scaled = get_explanation(services.local.service("w"))
        assert "scale to zero" in scaled.decision or scaled.instances == 0
        second = ask(url)["pid"]
        assert second != first
        services.eventually(asleep, "it sleeps again")
        supervisor = services.supervisor()
        kill(supervisor)
        wait_until(make_replacement_check(services, supervisor), "another has taken over")
        services.eventually(asleep, "its new supervisor lets it sleep")
        assert ask(url)["pid"] != second


def test_a_backup_takes_over_and_hands_back(services: Services) -> None:
    first = services.workflow("first", serving=sf.Serving(grpc_port=0, hand_back_after=2))
    second = services.workflow("second")
    app = services.app(first, second)
    (backup,) = pids(services.deploy_workflow(app, "second"))
    url = services.deploy_workflow(app, "first").url
    with pytest.raises(NotFoundError, match="Did you mean 'second'"):
        services.change("first", backup="secon")
    with pytest.raises(UsageError, match=r"chains? of backups"):
        services.change("first", backup="first")
    assert services.change("first", backup="second").backup == "second"
    with pytest.raises(UsageError, match=r"chains? of backups"):
        services.change("second", backup="first")
    assert ask(url)["pid"] != backup

    def backup_answers() -> bool:
        if answering(url) == backup:
            return True
        for pid in pids(services.local.service("first")):  # until its pause is long enough to be seen
            kill(pid)
        return False

    wait_until(backup_answers, "the backup answers")
    wait_until(lambda: answering(url) not in {None, backup}, "it fails back")
    assert services.local.service("second").state == "ready"
    with pytest.raises(UsageError, match="is the backup of 'first'"):
        services.local.delete("second")
    assert services.change("first", backup="").backup is None
    services.local.delete("second")
