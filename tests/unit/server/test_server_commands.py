"""Changes of services by people and by agents: one after the other, recorded, and explained."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest

from scanflow.backends.service_change import ServiceChange
from scanflow.errors import UnavailableError, UsageError
from scanflow_server import requests
from scanflow_server.arbiter.arbitrate import QUEUE_S
from scanflow_server.arbiter.engine import ArbiterEngine
from scanflow_server.arbiter.make import make_engine
from scanflow_server.arbiter.why import why
from scanflow_server.commands import QueuedDeployer, carry_out
from scanflow_server.context import ServerContext
from scanflow_server.store import intents, operations
from scanflow_server.store.operations import Kind, OperationRow
from tests.unit.server.answering import a_service
from tests.unit.server.arbiter.making import intent
from tests.unit.server.keeping import known_by

DEPLOY = {"application": {"name": "mnist", "team": "ml"}, "source": None, "sizing": None, "port": None}


@pytest.fixture
def engine(context: ServerContext) -> ArbiterEngine:
    """An engine whose clock goes on, and which begins nothing by itself."""
    seconds = itertools.count(1_800_000_000)
    context.clock = lambda: float(next(seconds))
    return make_engine(context)


def request(context: ServerContext, engine: ArbiterEngine, kind: Kind, /, by: str = "ada", **wanted: Any) -> str:
    given = DEPLOY if kind == "deploy" else wanted
    return requests.request_operation(context, engine, kind, "digits", of=lambda: ("mnist", "ml"), request=given, by=by)


def known(context: ServerContext, id: str) -> OperationRow:
    return known_by(context.store, operations.get, id)


def begin(context: ServerContext, id: str) -> None:
    """Have a command under way: its operation runs, and its end is not known."""
    with context.store.write() as connection:
        stored = intents.get(connection, id)
        assert stored is not None
        intents.put(connection, stored.changed(action={"state": "running", "began": 1.0}, tries=1))
        operations.release(connection, id)


def wanted_by_agent(id: str, **changes: Any) -> Any:
    arguments = {"workflow": "digits", "instances": 3}
    given = {"primitive": "apply_workflow_instance", "arguments": arguments, "target": "service/digits"}
    return intent(id, app="mnist", team="ml", fields=("replicas",), key=f"planner/{id}", **(given | changes))


def test_of_fifty_conflicting_deployments_the_newest_is_made(context: ServerContext, engine: ArbiterEngine) -> None:
    ids = [request(context, engine, "deploy", by=f"user-{number}") for number in range(50)]
    states = [known(context, id).state for id in ids]
    assert states == ["failed"] * 49 + ["queued"]
    told = known(context, ids[0]).problem
    assert told is not None
    assert told["detail"].startswith(f"Superseded: user-1 requested deploy ({ids[1]})")
    with context.store.read() as connection:
        assert [one.id for one in intents.due(connection)] == ids[-1:]


def test_what_is_under_way_ends_and_of_what_waits_the_newest_follows(
    context: ServerContext, engine: ArbiterEngine
) -> None:
    first = request(context, engine, "deploy")
    begin(context, first)
    second, third = request(context, engine, "deploy"), request(context, engine, "delete")
    assert [known(context, id).state for id in (first, second, third)] == ["running", "failed", "queued"]
    waiting = known_by(context.store, intents.get, third)
    assert (waiting.action.decision.verdict, waiting.action.decision.winner) == ("queue", first)


def test_commands_that_write_other_things_are_all_made_in_their_order(
    context: ServerContext, engine: ArbiterEngine
) -> None:
    ids = [
        request(context, engine, "deploy"),
        request(context, engine, "change", instances=2),
        request(context, engine, "change", promote=True),
        request(context, engine, "change", instances=3),
    ]
    assert [known(context, id).state for id in ids] == ["queued", "failed", "queued", "queued"]
    with context.store.read() as connection:
        verdicts = {one.id: one.action.decision.verdict for one in intents.due(connection)}
    assert verdicts == {ids[0]: "act", ids[2]: "queue", ids[3]: "queue"}


def test_people_and_agents_change_a_service_one_after_the_other(context: ServerContext, engine: ArbiterEngine) -> None:
    command = request(context, engine, "change", instances=2)
    begin(context, command)
    decision = engine.submit(wanted_by_agent("i1"))
    assert (decision.verdict, decision.winner) == ("queue", command)
    with context.store.write() as connection:
        operations.end(connection, command, at=2.0, progress=[], result=None)
    engine.settle()
    stored = known_by(context.store, intents.get, "i1")
    assert stored.action.state == "failed", "its turn came, and there is no such service"
    other = request(context, engine, "change", instances=4)
    assert engine.submit(wanted_by_agent("i2")).winner == other


def test_an_action_of_an_agent_is_an_operation_and_asked_for_again_the_same(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueuedDeployer, "service", lambda *_: a_service("digits", "ready"))
    context.ending.set()  # nobody makes the change here, and nobody waits for it

    def act() -> OperationRow:
        with pytest.raises(UnavailableError, match="The server ends"):
            QueuedDeployer(context, "intent/i1").change("digits", ServiceChange(instances=3))
        with context.store.read() as connection:
            (running,) = operations.running(connection)
        return running

    first = act()
    assert (first.request, act().id) == ({"instances": 3}, first.id)
    with context.store.write() as connection:
        operations.end(connection, first.id, at=3.0, progress=[], problem={"status": 400, "detail": "no room"})
    assert act().id != first.id, "what failed is tried again"


def test_a_command_is_explained(context: ServerContext, engine: ArbiterEngine) -> None:
    id = request(context, engine, "change", instances=2)
    with context.store.read() as connection:
        stored = intents.get(connection, id)
        said = intents.said(connection, id)
    assert stored is not None
    lines = why(stored.action, said)
    assert lines[0].startswith("request   by ada at ")
    assert f'intent    {id}: change(instances=2, service="digits") on service/digits' in lines
    assert not any(line.startswith(("sample", "rule")) for line in lines)


def test_how_a_command_failed_is_told_and_it_is_not_tried_again(context: ServerContext, engine: ArbiterEngine) -> None:
    id = request(context, engine, "change", instances=2)
    with context.store.write() as connection:
        operations.end(connection, id, at=2.0, progress=[], problem={"status": 503, "detail": "no room"})
    with pytest.raises(UsageError, match="no room"):
        carry_out(context, id)
    engine.settle()
    stored = known_by(context.store, intents.get, id)
    assert (stored.action.state, stored.action.error, stored.tries) == ("failed", "no room", 1)


def test_a_command_waits_for_its_turn_only_for_so_long(context: ServerContext, engine: ArbiterEngine) -> None:
    begin(context, request(context, engine, "deploy"))
    id = request(context, engine, "change", instances=2)
    now = context.clock() + QUEUE_S
    context.clock = lambda: now
    late = make_engine(context)
    stored = known_by(context.store, intents.get, id)
    late.intents.decide_again(stored.intent)
    problem = known(context, id).problem
    assert problem is not None
    assert "Request it again" in problem["detail"]


def test_an_agent_cannot_pose_as_a_person(api: httpx.Client) -> None:
    posed = wanted_by_agent("i1", source="person").model_dump(mode="json")
    refused = api.post("/intents", json=posed)
    assert (refused.status_code, "Only agents" in refused.json()["detail"]) == (422, True)
