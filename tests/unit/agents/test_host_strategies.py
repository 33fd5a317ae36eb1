"""Strategies over samples as they come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scanflow.agent import Strategy, call
from scanflow.agent import primitives as do
from scanflow_agents.host.call_limits import MemoryActedStore, Withheld, WithheldOnce
from scanflow_agents.host.strategy_runner import Strategies
from tests.unit.agent.agent_builders import sample


def make_strategies(strategies: list[Strategy]) -> Strategies:
    return Strategies(strategies, app="mnist", team="data", parameters={"many": 100})


def strategies(least: int) -> Strategies:
    return make_strategies(
        [
            Strategy(name="enough", when="count", if_=lambda n: n >= least, then=call("checker", "look", 3)),
            Strategy(
                name="many",
                when="count",
                if_=lambda n, parameters: n >= parameters["many"],
                then=[do.run_workflow("training"), call("planner", "plan")],
            ),
            Strategy(name="elsewhere", when="other", then=do.run_workflow("training")),
        ]
    )


def test_what_strategies_want_becomes_deliveries_in_their_order() -> None:
    decided = strategies(10).decide(sample(500, cause="c3"))
    assert [(delivery.queue, delivery.kind, delivery.key) for delivery in decided.deliveries] == [
        ("enough", "call", "tracker/enough/c3"),
        ("many", "intent", "tracker/many/c3"),
        ("many", "call", "tracker/many/c3/2"),
    ]
    assert json.loads(decided.deliveries[0].body) == {"agent": "checker", "sensor": "look", "args": [3], "kwargs": {}}
    assert json.loads(decided.deliveries[1].body)["sample"]["value"] == 500


def test_a_rule_that_breaks_is_reported_and_stops_no_other() -> None:
    decided = strategies(10).decide(sample("five"))
    assert set(decided.errors) == {"enough", "many"}
    assert decided.deliveries == ()
    assert strategies(10).decide(sample(1, sensor="nobody")).deliveries == ()
    assert strategies(10).decide(sample(None, error="it hung")).errors == {}, "the sensor's error is told once"


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot say what is wrong")


def test_an_error_that_cannot_say_what_is_wrong_stops_no_other_strategy() -> None:
    def mute(n: int) -> bool:
        raise MuteError

    def half(n: int) -> bool:
        raise ValueError("half a character: \ud83d")

    two = make_strategies(
        [
            Strategy(name="mute", when="count", if_=mute, then=do.run_workflow("training")),
            Strategy(name="half", when="count", if_=half, then=do.run_workflow("training")),
            Strategy(name="sane", when="count", then=do.run_workflow("training")),
        ]
    )
    decided = two.decide(sample(1))
    assert decided.errors == {
        "mute": "Strategy 'mute': MuteError",
        "half": "Strategy 'half': ValueError: half a character: \\ud83d",
    }
    assert [delivery.queue for delivery in decided.deliveries] == ["sane"]


ACTED: list[int] = []


def act(n: int) -> None:
    ACTED.append(n)


def make_limited(store: MemoryActedStore, **limits: Any) -> Strategies:
    strategy = Strategy(name="act", when="count", then=act, **limits)
    return Strategies([strategy], app="mnist", team="data", parameters={}, store=store)


def test_a_function_with_actions_pauses_as_its_strategy_says_also_after_a_restart() -> None:
    ACTED.clear()
    store = MemoryActedStore()
    for at, number in ((100.0, 1), (105.0, 2), (109.9, 3), (110.0, 4)):
        decided = make_limited(store, cool_down=10).decide(sample(number, at=at, cause=f"c{number}"))
        assert bool(decided.withheld) == (number in {2, 3})
    assert ACTED == [1, 4]


@pytest.mark.parametrize("autonomy", ["observe", "suggest", "approve"])
def test_a_function_with_actions_is_not_called_where_its_strategy_may_not_act(autonomy: Any) -> None:
    ACTED.clear()
    [withheld] = make_limited(MemoryActedStore(), autonomy=autonomy).decide(sample(1)).withheld
    assert (ACTED, withheld.limit, withheld.requests) == ([], "autonomy", "act(...)")


def test_a_call_and_an_intent_share_their_strategys_budget() -> None:
    strategy = Strategy(name="both", when="count", then=[call("checker", "look"), do.run_workflow("t")], budget=1)
    decided = make_strategies([strategy]).decide(sample(1))
    [called, intended] = decided.deliveries
    assert (called.kind, json.loads(intended.body)["budget"]) == ("call", 0)


def test_what_is_withheld_is_reported_once_until_its_strategy_calls_again() -> None:
    def withhold(target: str, limit: str = "budget", strategy: str = "mixed") -> Withheld:
        return Withheld(strategy=strategy, requests="", key="", target=target, limit=limit, reason="")

    once, two = WithheldOnce(), [withhold("agent/m"), withhold("agent/n")]
    assert once.select((), two) == two
    assert once.select(("other",), two) == []
    later = [withhold("agent/m", "cool_down"), withhold("agent/m", strategy="other")]
    assert once.select((), [*two, *later]) == later
    assert once.select(("mixed",), two) == two
