"""Changes of services by people and by agents: one after the other, recorded, and explained."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest

from scanflow.backends.service_change import ServiceChange
from scanflow.errors import UnavailableError, UsageError
from scanflow_server.arbiter.arbitrate import QUEUE_S
from scanflow_server.arbiter.assembly import build_engine
from scanflow_server.arbiter.operation_requests import request_operation
from scanflow_server.arbiter.why import explain_action
from scanflow_server.commands import QueuedDeployer, carry_out
from scanflow_server.context import ServerContext
from scanflow_server.store import intents, operations
from scanflow_server.store.intents import ActionRow
from scanflow_server.store.operations import Kind, OperationRow
from tests.permitting import permit_strategies
from tests.unit.server.answering import a_service
from tests.unit.server.arbiter.making import intent
from tests.unit.server.keeping import known_by

DEPLOY = {"application": {"name": "mnist", "team": "ml"}, "source": None, "sizing": None, "port": None}


class Desk:
    """Where commands come in; its clock goes on, and its engine begins nothing by itself."""

    def __init__(self, context: ServerContext) -> None:
        seconds = itertools.count(1_800_000_000)
        context.clock = lambda: float(next(seconds))
        self.context, self.engine = context, build_engine(context)

    def request(self, kind: Kind, /, by: str = "ada", **wanted: Any) -> str:
        given = DEPLOY if kind == "deploy" else wanted
        about: dict[str, Any] = {"find_owner": lambda: ("mnist", "ml"), "request": given, "by": by}
        return request_operation(self.context, self.engine, kind, "digits", **about)

    def known(self, id: str) -> OperationRow:
        return known_by(self.context.store, operations.get, id)

    def wanted(self, id: str) -> ActionRow:
        return known_by(self.context.store, intents.get, id)

    def begin(self, id: str) -> None:
        with self.context.store.write() as connection:
            begun = self.wanted(id).replace(action={"state": "running", "began": 1.0}, tries=1)
            intents.put(connection, begun)
            operations.release(connection, id)

    def end(self, id: str, problem: dict[str, Any] | None = None) -> None:
        with self.context.store.write() as connection:
            operations.end(connection, id, at=2.0, progress=[], problem=problem)

    @property
    def due(self) -> dict[str, str]:
        with self.context.store.read() as connection:
            return {one.id: one.action.decision.verdict for one in intents.list_due(connection)}


@pytest.fixture
def desk(context: ServerContext) -> Desk:
    permit_strategies(context.store, "scale", team="ml")
    return Desk(context)


def wanted_by_agent(id: str, **changes: Any) -> Any:
    arguments = {"workflow": "digits", "instances": 3}
    given = {"primitive": "apply_workflow_instance", "arguments": arguments, "target": "service/digits"}
    return intent(id, app="mnist", team="ml", fields=("replicas",), key=f"planner/{id}", **(given | changes))


def test_of_fifty_conflicting_deployments_the_newest_is_made(desk: Desk) -> None:
    ids = [desk.request("deploy", by=f"user-{number}") for number in range(50)]
    states = [desk.known(id).state for id in ids]
    assert states == ["failed"] * 49 + ["queued"]
    told = desk.known(ids[0]).problem
    assert told is not None
    assert told["detail"].startswith(f"Superseded: user-1 requested deploy ({ids[1]})")
    assert list(desk.due) == ids[-1:]


def test_what_is_under_way_ends_and_of_what_waits_the_newest_follows(desk: Desk) -> None:
    first = desk.request("deploy")
    desk.begin(first)
    second, third = desk.request("deploy"), desk.request("delete")
    assert [desk.known(id).state for id in (first, second, third)] == ["running", "failed", "queued"]
    waiting = desk.wanted(third)
    assert (waiting.action.decision.verdict, waiting.action.decision.winner) == ("queue", first)


def test_commands_that_write_other_things_are_all_made_in_their_order(desk: Desk) -> None:
    ids = [
        desk.request("deploy"),
        desk.request("change", instances=2),
        desk.request("change", promote=True),
        desk.request("change", instances=3),
    ]
    assert [desk.known(id).state for id in ids] == ["queued", "failed", "queued", "queued"]
    assert desk.due == {ids[0]: "act", ids[2]: "queue", ids[3]: "queue"}


def test_people_and_agents_change_a_service_one_after_the_other(desk: Desk) -> None:
    command = desk.request("change", instances=2)
    desk.begin(command)
    decision = desk.engine.submit(wanted_by_agent("i1"))
    assert (decision.verdict, decision.winner) == ("queue", command)
    desk.end(command)
    desk.engine.settle()
    stored = desk.wanted("i1")
    assert stored.action.state == "failed", "its turn came, and there is no such service"
    other = desk.request("change", instances=4)
    assert desk.engine.submit(wanted_by_agent("i2")).winner == other


def test_an_action_of_an_agent_is_an_operation_and_asked_for_again_the_same(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueuedDeployer, "service", lambda *_: a_service("digits", "ready"))
    context.shutdown.set()  # nobody makes the change here, and nobody waits for it

    def act() -> OperationRow:
        with pytest.raises(UnavailableError, match="The server is shutting down"):
            QueuedDeployer(context, "intent/i1", team="t").change("digits", ServiceChange(instances=3))
        with context.store.read() as connection:
            (running,) = operations.list_open(connection)
        return running

    first = act()
    assert (first.request, act().id) == ({"instances": 3}, first.id)
    with context.store.write() as connection:
        operations.end(connection, first.id, at=3.0, progress=[], problem={"status": 400, "detail": "no room"})
    assert act().id != first.id, "what failed is tried again"


def test_the_reason_of_a_persons_change_is_explained(desk: Desk) -> None:
    id = desk.request("change", model="models:/cnn/3", reason="the audit says so")
    with desk.context.store.read() as connection:
        stored = intents.get(connection, id)
    assert stored is not None
    lines = explain_action(stored.action, [])
    assert "reason    the audit says so" in lines
    assert any('model="models:/cnn/3"' in line for line in lines)


def test_a_command_is_explained(desk: Desk) -> None:
    id = desk.request("change", instances=2)
    with desk.context.store.read() as connection:
        stored = intents.get(connection, id)
        said = intents.load_trail(connection, id)
    assert stored is not None
    lines = explain_action(stored.action, said)
    assert lines[0].startswith("request   by ada at ")
    assert f'intent    {id}: change(instances=2, service="digits") on service/digits' in lines
    assert not any(line.startswith(("sample", "rule")) for line in lines)


def test_how_a_command_failed_is_told_and_it_is_not_tried_again(desk: Desk) -> None:
    id = desk.request("change", instances=2)
    desk.end(id, {"status": 503, "detail": "no room"})
    with pytest.raises(UsageError, match="no room"):
        carry_out(desk.context, id)
    desk.engine.settle()
    stored = desk.wanted(id)
    assert (stored.action.state, stored.action.error, stored.tries) == ("failed", "no room", 1)


def test_a_command_waits_for_its_turn_only_for_so_long(desk: Desk) -> None:
    desk.begin(desk.request("deploy"))
    id = desk.request("change", instances=2)
    now = desk.context.clock() + QUEUE_S
    desk.context.clock = lambda: now
    late = build_engine(desk.context)
    stored = desk.wanted(id)
    late.intents.decide_again(stored.intent)
    problem = desk.known(id).problem
    assert problem is not None
    assert "Request it again" in problem["detail"]


def test_an_agent_cannot_pose_as_a_person(api: httpx.Client) -> None:
    posed = wanted_by_agent("i1", source="person").model_dump(mode="json")
    refused = api.post("/intents", json=posed)
    assert (refused.status_code, "Only agents" in refused.json()["detail"]) == (422, True)
