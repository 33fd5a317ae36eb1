"""Intents and labels over HTTP, and actions on a service that really serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scanflow.agent.agent_records import PrimitiveCall
from scanflow.app.application_files import dump_json
from scanflow.application_loading import load_application
from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.backends.local.services.state.desired import read_desired
from scanflow.backends.service_change import ServiceChange
from scanflow.settings import Settings
from scanflow_server.auth import register_home
from scanflow_server.primitives import ApplicationStore, RequestedRuns
from scanflow_server.server_context import ServerContext, make_context
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store.migrations import migrate
from tests.applications import keep_application
from tests.http_requests import http_client
from tests.permissions import permit_strategies
from tests.server import bearer
from tests.unit.server.answering import answering
from tests.unit.server.arbiter.intent_builders import intent
from tests.unit.server.primitives.primitive_runs import do
from tests.waiting import patient, wait_until

APP = """
import scanflow as sf


class Echo:
    def predict(self, inputs):
        return inputs


echo = sf.Service(name="echo", implementation="mnist_app.py:Echo", instances=2)
app = sf.Application(
    name="mnist",
    team="tests",
    workflows=[
        sf.Workflow(name="serve", type="online", nodes=[echo]),
        sf.Workflow(
            name="train",
            nodes=[sf.Executor(name="fit", mainfile="fit.py", parameters={"epochs": 1})],
        ),
    ],
)
"""


@pytest.fixture
def context(home: Path, tmp_path: Path) -> Iterator[ServerContext]:
    (tmp_path / "mnist_app.py").write_text(APP, encoding="utf-8")
    (tmp_path / "fit.py").write_text("print('fitting')\n", encoding="utf-8")
    context = make_context(ServerSettings(library=Settings(home=home, slots=2)))
    migrate(context.store)
    app, path, _ = load_application(str(tmp_path / "mnist_app.py"))
    keep_application(context, app, source=path)
    names = ("scale", "other", "strategy of i1", "strategy of i2")
    permit_strategies(context.store, *names)
    yield context
    context.store.close()


@pytest.fixture
def client(context: ServerContext) -> Iterator[httpx2.Client]:
    home_token = register_home(context)
    with answering(context, control=True) as url, http_client(base_url=url, timeout=patient(60)) as client:
        client.headers.update(bearer(home_token))
        client.headers.update(make_token(client, "ann"))
        yield client


def make_token(client: httpx2.Client, name: str) -> dict[str, str]:
    return bearer(client.post("/api/v1/tokens", json={"name": name, "role": "admin"}).json()["token"])


def make_intent(id: str, primitive: str, target: str, field: str, /, **arguments: Any) -> dict[str, Any]:
    fields = {"primitive": primitive, "target": target, "fields": [field], "arguments": arguments}
    return intent(id, **fields).model_dump(mode="json")


def epochs(id: str, count: int, **changes: Any) -> dict[str, Any]:
    arguments = {"workflow": "train", "kind": "batch", "parameters": {"epochs": count}}
    return {**make_intent(id, "upgrade_workflow", "workflow/train", "parameters", **arguments), **changes}


def wait_for_end(client: httpx2.Client, id: str) -> dict[str, Any]:
    wait_until(lambda: client.get(f"/api/v1/intents/{id}").json()["ended"] is not None, f"the action {id} is over")
    answer: dict[str, Any] = client.get(f"/api/v1/intents/{id}").json()
    return answer


def parameters(context: ServerContext) -> Any:
    return ApplicationStore(context).get("mnist", "tests").application.workflow("train").node("fit").parameters


def test_an_intent_is_decided_on_done_reported_and_taken_back(client: httpx2.Client, context: ServerContext) -> None:
    decision = client.post("/api/v1/intents", json=epochs("i1", 5))
    assert (decision.status_code, decision.json()["verdict"]) == (200, "act")
    assert wait_for_end(client, "i1")["state"] == "succeeded"
    assert parameters(context) == {"epochs": 5}
    assert client.post("/api/v1/intents", json=epochs("i2", 6, key="planner/scale/i1")).json()["verdict"] == "duplicate"
    why = client.get("/api/v1/intents/i1/why").json()
    assert [line.split()[0] for line in why["lines"] if line[0] != " "][-1] == "effect"
    assert why["action"]["id"] == "i1"
    back = client.post("/api/v1/intents/i1/revert", json={"reason": "too slow"}).json()
    assert (back["state"], back["reverted_by"], parameters(context)) == ("reverted", "ann", {"epochs": 1})


def test_what_was_written_of_one_step_is_no_foreign_value_of_the_whole_workflow(
    client: httpx2.Client, context: ServerContext
) -> None:
    arguments = {"workflow": "train", "executor": "fit", "parameters": {"epochs": 6}}
    step = make_intent("i2", "upgrade_executor", "workflow/train", "fit.parameters", **arguments)
    other = {
        **make_intent("i3", "upgrade_executor", "workflow/train", "fit.parameters", **arguments),
        "strategy": "other",
    }
    for body in (epochs("i1", 5), step):
        client.post("/api/v1/intents", json=body)
        assert wait_for_end(client, body["id"])["state"] == "succeeded"
    assert "'i2' has changed" in client.post("/api/v1/intents/i1/revert", json={}).json()["detail"]
    client.post("/api/v1/intents", json=epochs("i4", 7))
    assert (wait_for_end(client, "i4")["state"], parameters(context)) == ("succeeded", {"epochs": 7})
    refused = client.post("/api/v1/intents", json=other).json()
    assert (refused["verdict"], "owns the field" in refused["reason"]) == ("refuse", True)


def test_what_a_run_led_to_is_reported_with_its_action(client: httpx2.Client) -> None:
    client.post(
        "/api/v1/intents", json=make_intent("i1", "run_workflow", "workflow/train", "running", workflow="train")
    )
    run = wait_for_end(client, "i1")["result"]["run"]
    evidence = {"verdict": "wait", "reason": "The run left no output 'slices'. See docs/own-data.md", "slices": []}
    judged = {"type": "model.judged", "app": "mnist", "subject": "model/digits", "data": {"evidence": evidence}}
    events = [{"at": 1.0, **judged, "data": {"run": run_name, "evidence": evidence}} for run_name in (run, "other-1")]
    assert client.post("/api/v1/events", json=events).status_code in {200, 201}
    tuned = {"type": "service.tuned", "app": "mnist", "subject": "service/serve"}
    data = {"run": run, "evidence": {"reason": "2 × 1 core, cpu is 1.40× as good"}}
    assert client.post("/api/v1/events", json=[{"at": 2.0, **tuned, "data": data}]).status_code in {200, 201}
    lines = client.get("/api/v1/intents/i1/why").json()["lines"]
    for reason in (str(evidence["reason"]), "2 × 1 core, cpu is 1.40× as good"):
        assert sum(reason in line for line in lines) == 1


def test_a_person_says_yes_or_no(client: httpx2.Client, context: ServerContext) -> None:
    for id in ("i1", "i2"):
        client.post("/api/v1/intents", json=epochs(id, 7, autonomy="approve", strategy=f"strategy of {id}"))
    waiting = client.get("/api/v1/intents", params={"verdict": "approve", "state": "pending"}).json()
    assert [action["id"] for action in waiting] == ["i2", "i1"]
    refused = client.post("/api/v1/intents/i2/refuse", json={}, headers=make_token(client, "bob")).json()["decision"]
    assert (refused["verdict"], refused["reason"]) == ("refuse", "bob refused it.")
    assert client.post("/api/v1/intents/i1/approve", json={}).json()["decision"]["verdict"] == "act"
    assert wait_for_end(client, "i1")["state"] == "succeeded"
    assert parameters(context) == {"epochs": 7}


def test_what_is_wrong_with_a_request_is_said_in_a_problem_document(client: httpx2.Client) -> None:
    wrong: list[tuple[str, str, Any, int, str]] = [
        ("GET", "/intents/nobody", None, 404, "There is no action 'nobody'"),
        ("GET", "/intents/nobody/why", None, 404, "There is no action 'nobody'"),
        ("POST", "/intents/nobody/approve", {}, 404, "There is no action 'nobody'"),
        ("POST", "/intents", epochs("i1", 2, primitive="walk"), 404, "There is no primitive 'walk'"),
        ("POST", "/intents", epochs("i1", 2, fields=["model"]), 422, "does not list 'parameters', which"),
        ("POST", "/intents", epochs("i1", 2, key=""), 422, "The key '' must have 1 to"),
        ("POST", "/intents", {"id": "i1"}, 422, "app: Field required"),
        ("POST", "/labels/nobody", {"label": 1}, 404, "The label queue has no sample 'nobody'"),
    ]
    for method, path, body, status, words in wrong:
        answer = client.request(method, f"/api/v1{path}", json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path
        assert words in answer.json()["detail"], path


def test_a_workflow_is_run_and_the_same_intent_after_a_kill_finds_the_first_run(
    client: httpx2.Client, context: ServerContext
) -> None:
    client.post(
        "/api/v1/intents", json=make_intent("i1", "run_workflow", "workflow/train", "running", workflow="train")
    )
    done = wait_for_end(client, "i1")
    assert done["state"] == "succeeded"
    assert done["inverse"] == {"primitive": "stop_workflow", "arguments": {"run": done["result"]["run"]}}
    call = PrimitiveCall(primitive="run_workflow", arguments={"workflow": "train"})
    means: dict[str, Any] = {
        "app": "mnist",
        "team": "tests",
        "key": "intent/i1",
        "runs": RequestedRuns(context, "tests"),
    }
    again = do(context.deployer, ApplicationStore(context), call, **means)
    assert again.result["run"] == done["result"]["run"]


def test_a_service_is_deployed_scaled_duplicated_guarded_and_taken_back(
    client: httpx2.Client, context: ServerContext, home: Path
) -> None:
    folder, applications = ServicesHome(home / "services").service("serve"), ApplicationStore(context)
    before = applications.get("mnist", "tests").application
    deploy = make_intent("i1", "deploy_workflow", "service/serve", "running", workflow="serve")
    client.post("/api/v1/intents", json=deploy)
    assert wait_for_end(client, "i1")["state"] == "succeeded"
    with context.deployer.connect("serve") as service:
        assert service.document("/v2/models/serve")["name"] == "serve"
    sized = {"workflow": "serve", "metric": "queue", "target": 9, "max": 1}
    client.post(
        "/api/v1/intents", json=make_intent("s", "update_workflow_replica", "service/serve", "replicas", **sized)
    )
    assert wait_for_end(client, "s")["state"] == "succeeded"
    stored = read_desired(folder)
    assert stored is not None
    assert stored.definition.scaling is not None
    reverted = client.post("/api/v1/intents/s/revert", json={"reason": "not needed"}).json()
    assert (reverted["state"], reverted["error"]) == ("reverted", None)
    stored = read_desired(folder)
    assert stored is not None
    assert (stored.definition.scaling, stored.definition.shape.instances) == (None, 2)
    assert applications.get("mnist", "tests").application == before
    more = make_intent("i2", "duplicate_workflow_instance", "service/serve", "replicas", workflow="serve")
    guard = {"metric": "lag", "worse": "higher", "by": 0.0, "within_s": 600.0}
    event = {"at": 1.0, "type": "metric", "app": "mnist", "subject": "lag", "data": {"value": 1.0}}
    post(context, event)
    client.post("/api/v1/intents", json={**more, "guard": guard})
    assert wait_for_end(client, "i2")["state"] == "succeeded"
    assert context.deployer.service("serve").shape.instances == 3
    post(context, {**event, "data": {"value": 2.0}})
    wait_until(lambda: client.get("/api/v1/intents/i2").json()["state"] == "reverted", "the guard has taken it back")
    assert context.deployer.service("serve").shape.instances == 2
    context.deployer.change("serve", ServiceChange(instances=3))  # somebody else does
    refused = client.post("/api/v1/intents", json={**more, "id": "i3", "key": "planner/scale/i3"}).json()
    assert refused["verdict"] == "refuse"
    assert all(text in refused["reason"] for text in ("it is 3", "last wrote 2"))
    context.deployer.delete("serve")  # by somebody else: it is gone, as it is to be
    reverted = client.post("/api/v1/intents/i1/revert", json={"reason": "enough"}).json()
    assert (reverted["state"], reverted["error"]) == ("reverted", None)


def post(context: ServerContext, event: dict[str, Any]) -> None:
    from scanflow.agent.agent_records import Event
    from scanflow_server.store import event_store

    with context.store.write() as connection:
        event_store.append(connection, [Event.model_validate(event)])


def test_the_saved_application_is_what_was_sent(context: ServerContext, tmp_path: Path) -> None:
    application = ApplicationStore(context).get("mnist", "tests")
    sent = load_application(str(tmp_path / "mnist_app.py"))[0]
    assert (dump_json(application.application), application.revision) == (dump_json(sent), 1)
