"""Strategies over samples: as they come, and again over recorded ones."""

from __future__ import annotations

import json

from scanflow.agent import Strategy, call
from scanflow.agent import primitives as do
from scanflow.agent.records import JSON, Sample
from scanflow_agents.deciding import Strategies
from scanflow_agents.replaying import difference, replay


def sample(number: int, value: JSON, *, error: str | None = None) -> Sample:
    return Sample(
        id=f"s{number}",
        agent="tracker",
        sensor="count",
        at=1000.0 + number,
        value=value,
        cause=f"c{number}",
        error=error,
    )


def strategies(least: int, **parameters: JSON) -> Strategies:
    return Strategies(
        [
            Strategy(name="enough", when="count", if_=lambda n: n >= least, then=call("checker", "look", 3)),
            Strategy(
                name="many",
                when="count",
                if_=lambda n, parameters: n >= parameters["many"],
                then=[do.run_workflow("training"), call("planner", "plan")],
            ),
            Strategy(name="elsewhere", when="other", then=do.run_workflow("training")),
        ],
        app="mnist",
        team="data",
        parameters={"many": 100, **parameters},
    )


TRACE = [sample(1, 5), sample(2, 50), sample(3, 500), sample(4, "five"), sample(5, None, error="it hung")]


def test_what_strategies_want_becomes_letters_in_their_order() -> None:
    decided = strategies(10).decide(sample(3, 500))
    assert [(one.lane, one.kind, one.key) for one in decided.letters] == [
        ("enough", "call", "tracker/enough/c3"),
        ("many", "intent", "tracker/many/c3"),
        ("many", "call", "tracker/many/c3/2"),
    ]
    assert json.loads(decided.letters[0].body) == {"agent": "checker", "sensor": "look", "args": [3], "kwargs": {}}
    assert json.loads(decided.letters[1].body)["sample"]["value"] == 500


def test_a_rule_that_breaks_is_told_and_stops_no_other() -> None:
    decided = strategies(10).decide(sample(4, "five"))
    assert set(decided.errors) == {"enough", "many"}
    assert decided.letters == ()
    assert strategies(10).decide(sample(5, None, error="it hung")).errors == {}, "the sensor's error is told once"


def test_a_sample_of_no_strategy_wants_nothing() -> None:
    assert strategies(10).decide(sample(1, 1).model_copy(update={"sensor": "nobody"})).letters == ()


def test_the_same_trace_gives_the_same_timeline() -> None:
    assert replay(strategies(10), TRACE) == replay(strategies(10), TRACE)
    assert difference(replay(strategies(10), TRACE), replay(strategies(10), TRACE)) == []


def test_a_timeline_tells_what_each_strategy_wanted_and_when() -> None:
    timeline = replay(strategies(10), TRACE[:3])
    told = [(moment.at, moment.strategy, moment.wants) for moment in timeline if moment.held]
    assert told[:2] == [(1002.0, "enough", ("checker.look(3)",)), (1003.0, "enough", ("checker.look(3)",))]
    assert told[2][1] == "many"
    assert told[2][2][0].startswith("run_workflow(")


def test_a_changed_rule_shows_as_a_difference() -> None:
    found = difference(replay(strategies(10), TRACE), replay(strategies(100), TRACE))
    assert [str(one) for one in found] == ["~ 1002.000 enough: checker.look(3) -> nothing"]


def test_a_new_strategy_shows_as_added_and_one_that_is_gone_as_removed() -> None:
    fewer = Strategies(
        [Strategy(name="enough", when="count", if_=lambda n: n >= 10, then=call("checker", "look", 3))],
        app="mnist",
        team="data",
        parameters={},
    )
    one = TRACE[2:3]
    before, after = replay(strategies(10), one), replay(fewer, one)
    assert [found.kind for found in difference(before, after)] == ["removed"]
    assert [found.kind for found in difference(after, before)] == ["added"]
