"""The remote deployer against a server of a few lines: what it sends, and what it makes of what comes back."""

from __future__ import annotations

import base64
import json
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import scanflow as sf
from scanflow.backends.run_records import Event, RunEnded, RunRecord, RunStarted
from scanflow.backends.service_change import CanaryPolicy, Deployment, ServiceChange, Sizing
from scanflow.backends.service_records import Progress, ServiceRecord, Shape
from scanflow.deployer import InstanceLogs, RemoteDeployer, RunRequest, functions_by_value
from scanflow.deployer.direct_predictions import predict
from scanflow.errors import InternalError, InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.http.problems import build_problem
from scanflow.names import RunName
from scanflow.transport import ServerClient

URL = "http://127.0.0.1:46666"
Route = Callable[[httpx2.Request], httpx2.Response]


class StandIn:
    def __init__(self) -> None:
        self.routes: dict[str, list[Route]] = {}
        self.asked: list[httpx2.Request] = []
        self.slept = 0.0

    def add_route(self, line: str, *answers: httpx2.Response | Route) -> None:
        self.routes[line] = [answer if callable(answer) else lambda _, answer=answer: answer for answer in answers]  # type: ignore[misc]

    def events(self, line: str, *messages: tuple[str, str]) -> None:
        text = "".join(f"id: {n}\nevent: {kind}\ndata: {data}\n\n" for n, (kind, data) in enumerate(messages, 1))
        self.add_route(line, httpx2.Response(200, content=text.encode()))

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        path = request.url.path.removeprefix("/api/v1")
        answers = self.routes.get(f"{request.method} {path}")
        if not answers:
            status, document = build_problem(NotFoundError(f"nothing at {request.method} {path}"))
            return httpx2.Response(status, json=document)
        return (answers.pop(0) if len(answers) > 1 else answers[0])(request)

    def body(self, line: str) -> Any:
        method, path = line.split()
        return json.loads(
            [request for request in self.asked if request.method == method and request.url.path == f"/api/v1{path}"][
                -1
            ].content
        )

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


@pytest.fixture
def standin() -> StandIn:
    return StandIn()


@pytest.fixture
def deployer(standin: StandIn) -> RemoteDeployer:
    server = ServerClient(URL, transport=httpx2.MockTransport(standin))
    return RemoteDeployer(URL, server=server, keys=lambda: "wish", sleep=standin.sleep, clock=lambda: standin.slept)


def run_record(state: Any = "running") -> RunRecord:
    return RunRecord(name=RunName("tall-fox"), app="shop", team="default", workflow="w", state=state, created=1.0)


def service_record() -> ServiceRecord:
    return ServiceRecord(
        name="digits", app="shop", team="default", state="ready", url="http://127.0.0.1:1", generation=1, shape=Shape()
    )


def as_json(record: Any) -> Any:
    return record.model_dump(mode="json")


@pytest.fixture
def app(tmp_path: Path) -> sf.Application:
    step = sf.Executor(name="train", mainfile="train.py", parameters={"epochs": 1})
    served = sf.Service(name="cnn", implementation="cnn.py:CNN")
    return sf.Application(
        name="shop",
        app_dir=str(tmp_path),
        workflows=[sf.Workflow(name="w", nodes=[step]), sf.Workflow(name="digits", type="online", nodes=[served])],
    )


STARTED = RunStarted(run=RunName("tall-fox"), steps=1)
ENDED = RunEnded(run=RunName("tall-fox"), record=run_record("succeeded"))


def test_a_run_is_sent_whole_and_watched_to_its_end(
    deployer: RemoteDeployer, standin: StandIn, app: sf.Application, tmp_path: Path
) -> None:
    standin.add_route("POST /runs", httpx2.Response(201, json=as_json(run_record())))
    standin.events(
        "GET /runs/tall-fox/events",
        ("message", STARTED.model_dump_json()),
        ("message", '{"kind": "from-the-future", "run": "tall-fox"}'),
        ("message", ENDED.model_dump_json()),
    )
    seen: list[Event] = []
    record = deployer.run(
        RunRequest(app, "w", parameters={"epochs": 3}, source=tmp_path / "app.py"), observe=seen.append
    )
    assert (record, seen) == (run_record("succeeded"), [STARTED, ENDED])
    sent = standin.body("POST /runs")
    assert (sent["workflow"], sent["parameters"], sent["source"]) == ("w", {"epochs": 3}, str(tmp_path / "app.py"))
    assert sent["application"]["schema"] == "scanflow/v1"
    assert sent["application"]["workflows"][0]["nodes"][0]["parameters"] == {"epochs": 3}
    assert standin.asked[0].headers["idempotency-key"] == "wish"


def test_a_refreshed_cache_is_of_the_run_and_not_of_the_application(
    deployer: RemoteDeployer, standin: StandIn, app: sf.Application
) -> None:
    standin.add_route("POST /runs", httpx2.Response(201, json=as_json(run_record())))
    [step] = app.workflow("w").steps
    cached = app.with_workflow(sf.Workflow(name="w", nodes=[step.replace(cache=True)]))
    deployer.begin(RunRequest(cached, "w"))
    plain = standin.body("POST /runs")
    deployer.begin(RunRequest(cached, "w", refresh_cache=True))
    assert standin.body("POST /runs") == {**plain, "refresh_cache": True}


def test_parameters_of_functions_are_known_here(deployer: RemoteDeployer, standin: StandIn, tmp_path: Path) -> None:
    (tmp_path / "remote_steps.py").write_text(
        "import scanflow as sf\n@sf.step\ndef load(count: int = 3) -> int:\n    return count\n"
        "app = sf.Application(name='shop', workflows=[sf.Workflow(name='w', nodes=[load.bind()])])\n"
    )
    from scanflow.application_loading import load_application

    app, source, _ = load_application(str(tmp_path / "remote_steps.py"))
    standin.add_route("POST /runs/plan", httpx2.Response(422, json=build_problem(InvalidError("no"))[1]))
    with pytest.raises(InvalidError, match=r"^no$"):
        deployer.plan(RunRequest(app, parameters={"count": 5}))
    sent = standin.body("POST /runs/plan")["application"]["workflows"][0]["nodes"][0]
    assert (sent["function"], sent["parameters"]) == ("remote_steps.py:load", {"count": 5})
    with pytest.raises(NotFoundError, match="Did you mean 'count'"):
        deployer.run(RunRequest(app, parameters={"cuont": 5}, source=source))


def programs_own(function: Callable[..., Any]) -> sf.Application:
    """An application whose only step is a function that the running program defines itself."""
    function.__module__ = "__main__"
    return sf.Application(name="shop", workflows=[sf.Workflow(name="w", nodes=[sf.step(function).bind()])])


def test_a_function_of_the_running_program_is_kept_on_the_server_once_and_named_by_what_that_says(
    deployer: RemoteDeployer, standin: StandIn
) -> None:
    def load(count: int = 3) -> int:
        return count

    place = f"{'a' * 64}.pickle"
    standin.add_route("POST /functions", httpx2.Response(201, json={"name": place}))
    standin.add_route("POST /runs/plan", httpx2.Response(422, json=build_problem(InvalidError("no"))[1]))
    app = programs_own(load)
    twice = app.workflows[0].replace(nodes=(app.workflows[0].nodes[0], app.workflows[0].nodes[0].replace(name="more")))
    with pytest.raises(InvalidError, match=r"^no$"):
        deployer.plan(RunRequest(app.replace(workflows=(twice,))))
    assert [request.url.path for request in standin.asked] == ["/api/v1/functions", "/api/v1/runs/plan"]
    body = standin.body("POST /functions")
    assert pickle.loads(base64.b64decode(body.pop("pickled")))(4) == 4
    assert body == functions_by_value.read_versions()
    sent = standin.body("POST /runs/plan")["application"]["workflows"][0]["nodes"]
    assert {document["function"].partition(":")[0] for document in sent} == {place}
    assert sent[0]["parameters"] == {"count": 3}, "what its parameters are is known here"


def test_a_function_that_cannot_be_serialized_is_refused_with_what_to_write(
    deployer: RemoteDeployer, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, table = threading.Lock(), b"x" * 1000

    def is_locked() -> bool:
        return lock.locked()

    def large() -> int:
        return len(table)

    with pytest.raises(InvalidError, match=r"step 'is-locked' .* cannot be pickled: .*lock.*%%writefile steps\.py"):
        deployer.run(RunRequest(programs_own(is_locked)))
    monkeypatch.setattr(functions_by_value, "MAX_BYTES", 500)
    with pytest.raises(InvalidError, match=r"step 'large' .* it uses a large global variable"):
        deployer.run(RunRequest(programs_own(large), run="@latest"))
    assert standin.asked == []


@pytest.mark.parametrize("name", ["python", "cloudpickle", "scanflow"])
def test_functions_of_other_versions_are_refused(name: str) -> None:
    functions_by_value.check_versions(functions_by_value.read_versions())
    with pytest.raises(InvalidError, match=rf"the client has {name} 1\.0, the server has .*%%writefile steps\.py"):
        functions_by_value.check_versions(functions_by_value.read_versions() | {name: "1.0"})


def test_a_run_that_is_resumed_is_watched_on(deployer: RemoteDeployer, standin: StandIn, app: sf.Application) -> None:
    standin.add_route("POST /runs", httpx2.Response(201, json=as_json(run_record())))
    first = f"id: 1\ndata: {STARTED.model_dump_json()}\n\n".encode()
    second = first + f"id: 2\ndata: {ENDED.model_dump_json()}\n\n".encode()
    standin.add_route(
        "GET /runs/tall-fox/events", httpx2.Response(200, content=first), httpx2.Response(200, content=second)
    )
    standin.add_route("GET /runs/tall-fox", httpx2.Response(200, json=as_json(run_record("interrupted"))))
    seen: list[Event] = []
    assert deployer.run(RunRequest(app, "w"), observe=seen.append).state == "succeeded"
    assert seen == [STARTED, ENDED]
    standin.slept = 0.0
    standin.add_route("GET /runs/tall-fox/events", httpx2.Response(200))
    assert deployer.run(RunRequest(app, "w")).state == "interrupted", "it may stay so"
    assert 30 < standin.slept < 31


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_run_that_could_not_be_driven_raises_why(
    deployer: RemoteDeployer, standin: StandIn, app: sf.Application, is_sent: bool
) -> None:
    standin.add_route("GET /runs/tall-fox", httpx2.Response(200, json=as_json(run_record())))
    standin.add_route("POST /runs/tall-fox/resume", httpx2.Response(200, json=as_json(run_record())))
    problem = json.dumps(build_problem(NotFoundError("'app.py' no longer has the workflow 'w'."))[1])
    standin.events("GET /runs/tall-fox/events", ("problem", problem), ("run-ended", ENDED.model_dump_json()))
    with pytest.raises(NotFoundError, match="no longer has the workflow"):
        deployer.run(RunRequest(app if is_sent else None, run="tall-fox"))


def test_ctrl_c_stops_the_run(deployer: RemoteDeployer, standin: StandIn, app: sf.Application) -> None:
    standin.add_route("POST /runs", httpx2.Response(201, json=as_json(run_record())))
    standin.add_route("POST /runs/tall-fox/stop", httpx2.Response(200, json=as_json(run_record())))
    stopped = ENDED.model_copy(update={"record": run_record("stopped")})
    standin.events(
        "GET /runs/tall-fox/events", ("message", STARTED.model_dump_json()), ("message", stopped.model_dump_json())
    )

    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    assert deployer.run(RunRequest(app, "w"), observe=interrupt).state == "stopped"
    assert any(request.url.path.endswith("/stop") for request in standin.asked)


def test_ctrl_c_while_a_run_is_requested_stops_what_has_begun(
    deployer: RemoteDeployer, standin: StandIn, app: sf.Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.add_route("POST /runs", httpx2.Response(201, json=as_json(run_record())))
    standin.add_route("POST /runs/tall-fox/stop", httpx2.Response(200, json=as_json(run_record())))
    stopped = ENDED.model_copy(update={"record": run_record("stopped")})
    standin.events("GET /runs/tall-fox/events", ("message", stopped.model_dump_json()))
    ask = ServerClient.post

    def interrupt_request(self: ServerClient, *asked: Any, **how: Any) -> Any:
        monkeypatch.setattr(ServerClient, "post", ask)
        ask(self, *asked, **how)  # it has begun, and its name is not heard
        raise KeyboardInterrupt

    monkeypatch.setattr(ServerClient, "post", interrupt_request)
    assert deployer.run(RunRequest(app, "w")).state == "stopped"
    first, again = [request for request in standin.asked if request.url.path.endswith("/runs")]
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert any(request.url.path.endswith("/stop") for request in standin.asked)


def test_a_change_is_watched_to_its_end(deployer: RemoteDeployer, standin: StandIn, app: sf.Application) -> None:
    standin.add_route("POST /services", httpx2.Response(202, json={"operation": "o1"}))
    done = {"id": "o1", "state": "succeeded", "progress": [], "result": as_json(service_record()), "problem": None}
    standin.events(
        "GET /operations/o1/events",
        ("progress", '{"text": "instance 1 is ready"}'),
        ("progress", '"in effect"'),
        ("progress", "in plain words"),
        ("done", json.dumps(done)),
    )
    seen: list[Progress] = []
    assert deployer.deploy(Deployment(app, sizing=Sizing(instances=2)), observe=seen.append) == service_record()
    assert [progress.text for progress in seen] == ["instance 1 is ready", "in effect", "in plain words"]
    assert {progress.service for progress in seen} == {"digits"}
    sent = standin.body("POST /services")
    assert (sent["workflow"], sent["sizing"], "is_copy" in sent) == ("digits", {"instances": 2}, False)
    deployer.deploy(Deployment(app, is_copy=True))
    assert standin.body("POST /services")["is_copy"]


def test_every_change_says_what_is_wanted_and_nothing_else(deployer: RemoteDeployer, standin: StandIn) -> None:
    done = {"id": "o", "state": "succeeded", "progress": [], "result": as_json(service_record()), "problem": None}
    standin.events("GET /operations/o/events", ("done", json.dumps(done)))
    standin.add_route("PATCH /services/digits", httpx2.Response(202, json={"operation": "o"}))
    standin.add_route("DELETE /services/digits", httpx2.Response(202, json={"operation": "o"}))
    deployer.change("digits", ServiceChange(cores=0.5))
    assert standin.body("PATCH /services/digits") == {"cores": 0.5}
    deployer.change("digits", ServiceChange(model="models:/m/2", weight=0.1, policy=CanaryPolicy(metric="p95")))
    traffic = standin.body("PATCH /services/digits")
    assert (traffic["model"], traffic["weight"], traffic["policy"]["metric"]) == ("models:/m/2", 0.1, "p95")
    deployer.delete("digits")


def test_a_change_that_failed_raises_what_went_wrong_there(deployer: RemoteDeployer, standin: StandIn) -> None:
    standin.add_route("PATCH /services/digits", httpx2.Response(202, json={"operation": "o"}))
    problem = build_problem(UsageError("There is nothing to go back to."))[1]
    failed: dict[str, Any] = {"id": "o", "state": "failed", "progress": [], "result": None, "problem": problem}
    standin.events("GET /operations/o/events", ("done", json.dumps(failed)))
    with pytest.raises(UsageError, match=r"^There is nothing to go back to\.$"):
        deployer.change("digits", ServiceChange(rollback=True))
    standin.events("GET /operations/o/events", ("done", json.dumps({**failed, "problem": None})))
    with pytest.raises(InternalError):
        deployer.change("digits", ServiceChange(rollback=True))


def test_a_change_the_server_has_forgotten_is_not_said_to_fail(deployer: RemoteDeployer, standin: StandIn) -> None:
    standin.add_route("PATCH /services/digits", httpx2.Response(202, json={"operation": "o"}))
    with pytest.raises(UnavailableError, match=r"whether it took effect: scanflow services digits"):
        deployer.change("digits", ServiceChange(rollback=True))


def test_what_instances_wrote_is_reported_once_in_any_order(deployer: RemoteDeployer, standin: StandIn) -> None:
    def lines(*parts: tuple[str, bytes]) -> bytes:
        return b"".join(
            json.dumps({"who": who, "text": base64.b64encode(text).decode()}).encode() + b"\n" for who, text in parts
        )

    class Cut(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield lines(("1", b"ab"), ("2", b"x"), ("1", b"c"))[:-5]
            raise httpx2.ReadError("the server was killed")

    whole = lines(("2", b"xy"), ("1", b"abc"), ("1", b"d"))
    standin.add_route(
        "GET /services/digits/logs", httpx2.Response(200, stream=Cut()), httpx2.Response(200, content=whole)
    )
    assert list(deployer.logs(InstanceLogs("digits"), follow=True)) == [
        ("1", b"ab"),
        ("2", b"x"),
        ("2", b"y"),
        ("1", b"c"),
        ("1", b"d"),
    ]


def test_predictions_go_to_the_service_itself(
    deployer: RemoteDeployer, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.add_route("GET /services/digits", httpx2.Response(200, json=as_json(service_record())))
    with pytest.raises(UnavailableError, match=re.escape("The service 'digits' cannot be reached")):
        predict(deployer, "digits", [1])  # nobody listens on port 1
    assert {request.url.path for request in standin.asked} == {"/api/v1/services/digits"}


def test_a_service_that_is_scaled_to_0_is_why_nobody_answers(deployer: RemoteDeployer, standin: StandIn) -> None:
    empty = service_record().model_copy(update={"shape": Shape(instances=0), "ready": 0})
    standin.add_route("GET /services/digits", httpx2.Response(200, json=as_json(empty)))
    with pytest.raises(UnavailableError, match=r"scaled to 0\. Start one: scanflow scale digits 1"):
        predict(deployer, "digits", [1])


def test_a_client_is_remote_or_embedded_by_what_is_handed_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANFLOW_URL", URL)  # it is for the command line
    assert sf.Client(progress=False).runs() == []
    with pytest.raises(UnavailableError, match="scanflow up"):
        sf.Client("http://127.0.0.1:1", token="abc", progress=False).runs()
    with pytest.raises(UsageError, match="a server sets its own home"):
        sf.Client(URL, home=home)
    with pytest.raises(UsageError, match="a token is for a server"):
        sf.Client(token="abc")
    with pytest.raises(InvalidError, match="is not the address of a server"):
        sf.Client("over there")
