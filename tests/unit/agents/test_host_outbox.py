"""Deliveries: none lost, none before it is kept, in order for each strategy."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.errors import AccessDeniedError, ForbiddenError, InternalError, InvalidError, UnavailableError
from scanflow_agents.host.outbox import MAX_DEFECTS, MAX_DELIVERIES, Delivery
from tests.unit.agents.host_harness import START, Agent, FakeClock
from tests.waiting import PATIENCE_S

DOWN = UnavailableError("The server cannot be reached.")


def delivery(key: str, queue: str = "s") -> Delivery:
    return Delivery(queue=queue, kind="intent", key=key, at=START, body="{}")


async def test_a_strategys_deliveries_arrive_in_order_once_the_first_is_taken_and_hold_up_no_other(
    tmp_path: Path,
) -> None:
    async with Agent(tmp_path, FakeClock()) as agent:
        agent.post.failing["a"] = DOWN
        agent.outbox.send([delivery("a"), delivery("b"), delivery("c"), delivery("d", queue="other")])
        await agent.settle()
        assert agent.keys() == ["d"]
        assert agent.post.tried["a"] > 1
        assert agent.post.tried["b"] == 0, "those behind the first wait for it"
        agent.post.failing.clear()
        await agent.settle()
        assert agent.keys() == ["d", "a", "b", "c"]
        assert agent.outbox.count == 0


async def test_what_was_not_delivered_is_after_a_kill(tmp_path: Path) -> None:
    clock = FakeClock()
    agent = await Agent(tmp_path, clock).__aenter__()
    agent.post.down = DOWN
    agent.outbox.send([delivery("a"), delivery("b")])
    await agent.settle()
    await agent.kill()
    async with Agent(tmp_path, clock) as again:
        await again.settle()
        assert again.keys() == ["a", "b"]
    async with Agent(tmp_path, clock) as once_more:
        await once_more.settle()
        assert once_more.keys() == []


async def test_a_delivery_is_sent_only_when_it_is_kept(tmp_path: Path) -> None:
    async with Agent(tmp_path, FakeClock()) as agent:
        counts: list[int] = []
        agent.post.look = lambda: counts.append(len(agent.state.load_deliveries()))
        agent.outbox.send([delivery("a")])
        await agent.settle()
        assert counts == [1]


async def test_what_is_not_delivered_as_the_token_is_gone_is_kept_for_the_next_start(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Agent(tmp_path, clock) as agent:
        agent.post.failing |= {"a": AccessDeniedError("The token is invalid."), "b": ForbiddenError("Another agent's.")}
        agent.outbox.send([delivery("a"), delivery("b", queue="other")])
        await agent.settle()
        assert (agent.outbox.count, agent.outbox.refused) == (1, 1), "what is forbidden is dropped"
    async with Agent(tmp_path, clock) as again:
        await again.settle()
        assert again.keys() == ["a"]


async def test_a_refused_delivery_is_noted_and_those_behind_it_go_on(tmp_path: Path) -> None:
    async with Agent(tmp_path, FakeClock()) as agent:
        agent.post.failing["a"] = InvalidError("There is no such workflow.")
        agent.outbox.send([delivery("a"), delivery("b")])
        await agent.settle()
        assert agent.keys() == ["b"]
        (entry,) = await agent.journal("refused")
        assert entry["body"] == {"key": "a", "error": "There is no such workflow.", "type": "InvalidError"}
        assert agent.host.describe_health()["refused"] == 1


async def test_a_delivery_that_its_receiver_breaks_over_is_given_up_in_the_end(tmp_path: Path) -> None:
    async with Agent(tmp_path, FakeClock()) as agent:
        agent.post.failing["a"] = InternalError("KeyError")
        agent.outbox.send([delivery("a"), delivery("b")])
        await agent.settle()
        assert (agent.post.tried["a"], agent.keys()) == (MAX_DEFECTS, ["b"])


async def test_whoever_sends_may_wait_for_the_answer(tmp_path: Path) -> None:
    async with Agent(tmp_path, FakeClock()) as agent:
        assert await agent.outbox.deliver(delivery("a"), patience_s=PATIENCE_S) == {"verdict": "act"}
        agent.post.failing["b"] = InvalidError("No.")
        with pytest.raises(InvalidError, match=r"No\."):
            await agent.outbox.deliver(delivery("b"), patience_s=PATIENCE_S)


async def test_deliveries_beyond_what_is_kept_are_refused_and_said_so(tmp_path: Path) -> None:
    async with Agent(tmp_path, FakeClock()) as agent:
        agent.post.down = DOWN
        agent.outbox.send([delivery(f"k{n}") for n in range(MAX_DELIVERIES + 1)])
        (entry,) = await agent.journal("refused")
        assert entry["body"]["key"] == f"k{MAX_DELIVERIES}"
        assert agent.outbox.count == MAX_DELIVERIES
