"""Shares of the traffic and rules of promotion, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.backends.service_records import CanaryPolicy
from scanflow.errors import InvalidError
from scanflow_client.cli.services import parse_rule, parse_share


@pytest.mark.parametrize(
    ("text", "share"), [("10%", 0.1), (" 12.5 % ", 0.125), ("0.1", 0.1), ("0", 0), ("1", 1), ("100%", 1)]
)
def test_a_share_is_a_percentage_or_a_fraction(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@given(st.integers(0, 1000))
def test_every_tenth_of_a_percent_is_a_share(tenths: int) -> None:
    assert parse_share(f"{tenths / 10}%") == pytest.approx(tenths / 1000)


@pytest.mark.parametrize("text", ["", "ten", "-1%", "101%", "1.1.1", "10%%", "1e-3"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match=r"is not a share of the requests, from 0% to 100%. Write 10% or 0.1"):
        parse_share(text)


def test_a_forgotten_percent_sign_is_noticed() -> None:
    with pytest.raises(InvalidError, match="Did you mean '10%'"):
        parse_share("10")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("p95<=1.2x", CanaryPolicy(metric="p95", ratio=1.2, after_requests=500)),
        ("errors<=1x+0.01", CanaryPolicy(metric="errors", ratio=1, slack=0.01, after_requests=500)),
        (" mean <= 1.1 x + 0.005 ", CanaryPolicy(metric="mean", ratio=1.1, slack=0.005, after_requests=500)),
    ],
)
def test_a_rule_compares_with_the_current_version(text: str, rule: CanaryPolicy) -> None:
    assert parse_rule(text, after=500) == rule


def test_a_rule_may_have_to_be_met_in_a_time() -> None:
    assert parse_rule("p95<=2x", after=1, within_s=60).within_s == 60
    assert parse_rule("p95<=2x", after=1).within_s == CanaryPolicy().within_s


@pytest.mark.parametrize("text", ["", "p95", "p95<1.2x", "p95<=1.2", "p99<=1x", "p95<=x", "p95<=1x-1", "p95<=1x+"])
def test_what_is_no_rule_is_refused_with_some_that_are(text: str) -> None:
    with pytest.raises(InvalidError, match=r"cannot be read. Write 'p95<=1.2x'"):
        parse_rule(text, after=1)
