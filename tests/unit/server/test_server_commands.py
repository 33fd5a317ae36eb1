"""Changes of services by people and by agents: one after the other, recorded, and explained."""

from __future__ import annotations

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import httpx2
import pytest

from scanflow.agent.formatting import MAX_VALUE_LENGTH, describe_changes
from scanflow.agent.primitives.service_values import summarize_service
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import UsageError
from scanflow.processes.background_jobs import Job, Processes
from scanflow_server.arbiter.acting import MAX_ATTEMPTS
from scanflow_server.arbiter.arbitration import QUEUE_S
from scanflow_server.arbiter.engine_assembly import build_engine
from scanflow_server.arbiter.service_requests import request_change
from scanflow_server.arbiter.why import explain_action
from scanflow_server.bodies import Operation
from scanflow_server.progress_events import make_operation_view
from scanflow_server.server_context import ServerContext
from scanflow_server.service_drivers import Kind, ServiceDrivers, ShutdownError, TeamDeployer
from scanflow_server.store import event_store, intent_store
from scanflow_server.store.intent_store import ActionRow
from tests.permissions import permit_strategies
from tests.unit.server.answering import a_service
from tests.unit.server.arbiter.intent_builders import intent
from tests.unit.server.server_rows import make_action_row, make_request_row, read_from_store
from tests.waiting import wait_until

DEPLOY = {"application": {"name": "mnist", "team": "ml"}, "source": None, "sizing": None, "port": None}


class ChangeRequests:
    """Where commands come in; its clock goes on, and its engine begins nothing by itself."""

    def __init__(self, context: ServerContext) -> None:
        seconds = itertools.count(1_800_000_000)
        context.clock = lambda: float(next(seconds))
        self.context, self.engine = context, build_engine(context)

    def request(self, kind: Kind, /, by: str = "ada", **wanted: Any) -> str:
        request = DEPLOY if kind == "deploy" else wanted
        about: dict[str, Any] = {"get_owner": lambda: ("mnist", "ml"), "request": request, "by": by}
        return request_change(self.context, self.engine, kind, "digits", **about)

    def show(self, id: str) -> Operation:
        return make_operation_view(self.context, self.get_row(id))

    def state(self, id: str) -> str:
        return "queued" if self.get_row(id).action.state == "pending" else self.show(id).state

    def get_row(self, id: str) -> ActionRow:
        return read_from_store(self.context.store, intent_store.get, id)

    def begin(self, id: str) -> None:
        with self.context.store.write() as connection:
            intent_store.put(connection, self.get_row(id).replace(action={"state": "running", "began": 1.0}, tries=1))

    def end(self, id: str, problem: dict[str, Any] | None = None) -> None:
        """Leave what a driver leaves that has ended."""
        end_job(self.context.get_operation_job(id), problem)

    def list_event_data(self, type: str) -> list[dict[str, Any]]:
        with self.context.store.read() as connection:
            return [event.data for event in event_store.list_after(connection, 0, type=[type])]

    @property
    def due(self) -> dict[str, str]:
        with self.context.store.read() as connection:
            return {action.id: action.action.decision.verdict for action in intent_store.list_due(connection)}


@pytest.fixture
def change_requests(context: ServerContext) -> ChangeRequests:
    permit_strategies(context.store, "scale", team="ml")
    return ChangeRequests(context)


def end_job(job: Job, problem: dict[str, Any] | None = None) -> None:
    job.prepare({"what": "operation"})
    job.end({"result": None, "problem": problem})


def make_agent_intent(id: str, **changes: Any) -> Any:
    arguments = {"workflow": "digits", "instances": 3}
    fields = {"primitive": "apply_workflow_instance", "arguments": arguments, "target": "service/digits"}
    return intent(id, app="mnist", team="ml", fields=("replicas",), key=f"planner/{id}", **(fields | changes))


def test_of_fifty_conflicting_deployments_the_newest_is_made(change_requests: ChangeRequests) -> None:
    ids = [change_requests.request("deploy", by=f"user-{number}") for number in range(50)]
    states = [change_requests.state(id) for id in ids]
    assert states == ["failed"] * 49 + ["queued"]
    problem = change_requests.show(ids[0]).problem
    assert problem is not None
    assert problem["detail"].startswith(f"Superseded: user-1 requested deploy ({ids[1]})")
    assert list(change_requests.due) == ids[-1:]


def test_what_is_under_way_ends_and_of_what_waits_the_newest_follows(change_requests: ChangeRequests) -> None:
    first = change_requests.request("deploy")
    change_requests.begin(first)
    second, third = change_requests.request("deploy"), change_requests.request("delete")
    assert [change_requests.state(id) for id in (first, second, third)] == ["running", "failed", "queued"]
    waiting = change_requests.get_row(third)
    assert (waiting.action.decision.verdict, waiting.action.decision.winner) == ("queue", first)


def test_commands_that_write_other_things_are_all_made_in_their_order(change_requests: ChangeRequests) -> None:
    ids = [
        change_requests.request("deploy"),
        change_requests.request("change", instances=2),
        change_requests.request("change", promote=True),
        change_requests.request("change", instances=3),
    ]
    assert [change_requests.state(id) for id in ids] == ["queued", "failed", "queued", "queued"]
    assert change_requests.due == {ids[0]: "act", ids[2]: "queue", ids[3]: "queue"}


def test_people_and_agents_change_a_service_one_after_the_other(change_requests: ChangeRequests) -> None:
    command = change_requests.request("change", instances=2)
    change_requests.begin(command)
    decision = change_requests.engine.submit(make_agent_intent("i1"))
    assert (decision.verdict, decision.winner) == ("queue", command)
    change_requests.end(command)
    change_requests.engine.settle()
    stored = change_requests.get_row("i1")
    assert stored.action.state == "failed", "its turn came, and there is no such service"
    other = change_requests.request("change", instances=4)
    assert change_requests.engine.submit(make_agent_intent("i2")).winner == other


def test_a_change_that_an_agents_action_makes_is_found_again_and_made_again_where_it_failed(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TeamDeployer, "service", lambda *_: a_service("digits", "ready"))
    context.shutdown.set()  # no driver is started here, and nobody waits for one
    deployer = TeamDeployer(context, ServiceDrivers(context), make_agent_intent("i1"), "intent/i1")
    with context.store.write() as connection:
        intent_store.add(connection, make_action_row("i1", "running", "act", target="service/digits"))
    looked = list[Job]()
    drive = ServiceDrivers.drive

    def look(drivers: ServiceDrivers, by: Any, kind: str, service: str, request: Any, *, part: str = "") -> Any:
        looked.append(context.get_operation_job(by.id, part))
        assert (kind, service, request) == ("change", "digits", {"instances": 3})
        return drive(drivers, by, kind, service, request, part=part)

    monkeypatch.setattr(ServiceDrivers, "drive", look)

    def act() -> Job:
        with pytest.raises(ShutdownError, match="The server is shutting down"):
            deployer.change("digits", ServiceChange(instances=3))
        return looked[-1]

    first = act()
    assert act() == first
    end_job(first, {"status": 400, "detail": "no room"})
    assert act() != first, "what failed is tried again"
    assert read_from_store(context.store, intent_store.get, "i1").drivers == (first.path.name,)
    assert first.path.name.startswith("i1."), "as the retention finds whose they are"
    record = a_service("digits", "ready")
    looked[-1].prepare({"what": "operation"})
    looked[-1].end({"result": record.model_dump(mode="json"), "problem": None})
    assert [deployer.change("digits", ServiceChange(instances=3)) for _ in range(2)] == [record, record]
    with context.store.read() as connection:
        recorded = [(event.type, event.data["operation"]) for event in event_store.list_after(connection, 0)]
    assert recorded == [("service.unchanged", "i1"), ("service.changed", "i1")], "each once"
    other = TeamDeployer(context, ServiceDrivers(context), make_agent_intent("i1"), "intent/i1/revert")
    with pytest.raises(ShutdownError):
        other.change("digits", ServiceChange(instances=3))
    assert looked[-1].path.name not in {job.path.name for job in looked[:-1]}


def test_the_reason_of_a_persons_change_is_explained(change_requests: ChangeRequests) -> None:
    id = change_requests.request("change", model="models:/cnn/3", reason="the audit says so")
    with change_requests.context.store.read() as connection:
        stored = intent_store.find(connection, id)
    assert stored is not None
    lines = explain_action(stored.action, [])
    assert "reason    the audit says so" in lines
    assert any('model="models:/cnn/3"' in line for line in lines)


def test_a_command_is_explained(change_requests: ChangeRequests) -> None:
    id = change_requests.request("change", instances=2)
    with change_requests.context.store.read() as connection:
        stored = intent_store.find(connection, id)
        trail = intent_store.load_trail(connection, id)
    assert stored is not None
    lines = explain_action(stored.action, trail)
    assert lines[0].startswith("request   by ada at ")
    assert f'intent    {id}: change(instances=2, service="digits") on service/digits' in lines
    assert not any(line.startswith(("sample", "rule")) for line in lines)


def test_a_change_says_what_it_began_from_unless_it_began_on_an_earlier_server(
    change_requests: ChangeRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, revision = change_requests.context, {"id": "r1", "models": {"cnn": "models:/cnn/3"}}
    record = ServiceRecord.model_validate({**a_service("digits", "ready").model_dump(), "revisions": [revision]})
    monkeypatch.setattr(context.deployer, "service", lambda _name: record)
    texts = list[str]()
    for has_begun in (False, True):
        id = change_requests.request("change", instances=2, cores=1.5)
        job = context.get_operation_job(id)
        end_job(job)
        if has_begun:
            (job.path / "starts").write_bytes(b".")
        change_requests.engine.settle()
        action = change_requests.get_row(id).action
        texts.append(describe_changes(action))
        if not has_begun:
            assert isinstance(action.result, dict)
            assert action.result["before"] == summarize_service(record) | {"model": "models:/cnn/3"}
    assert texts == ["instances 1 → 2, cores 1.5", "instances 2, cores 1.5"]


def test_the_sizes_of_a_deployment_are_said_one_by_one_and_a_long_value_is_cut() -> None:
    arguments: dict[str, Any] = {"service": "digits", "sizing": {"instances": 2, "affinity": None}, "port": 8080}
    assert describe_changes(make_request_row("deploy-1", "deploy", arguments=arguments).action) == (
        "port 8080, instances 2"
    )
    long = make_request_row("deploy-2", "deploy", arguments={"parameters": {"text": "x" * 1000}}).action
    assert len(describe_changes(long)) == len("parameters ") + MAX_VALUE_LENGTH


def test_how_a_command_failed_is_reported_and_it_is_not_tried_again(change_requests: ChangeRequests) -> None:
    id = change_requests.request("change", instances=2)
    change_requests.end(id, {"status": 503, "detail": "no room"})
    with pytest.raises(UsageError, match="no room"):
        ServiceDrivers(change_requests.context).carry_out(change_requests.get_row(id).intent)
    change_requests.engine.settle()
    stored = change_requests.get_row(id)
    assert (stored.action.state, stored.action.error, stored.tries) == ("failed", "no room", 1)
    assert change_requests.show(id).problem == {"status": 503, "detail": "no room"}
    assert change_requests.list_event_data("service.unchanged") == [
        {"operation": id, "kind": "change", "error": "no room"}
    ], "once"


def test_a_command_outlives_any_number_of_servers(change_requests: ChangeRequests) -> None:
    id = change_requests.request("delete")
    for _ in range(2 * MAX_ATTEMPTS):
        change_requests.context.shutdown.set()
        change_requests.engine.settle()
        assert (change_requests.get_row(id).action.state, change_requests.state(id)) == ("running", "running")
        change_requests.context.shutdown.clear()
        change_requests.engine = build_engine(change_requests.context)
    change_requests.end(id)
    change_requests.engine.settle()
    assert (change_requests.get_row(id).action.state, change_requests.show(id).problem) == ("succeeded", None)
    assert change_requests.list_event_data("service.changed") == [{"operation": id, "kind": "delete"}]


def test_services_of_one_name_are_changed_one_after_the_other_whichever_teams_they_are(
    change_requests: ChangeRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    with change_requests.context.store.write() as connection:
        intent_store.add(connection, make_action_row("i1", "running", "act", target="service/digits"))
        for id, team in (("change-1", "ml"), ("change-2", "vision")):
            intent_store.add(connection, make_request_row(id, team=team))
    started = list[str]()
    monkeypatch.setattr(Thread, "start", lambda thread: started.append(thread.name))
    change_requests.engine.tick()
    assert started == ["scanflow-change-1"]


def test_a_service_is_changed_by_one_driver_at_a_time_whatever_the_target_of_an_action_is(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers, looked = ServiceDrivers(context), list[str]()

    def start(_: Processes, job: Job, _environ: object, **_how: object) -> bool:
        looked.append(job.path.name)
        return True

    monkeypatch.setattr(Processes, "start", start)
    with ThreadPoolExecutor() as pool:
        agents = (make_agent_intent("i1", target="workflow/digits"), make_agent_intent("i2"))
        running = [pool.submit(drivers.drive, agent, "change", "digits", {}) for agent in agents]
        wait_until(lambda: len(looked) > 3, "one is looked at again and again")
        context.shutdown.set()
    assert len({*looked}) == 1
    assert all(isinstance(future.exception(), ShutdownError) for future in running)


@pytest.mark.parametrize("id", ["..", ".", ".gone-x", "a.b", "A", "x" * 128])
def test_the_folder_of_an_actions_drivers_is_no_other_whatever_id_an_agent_chooses(
    context: ServerContext, id: str
) -> None:
    folder = context.settings.folder / "operations"
    for job in (context.get_operation_job(id), context.get_operation_job(id, "0f.1")):
        assert job.path.resolve().parent == folder.resolve()
        assert re.fullmatch(r"[0-9a-f]{64}(\.0f\.1)?", job.path.name)


def test_a_command_waits_for_its_turn_only_for_so_long(change_requests: ChangeRequests) -> None:
    change_requests.begin(change_requests.request("deploy"))
    id = change_requests.request("change", instances=2)
    now = change_requests.context.clock() + QUEUE_S
    change_requests.context.clock = lambda: now
    late = build_engine(change_requests.context)
    stored = change_requests.get_row(id)
    late.intents.decide_again(stored.intent)
    problem = change_requests.show(id).problem
    assert problem is not None
    assert "Request it again" in problem["detail"]


def test_an_agent_cannot_pose_as_a_person(api: httpx2.Client) -> None:
    posed = make_agent_intent("i1", source="person").model_dump(mode="json")
    refused = api.post("/intents", json=posed)
    assert (refused.status_code, "Only agents" in refused.json()["detail"]) == (422, True)
