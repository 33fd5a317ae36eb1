"""The filter language: what is written as MLflow reads it is read back as the same."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scanflow.errors import UnsupportedError
from scanflow.knowledge.filters import Clause, matches, parse_filter, to_mlflow

keys = st.text(alphabet=st.characters(blacklist_characters="`", blacklist_categories=["Cs"]), min_size=1, max_size=20)
texts = st.text(alphabet="ab '\"0.;ü%\\\n-_", max_size=10).filter(lambda text: not ("'" in text and '"' in text))
numbers = st.floats(allow_nan=False, allow_infinity=False)
text_clauses = st.builds(
    Clause, kind=st.sampled_from(["tags", "params"]), key=keys, comparison=st.sampled_from(["=", "!="]), value=texts
)
number_clauses = st.builds(
    Clause,
    kind=st.just("metrics"),
    key=keys,
    comparison=st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
    value=numbers,
)
clauses = st.lists(text_clauses | number_clauses, max_size=4).map(tuple)


def _as_text(clause: Clause) -> str:
    quote = '"' if "'" in str(clause.value) else "'"
    value = f"{quote}{clause.value}{quote}" if isinstance(clause.value, str) else repr(clause.value)
    return f"{clause.kind}.`{clause.key}` {clause.comparison} {value}"


@given(clauses)
def test_what_is_written_is_read_back(given_clauses: tuple[Clause, ...]) -> None:
    assert parse_filter(" and ".join(map(_as_text, given_clauses))) == given_clauses


@given(clauses)
def test_what_mlflow_is_sent_is_part_of_the_query(given_clauses: tuple[Clause, ...]) -> None:
    sent = parse_filter(to_mlflow(given_clauses))
    assert all(clause in given_clauses for clause in sent)


@given(st.text(max_size=60))
def test_any_other_text_is_refused_and_never_crashes(text: str) -> None:
    assume(not text.strip().startswith(("tag", "param", "metric")))
    assume(text.strip())
    with pytest.raises(UnsupportedError, match="Write clauses such as"):
        parse_filter(text)


def test_a_refusal_points_at_the_place() -> None:
    with pytest.raises(UnsupportedError, match=r"at \"or tags.b = '1'\": clauses are joined by 'and'"):
        parse_filter("tags.a = '1' or tags.b = '1'")


def test_a_run_without_the_key_matches_nothing_on_it() -> None:
    for text in ("tags.a != '1'", "params.a != '1'", "metrics.a != 1"):
        assert not matches(parse_filter(text), tags={}, params={}, metrics={})
