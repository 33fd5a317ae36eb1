"""Records survive the wire, and refuse what does not."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from scanflow.agent.agent_records import Action, Decision, Event, Guard, Intent, PrimitiveCall, Sample
from tests.unit.app.app_builders import plain_values, texts

M = TypeVar("M", bound=BaseModel)

times = st.floats(0, 4e9)
mappings = st.dictionaries(texts, plain_values, max_size=3)
samples = st.builds(
    Sample, id=texts, agent=texts, sensor=texts, at=times, value=plain_values, cause=texts, error=st.none() | texts
)
intents = st.builds(
    Intent,
    id=texts,
    app=texts,
    team=texts,
    agent=texts,
    strategy=texts,
    primitive=texts,
    arguments=mappings,
    target=texts,
    fields=st.lists(texts, max_size=3).map(tuple),
    autonomy=st.sampled_from(["observe", "suggest", "approve", "auto"]),
    budget=st.none() | st.integers(1, 9),
    guard=st.none() | st.builds(Guard, metric=texts, worse=st.sampled_from(["higher", "lower"]), by=times),
    sample=st.none() | samples,
    key=texts,
    at=times,
)
decisions = st.builds(
    Decision, intent=texts, verdict=st.sampled_from(["act", "refuse", "queue"]), reason=texts, at=times
)
actions = st.builds(
    Action,
    id=texts,
    intent=intents,
    state=st.sampled_from(["pending", "lost"]),
    decision=decisions,
    began=st.none() | times,
    ended=st.none() | times,
    result=plain_values,
    inverse=st.none() | st.builds(PrimitiveCall, primitive=texts, arguments=mappings),
)
events = st.builds(Event, id=st.integers(0, 2**53), at=times, type=texts, app=texts, subject=texts, data=mappings)


@given(st.one_of(samples, intents, decisions, actions, events))
def test_a_record_comes_back_from_json_as_it_was(record: BaseModel) -> None:
    assert type(record).model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, [float("-inf")]], {"a": float("nan")}])
def test_a_number_that_json_has_no_word_for_is_refused_and_not_made_null(value: Any) -> None:
    with pytest.raises(ValidationError, match="should be a finite number"):
        Sample(id="s", agent="a", sensor="n", at=1.0, value=value, cause="c")


def test_a_record_cannot_be_changed_and_has_no_other_fields() -> None:
    guard = Guard(metric="service.digits.errors")
    with pytest.raises(ValidationError, match="frozen"):
        guard.by = 2.0  # type: ignore[misc]  # which is the point
    with pytest.raises(ValidationError, match="Extra inputs"):
        Guard.model_validate({"metric": "m", "better": "higher"})
