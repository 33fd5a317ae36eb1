"""Real instances under a real supervisor and a steady load: what is planned fails no request, a kill what was read."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import scanflow as sf
from scanflow.backends.service_records import CanaryPolicy
from scanflow.deployer.direct_predictions import get_explanation
from scanflow.errors import InvalidError
from tests.integration.local_services import Services, kill, processes
from tests.load import LoadGenerator, steady_load, wait_for
from tests.waiting import patient, wait_until

pytestmark = [pytest.mark.endurance, pytest.mark.timeout(900)]

CODE = """
import os, signal, threading, time, ctypes

class Model:
    def __init__(self, factor=1.0):
        self.factor = factor

    def predict(self, X):
        command = int(X.flat[0])
        if command == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if command == 2:
            os._exit(3)
        if command == 3:
            ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock held
        return X * self.factor
"""
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [0.0, 7.0]}]})


@pytest.fixture
def services(home: Path) -> Iterator[Services]:
    services = Services(home, CODE)
    yield services
    services.delete_all()
    wait_until(lambda: not processes(home), "nothing is left")


def infer(
    url: str, first: float = 0.0, *, model: str = "w", timeout_s: float = patient(60)
) -> tuple[int, dict[str, Any]]:
    inputs = [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [first, 7.0]}]
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", json.dumps({"inputs": inputs}).encode())
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


CONNECTIONS = 6
MAX_DURATION_S = patient(600)
"""How long a load goes on that is not stopped before."""


def under_load(url: str, *, connections: int, rate: float, expect: str | None = None) -> LoadGenerator:
    path = f"{url}/v2/models/w/infer"
    return steady_load(
        path, BODY, connections=connections, duration_s=MAX_DURATION_S, rate=rate, expect=expect, timeout_s=patient(60)
    )


def assert_few_fail(
    services: Services, url: str, what: Callable[[], object], *, at_most: int = 0, expect: str = "7.0"
) -> None:
    """Do something to a service while it is asked; of its requests no more than so many may fail."""
    with under_load(url, connections=CONNECTIONS, rate=150, expect=expect) as load:
        wait_for(load, 150, timeout_s=patient(120))
        what()
        wait_for(load, load.progress[0] + 300, timeout_s=patient(120))
        load.stop()
        result = load.read_result(timeout_s=patient(120))
    assert set(result.statuses) <= {200, 0}, result.reasons  # an answer, or a connection that was broken
    assert result.failed <= at_most, result.reasons
    wait_until(lambda: services.local.service("w").state == "ready", "it is noted that it serves")


def ask_on(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    connection.request("POST", "/v2/models/w/infer", BODY, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer


def balance_connections(clients: Sequence[http.client.HTTPConnection], instances: int) -> list[str]:
    """Ask over all connections until each of so many instances has as many of them; return which answered each."""
    names: list[str] = []

    def ask_all() -> bool:
        names[:] = [str(ask_on(client).headers["x-scanflow-instance"]) for client in clients]
        return sorted(Counter(names).values()) == [len(clients) // instances] * instances

    wait_until(ask_all, f"{len(clients)} connections are balanced over {instances} instances")
    return names


def test_connections_are_balanced_also_over_an_instance_that_was_added(services: Services) -> None:
    url = urlsplit(services.deploy(instances=2).url)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(closing(http.client.HTTPConnection(str(url.hostname), url.port, timeout=patient(60))))
            for _ in range(12)
        ]
        balance_connections(clients, 2)
        services.change(instances=3)
        balance_connections(clients, 3)


def test_who_was_idle_while_instances_leave_is_answered_once_more_with_close(services: Services) -> None:
    url = urlsplit(services.deploy(instances=3).url)
    idle = [http.client.HTTPConnection(str(url.hostname), url.port, timeout=patient(60)) for _ in range(12)]
    served = balance_connections(idle, 3)
    services.change(instances=1)
    (stays,) = (entry.instance for entry in services.local.service("w").instances if entry.state == "ready")
    for connection, instance in zip(idle, served, strict=True):
        answer = ask_on(connection)
        assert (answer.status, answer.headers.get("connection") == "close") == (200, instance != stays)
        connection.close()
    services.eventually(lambda record: len(record.instances) == 1, "those that left are gone")


def test_what_is_planned_fails_no_request_and_a_kill_what_was_read(services: Services) -> None:
    url = services.deploy(instances=2).url

    def changes() -> None:
        services.change(instances=1, cores=2)
        services.change(instances=4, cores=1)
        services.deploy(instances=2)
        services.change(rollback=True)
        services.change(instances=2)

    def supervisor_ends() -> None:
        supervisor = services.supervisor()
        kill(supervisor)
        wait_until(lambda: services.path().supervised.read_text() not in {"", str(supervisor)}, "there is another")

    def instances_end() -> None:
        for _ in range(2):
            for pid in services.pids():
                kill(pid)
                wait_until(lambda: len(services.pids()) == 2 and pid not in services.pids(), "it is replaced")  # noqa: B023

    def all_but_the_shim_end(number: signal.Signals) -> None:
        before = services.pids()
        for pid in (*before, services.supervisor()):
            os.kill(pid, number)
        wait_until(lambda: len(services.pids()) == 2 and not services.pids() & before, "others are ready")

    assert_few_fail(services, url, changes)
    before = services.pids()
    assert_few_fail(services, url, supervisor_ends)
    assert services.pids() == before
    assert_few_fail(services, url, instances_end, at_most=4 * CONNECTIONS)
    assert_few_fail(services, url, lambda: all_but_the_shim_end(signal.SIGTERM))
    assert_few_fail(services, url, lambda: all_but_the_shim_end(signal.SIGKILL), at_most=CONNECTIONS)


def test_supervisors_killed_at_random_moments_of_changes_cost_no_request(services: Services) -> None:
    url = services.deploy(instances=2).url
    rng, kills = random.Random(7), 0

    def kill_some(done: threading.Event) -> None:
        nonlocal kills
        killer = random.Random(8)
        while not done.wait(killer.uniform(0.1, 1.5)):
            try:
                os.kill(services.supervisor(), signal.SIGKILL)
                kills += 1
            except (OSError, ValueError):
                continue  # there is none at this moment

    def changes() -> None:
        done = threading.Event()
        killer = threading.Thread(target=kill_some, args=(done,))
        killer.start()
        try:
            for done_so_far in count(1):
                services.change(instances=rng.choice([1, 2, 3]), cores=rng.choice([1, 2]))
                if done_so_far >= 6 and kills >= 6:
                    break
        finally:
            done.set()
            killer.join()

    assert_few_fail(services, url, changes)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_instances_sit_on_cores_of_their_own_however_they_are_cut(services: Services) -> None:
    record = services.deploy(instances=2, affinity="cpu", resources=sf.Resources(cpu=1))
    first, second = (instance.cpus for instance in record.instances)
    assert len(first) == len(second) == 1
    assert first != second
    with ExitStack() as callers:  # for whom instances that are replaced wait, so that they are still there
        for _ in range(12):
            caller = callers.enter_context(closing(http.client.HTTPConnection(urlsplit(record.url).netloc)))
            caller.request("GET", "/v2/health/live")
            caller.getresponse().read()
        together = services.change(instances=1, cores=2)
        assert [instance.cpus for instance in together.instances if instance.state == "ready"] == [
            tuple(sorted(first + second))
        ]
        again = services.change(instances=2, cores=1)
        assert sorted(instance.cpus for instance in again.instances if instance.state == "ready") == sorted(
            [first, second]
        )
    with pytest.raises(InvalidError, match="Write at most instances="):
        services.change(instances=len(os.sched_getaffinity(0)) + 1, cores=1)
    assert infer(record.url)[0] == 200
    crowded = services.change(instances=4, cores=1, affinity="any")
    assert [instance.state for instance in crowded.instances] == ["ready"] * 4


def test_a_request_that_ends_or_holds_its_process_fails_alone(services: Services) -> None:
    url = services.deploy(instances=2, serving=sf.Serving(grpc_port=0, deadline=5)).url
    for what in (1, 2, 3):
        wait_until(lambda: len(services.pids()) == 2, "both are ready")
        before = services.pids()
        with pytest.raises(OSError, match=r"closed|reset"):
            infer(url, what)
        assert infer(url)[0] == 200
        wait_until(lambda: services.pids() != before, "it is replaced")  # noqa: B023


def test_a_service_with_a_token_answers_only_to_who_has_it(services: Services) -> None:
    (services.folder / "token").write_text("secret\n")
    url = services.deploy(serving=sf.Serving(grpc_port=0, auth="file:token")).url
    assert infer(url)[0] == 401
    request = urllib.request.Request(f"{url}/v2/models/w/infer", BODY.encode(), {"Authorization": "Bearer secret"})
    with urllib.request.urlopen(request, timeout=patient(60)) as answer:
        assert answer.status == 200
    assert "secret" not in (services.home / "services" / "w" / "service.json").read_text()
    with pytest.raises(InvalidError, match="not the token"):
        sf.Serving(auth="secret")


def test_load_adds_instances_quiet_takes_them_away_and_the_first_caller_wakes_one(services: Services) -> None:
    scaling = sf.Scaling(metric="rps", target=20, min=0, max=3, polling=1, cool_down=2)
    url = services.deploy(scaling=scaling).url
    with under_load(url, connections=6, rate=100) as load:
        wait_until(lambda: len(services.pids()) == 3, "there are three")
        assert get_explanation(services.local.service("w")).sample is not None
        load.stop()
        result = load.read_result(timeout_s=patient(120))
        assert not result.failed, result.reasons
    services.eventually(lambda record: record.state == "idle", "it sleeps")
    revision = services.local.service("w").revisions[0]
    assert (revision.requests > 100, revision.errors) == (True, 0)
    assert infer(url)[0] == 200
    services.eventually(lambda record: record.state in {"ready", "degraded"}, "it is noted that it is awake")


def test_a_backup_answers_for_its_service_under_its_name(services: Services) -> None:
    first = services.workflow("w", serving=sf.Serving(grpc_port=0, backup="spare", hand_back_after=2))
    spare = services.workflow("spare", parameters={"factor": 2.0})
    app = services.app(first, spare)
    services.deploy_workflow(app, "spare")
    url = services.deploy_workflow(app, "w").url
    rounds = 0

    def kills() -> None:
        nonlocal rounds
        while not has_failed_over():  # until its pause is long enough to be seen
            rounds += 1
            pids = services.pids()
            for pid in pids:
                kill(pid)
            wait_until(lambda: not pids & services.pids(), "it is noticed")  # noqa: B023
        wait_until(lambda: services.local.service("w").state == "ready" and services.pids(), "it is back")

    def has_failed_over() -> bool:
        wait_until(lambda: services.pids() or services.local.service("w").state == "backup", "somebody serves")
        return services.local.service("w").state == "backup"

    assert_few_fail(services, url, kills, at_most=10 * CONNECTIONS, expect="outputs")
    assert rounds <= 10
    answers = {tuple(infer(url)[1]["outputs"][0]["data"]) for _ in range(5)}
    assert answers == {(0.0, 7.0)}


def test_a_judged_canary_is_taken_back_when_it_fails_and_promoted_when_it_does_not(services: Services) -> None:
    save_models(services.folder, columns={"1": 2, "2": 3, "3": 2})  # requests have two
    url = services.deploy(model="models:/sums/1").url
    rule = CanaryPolicy(metric="errors", after_requests=20, within_s=patient(120))

    def try_canary(version: str) -> str:
        assert services.change(model=f"models:/sums/{version}", weight=0.5, policy=rule).policy == rule
        with under_load(url, connections=2, rate=100) as load:
            wait_until(lambda: len(services.local.service("w").revisions) == 1, "it is judged")
            load.stop()
            load.read_result(timeout_s=patient(120))
        judged = services.local.service("w")
        assert judged.policy is None
        return judged.revisions[0].models["model"]

    assert try_canary("2") == "models:/sums/1"
    assert try_canary("3") == "models:/sums/3"
    assert services.change(rollback=True).revisions[0].models == {"model": "models:/sums/1"}


def save_models(folder: Path, *, columns: dict[str, int]) -> None:
    """Save a model of so many columns under each name, in a process of its own: MLflow takes its time."""
    code = (
        "import json, sys, numpy as np\n"
        "from mlflow.sklearn import save_model\n"
        "from sklearn.linear_model import LinearRegression\n"
        "for path, width in json.loads(sys.argv[1]).items():\n"
        "    save_model(LinearRegression().fit(np.eye(width), np.ones(width)), path, pip_requirements=[])\n"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(columns)], cwd=folder, check=True, timeout=patient(120))
