"""Verdicts of figures, from recorded measurements."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow_research.figure import Claim, Expectation, Figure, FigurePanel, Measurements, Round, Verdict, evaluate

NOISE = (0.99, 1.0, 1.01, 1.0)


def make_rounds(*ratios: float) -> Measurements:
    """Return rounds in which ``fine`` has so many times what ``coarse`` has."""
    return Measurements(
        rounds=tuple(Round(arms={"coarse": {"rate": 50.0}, "fine": {"rate": 50.0 * r}}) for r in ratios)
    )


def claim(expect: Expectation, *, least: float = 0.0) -> Claim:
    return Claim(
        statement="fine is better", metric="rate", arm="fine", base="coarse", expect=expect, published=1.3, least=least
    )


def compute_verdict(claims: list[Claim], rounds: Measurements) -> Verdict:
    return evaluate(
        Figure(name="f", source="Paper, Fig. 1", title="t", experiment="e", claims=tuple(claims)), rounds
    ).verdict


@pytest.mark.parametrize(
    ("expect", "ratio", "verdict"),
    [
        ("more", 1.3, "holds"),
        ("more", 1.0, "does not hold"),
        ("more", 0.8, "does not hold"),
        ("less", 0.8, "holds"),
        ("less", 1.0, "does not hold"),
        ("same", 1.0, "holds"),
        ("same", 1.09, "holds"),
        ("same", 1.3, "does not hold"),
    ],
)
def test_a_claim_holds_beyond_the_noise_of_the_rounds(expect: Expectation, ratio: float, verdict: Verdict) -> None:
    assert compute_verdict([claim(expect)], make_rounds(*(ratio * factor for factor in NOISE))) == verdict


def test_what_noise_hides_does_not_hold_as_more_and_holds_as_the_same() -> None:
    noisy = make_rounds(0.7, 1.6, 1.0, 1.3)
    assert compute_verdict([claim("more")], noisy) == "does not hold"
    assert compute_verdict([claim("same")], noisy) == "holds"


def test_at_least_looks_at_the_ratio_or_at_the_value_itself() -> None:
    rounds = make_rounds(*(1.75 * factor for factor in NOISE))
    value = Claim(statement="it answers 80 a second", metric="rate", arm="fine", expect="at least", least=80.0)
    assert compute_verdict([claim("at least", least=1.7), value], rounds) == "holds"
    assert compute_verdict([claim("at least", least=1.9)], rounds) == "does not hold"


def test_some_claims_that_hold_are_said_to_be_some() -> None:
    rounds = make_rounds(*(1.3 * factor for factor in NOISE))
    assert compute_verdict([claim("more"), claim("less")], rounds) == "holds in part"
    untested = Claim(statement="so it is with four nodes", untested="four nodes are needed")
    assert compute_verdict([claim("more"), untested], rounds) == "holds"


@pytest.mark.parametrize(
    ("rounds", "reason"),
    [
        (Measurements(problem="hpcc is not installed: apt-get install hpcc"), "hpcc is not installed"),
        (make_rounds(1.3), "one round"),
        (Measurements(rounds=(Round(arms={"coarse": {"rate": 1.0}}),)), "fine or coarse was not measured"),
    ],
)
def test_what_was_not_measured_cannot_be_tested_and_says_why(rounds: Measurements, reason: str) -> None:
    figure = Figure(name="f", source="Paper, Fig. 1", title="t", experiment="e", claims=(claim("more"),))
    result = evaluate(figure, rounds)
    assert result.verdict == "cannot be tested here"
    assert reason in result.reason


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=12))
def test_more_and_less_exclude_each_other(ratios: list[float]) -> None:
    held = [expect for expect in ("more", "less") if compute_verdict([claim(expect)], make_rounds(*ratios)) == "holds"]
    assert len(held) <= 1


def test_panels_are_drawn_without_a_need_for_colour() -> None:
    from scanflow_research.plot import draw_figure

    arms = {"coarse": {"rate": 50.0}, "fine": {"rate": 70.0}}
    curves = {"delay_s": {"coarse": [0.1, 0.4], "fine": [0.1, 0.2]}}
    panels = (
        FigurePanel(metric="rate", label="requests/s"),
        FigurePanel(metric="delay_s", label="delay, s", curve=True),
        FigurePanel(metric="absent", label="nothing has it"),
    )
    figure = Figure(
        name="f", source="Paper, Fig. 1", title="a <b>", experiment="e", claims=(claim("more"),), panels=panels
    )
    drawn = draw_figure(evaluate(figure, Measurements(rounds=(Round(arms=arms, curves=curves),))))
    ET.fromstring(drawn)
    assert drawn.count("url(#hatch)") == 2  # the source's bar, and its legend
    assert 'stroke-dasharray="7 4"' in drawn
    assert "nothing has it" not in drawn
    assert draw_figure(evaluate(figure, Measurements(problem="no room"))) == ""
