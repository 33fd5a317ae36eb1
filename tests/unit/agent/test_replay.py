"""Strategies over recorded samples: the same trace gives the same timeline, another rule a difference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.agent import Strategy, call
from scanflow.agent import primitives as do
from scanflow.agent.actions import Call
from scanflow.agent.agent_records import JSON, Intent, Sample
from scanflow.agent.decide import DecisionContext, Evaluator
from scanflow.agent.replay import StrategyEvaluation, Trace, build_trace, compare_moments, replay
from scanflow.errors import InvalidError
from tests.unit.agent.agent_builders import sample as made


def sample(number: int, value: JSON, **fields: Any) -> Sample:
    return made(value, id=f"s{number}", at=1000.0 + number, cause=f"c{number}", **fields)


def strategies(least: int = 10, *, autonomy: Any = "auto", often: int = 3, many: JSON = 100) -> Evaluator:
    return Evaluator(
        [
            Strategy(
                name="enough", when="count", if_=lambda n: n >= least, then=call("checker", "look", often, b=1, a=2)
            ),
            Strategy(
                name="many",
                when="count",
                if_=lambda n, parameters: n >= parameters["many"],
                then=[do.run_workflow("training", epochs=2, rate=0.5), call("planner", "plan")],
                autonomy=autonomy,
            ),
            Strategy(name="elsewhere", when="other", then=do.run_workflow("training")),
        ],
        app="mnist",
        team="data",
        parameters={"many": many},
    )


TRACE = [sample(1, 5), sample(2, 50), sample(3, 500), sample(4, "five"), sample(5, None, error="it hung")]


def journal(judges: Evaluator, samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    for sample in samples:
        yield entry("sample", sample.sensor, sample.model_dump(mode="json"))
        evaluations = judges.evaluate(sample)
        for each in evaluations:
            if each.error is not None and sample.error is None:
                yield entry(
                    "error", each.strategy, {"strategy": each.strategy, "sample": sample.id, "error": each.error}
                )
        for each in evaluations:
            for want in each.actions:
                if isinstance(want, Intent):
                    yield entry("intent", each.strategy, want.model_dump(mode="json"))
                    yield entry("decision", each.strategy, {"key": want.key, "answer": {"verdict": "refuse"}})
                elif isinstance(want, Call):
                    body = {"agent": want.agent, "sensor": want.sensor, **want.payload()}
                    yield entry("call", each.strategy, body)
        yield entry("missed", sample.sensor, {"reason": "late", "count": 1})


def entry(kind: str, subject: str, body: Any) -> dict[str, Any]:
    return {"id": 1, "at": 0.0, "kind": kind, "subject": subject, "body": json.loads(json.dumps(body))}


def test_a_timeline_tells_what_each_strategy_wanted_and_when() -> None:
    timeline = replay(strategies(), TRACE)
    wants = [(moment.at, moment.strategy, moment.actions) for moment in timeline if moment.held]
    looked = "checker.look(3, a=2, b=1)"
    trained = 'run_workflow(workflow="training", parameters={"epochs": 2, "rate": 0.5})'
    assert wants == [
        (1002.0, "enough", (looked,)),
        (1003.0, "enough", (looked,)),
        (1003.0, "many", (trained, "planner.plan()")),
    ]
    assert [moment.outcome for moment in timeline[:2]] == ["nothing", "nothing"]
    assert "failed (Strategy 'enough': TypeError" in timeline[6].outcome
    assert [(evaluation.error, evaluation.sensor_error) for evaluation in timeline[-2:]] == [
        (None, "it hung"),
        (None, "it hung"),
    ]


def test_what_was_decided_then_is_found_in_the_journal() -> None:
    trace = build_trace(journal(strategies(), TRACE))
    assert list(trace.samples) == TRACE
    assert [(moment.sample, moment.strategy, moment.verdicts) for moment in trace.moments] == [
        ("s2", "enough", ()),
        ("s3", "enough", ()),
        ("s3", "many", ("refuse",)),
        ("s4", "enough", ()),
        ("s4", "many", ()),
    ]
    assert compare_moments(trace.moments, replay(strategies(), trace.samples)) == []


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (strategies(100), ["- 1002.000 enough: checker.look(3, a=2, b=1) -> nothing"]),
        (strategies(2), ["+ 1001.000 enough: nothing -> checker.look(3, a=2, b=1)"]),
        (strategies(100, many=50), ["- 1002.000 enough: ", "+ 1002.000 many: nothing -> run_workflow("]),
        (
            strategies(often=4),
            [f"~ {at}.000 enough: checker.look(3, a=2, b=1) -> checker.look(4, a=2, b=1)" for at in (1002, 1003)],
        ),
        (strategies(autonomy="approve"), ["~ 1003.000 many: run_workflow("]),
    ],
)
def test_a_changed_rule_shows_as_a_difference(now: Evaluator, message: list[str]) -> None:
    trace = build_trace(journal(strategies(), TRACE))
    lines = [str(difference) for difference in compare_moments(trace.moments, replay(now, trace.samples))]
    assert len(lines) == len(message)
    assert all(text.startswith(begin) for text, begin in zip(lines, message, strict=True)), lines


def test_a_rule_that_breaks_now_and_one_that_breaks_no_more_are_differences() -> None:
    broken = strategies(many="many")
    trace = build_trace(journal(strategies(), TRACE[:3]))
    differences = compare_moments(trace.moments, replay(broken, trace.samples))
    assert [(difference.kind, difference.at, difference.strategy) for difference in differences] == [
        ("added", 1001.0, "many"),
        ("added", 1002.0, "many"),
        ("changed", 1003.0, "many"),
    ]
    assert {
        difference.kind for difference in compare_moments(replay(broken, TRACE[:2]), replay(strategies(), TRACE[:2]))
    } == {"removed"}


def test_a_new_strategy_and_one_that_is_gone_are_differences_where_they_want_something() -> None:
    fewer = Evaluator(
        [Strategy(name="enough", when="count", if_=lambda n: n >= 10, then=call("checker", "look", 3, a=2, b=1))],
        app="mnist",
        team="data",
        parameters={},
    )
    before, after = replay(strategies(), TRACE[:3]), replay(fewer, TRACE[:3])
    assert [
        (difference.symbol, difference.strategy, difference.at) for difference in compare_moments(before, after)
    ] == [("-", "many", 1003.0)]
    assert [
        (difference.symbol, difference.strategy, difference.at) for difference in compare_moments(after, before)
    ] == [("+", "many", 1003.0)]


def test_a_rule_that_reads_the_time_is_given_that_of_the_sample() -> None:
    def late(n: int, situation: DecisionContext) -> bool:
        return n > 0 and situation.at >= 1002.0

    judges = Evaluator(
        [Strategy(name="late", when="count", if_=late, then=do.run_workflow("training"))],
        app="a",
        team="t",
        parameters={},
    )
    assert [moment.held for moment in replay(judges, TRACE[:3])] == [False, True, True]


def test_a_trace_is_cut_to_a_time_and_to_its_last_samples() -> None:
    trace = build_trace(journal(strategies(), TRACE))
    assert [sample.id for sample in trace.cut(since=1003.0).samples] == ["s3", "s4", "s5"]
    last = trace.cut(since=1001.5, last=3)
    assert [sample.id for sample in last.samples] == ["s3", "s4", "s5"]
    assert {moment.sample for moment in last.moments} == {"s3", "s4"}
    assert trace.cut(last=100) == trace
    assert trace.cut(since=5000.0) == Trace()


def test_what_is_left_of_a_sample_that_the_journal_forgot_counts_for_nothing() -> None:
    entries = list(journal(strategies(), TRACE[2:]))
    assert entries[0]["kind"] == "sample"
    trace = build_trace(entries[1:])
    assert [sample.id for sample in trace.samples] == ["s4", "s5"]
    assert {moment.sample for moment in trace.moments} == {"s4"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "sample"},
        {"kind": "sample", "subject": "count", "body": {"id": "s1"}},
        {"kind": "call", "subject": "enough", "body": {"agent": "Not A Name", "sensor": "x", "args": [], "kwargs": {}}},
        {"kind": "decision", "subject": "enough", "body": None},
    ],
)
def test_an_entry_that_cannot_be_read_is_named_by_its_number(wrong: dict[str, Any]) -> None:
    good = entry("sample", "count", TRACE[0].model_dump(mode="json"))
    with pytest.raises(InvalidError, match="The entry 2 of the journal cannot be read"):
        build_trace([good, wrong])


VALUES = st.lists(st.one_of(st.integers(-5, 200), st.text(max_size=3), st.none()), max_size=20)


@given(values=VALUES, then=st.integers(-5, 200), now=st.integers(-5, 200))
def test_a_threshold_makes_a_difference_for_exactly_what_lies_between(values: list[Any], then: int, now: int) -> None:
    samples = [sample(number, value) for number, value in enumerate(values)]
    trace = build_trace(journal(strategies(then), samples))
    assert compare_moments(trace.moments, replay(strategies(then), samples)) == []
    differences = compare_moments(trace.moments, replay(strategies(now), samples))
    numbers = [(entry.id, entry.value) for entry in samples if isinstance(entry.value, int)]
    assert [difference.sample for difference in differences] == [
        id for id, value in numbers if (value >= then) != (value >= now)
    ]
    assert {difference.kind for difference in differences} <= {"removed" if now > then else "added"}
    assert all(isinstance(moment, StrategyEvaluation) for moment in trace.moments)
