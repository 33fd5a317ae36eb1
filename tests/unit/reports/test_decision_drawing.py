"""An agent's decisions over its metrics: numbers are lines, errors are gaps and marks, actions run through all."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from typing import Any

from scanflow.agent.agent_records import Action, Sample
from scanflow.agent.replay import StrategyEvaluation
from scanflow.drawing.decision_chart import draw_decisions
from scanflow.drawing.svg import COLOURS
from scanflow.reports.decision_drawing import collect_metrics, draw_agent_decisions
from tests.unit.server.arbiter.intent_builders import action, intent

SVG = "{http://www.w3.org/2000/svg}"
BEGIN = 1_760_000_000.0


def sample(at: float, sensor: str, value: Any, error: str | None = None) -> Sample:
    return Sample(
        id=f"{sensor}-{at:g}",
        agent="planner",
        sensor=sensor,
        at=BEGIN + at,
        value=value,
        cause="interval:x",
        error=error,
    )


def act(at: float, state: str, rule: str, **changes: Any) -> Action:
    return action(intent(f"i{at:g}", rule=rule), began=BEGIN + at, state=state, **changes)


SAMPLES = [
    *(sample(at, "count", at * 100) for at in range(10)),
    *(sample(at + 0.5, "load", {"rps": 20.0 + at, "name": "x", "busy": True}) for at in range(4)),
    sample(4.5, "load", None, "no answer"),
    sample(5.5, "load", {"rps": 30.0, "name": "x"}),
    sample(6.5, "on_failure", {"run": "r1"}),
]


def list_titles(drawn: str) -> list[str]:
    return [title.text or "" for title in ET.fromstring(drawn).iter(f"{SVG}title")]


def test_numbers_of_samples_are_metrics_and_an_error_is_a_gap() -> None:
    metrics = collect_metrics(SAMPLES)
    assert list(metrics) == ["count", "load.rps"], "a truth is no number, and text is none"
    assert [math.isnan(point.value) for point in metrics["load.rps"]] == [False] * 4 + [True, False]
    assert metrics["count"][3].words == "08:53:23 count = 300"


def test_of_many_metrics_those_that_vary_are_drawn() -> None:
    constant = {f"c{at}": 1 for at in range(9)}
    samples = [sample(at, "all", {**constant, "varies": at}) for at in range(3)]
    metrics = collect_metrics(samples)
    assert len(metrics) == 6
    assert "all.varies" in metrics


def test_actions_run_through_all_panels_with_their_state_and_link() -> None:
    actions = [
        act(5, "refused", "load > 30, load=31", verdict="refuse", repeats=3),
        act(2, "succeeded", "count >= 1000, count=1004"),
    ]
    drawn = draw_agent_decisions(SAMPLES, actions, address="/actions/{}".format)
    links = list(ET.fromstring(drawn).iter(f"{SVG}a"))
    assert [link.get("href") for link in links] == ["/actions/i2", "/actions/i5"]
    colours = [next(link.iter(f"{SVG}line")).get("stroke") for link in links]
    assert colours == [COLOURS["green"][0], COLOURS["violet"][0]]
    texts = [text.text for text in ET.fromstring(drawn).iter(f"{SVG}text")]
    assert {"✓", "■"} <= set(texts)
    refused = links[1].findtext(f"{SVG}title") or ""
    assert "refuse, refused" in refused
    assert "It was so.; the same 3 times more" in refused
    before = act(5, "refused", "load > 30", verdict="refuse", repeats=3, repeated=BEGIN)
    assert any(
        "; requested before that, the same 3 times more" in title
        for title in list_titles(draw_agent_decisions([], [before]))
    )


def test_what_rules_compare_with_is_a_threshold_of_that_metric_alone() -> None:
    actions = [act(2, "succeeded", "count >= 1_000 and not busy, count=1004"), act(3, "failed", "rps > 30.5, rps=31")]
    titles = list_titles(draw_agent_decisions(SAMPLES, actions))
    assert [title for title in titles if title[:5] in ("count", "rps >")] == ["count >= 1_000", "rps > 30.5"]
    assert "count >= 1_000" not in list_titles(draw_agent_decisions(SAMPLES[10:], actions[:1]))


def test_a_field_that_a_rule_compares_has_its_threshold_and_no_other_field_has() -> None:
    titles = list_titles(draw_agent_decisions(SAMPLES, [act(3, "failed", "load.rps > 30.5 and load.busy > 2")]))
    assert [title for title in titles if title.startswith(("load.", "count.")) and " > " in title] == [
        "load.rps > 30.5"
    ]
    titles = list_titles(draw_agent_decisions(SAMPLES, [act(3, "failed", "count.value > 900")]))
    assert [title for title in titles if title.startswith(("load.", "count.")) and " > " in title] == [
        "count.value > 900"
    ]


def test_failures_and_what_has_no_number_are_in_lanes_with_the_strategies() -> None:
    moments = [
        StrategyEvaluation(
            at=BEGIN + at, sample="s", sensor="count", strategy="retrain", held=held, error=error, verdicts=("act",)
        )
        for at, held, error in ((1, True, None), (2, False, None), (3, False, "KeyError: 'n'"))
    ]
    drawn = draw_agent_decisions(SAMPLES, [], moments)
    names = [text.text for text in ET.fromstring(drawn).iter(f"{SVG}text") if text.get("font-weight") == "600"]
    assert names == ["count", "load.rps", "load", "on_failure", "retrain"]
    titles = list_titles(drawn)
    assert "08:53:24 load failed: no answer" in titles
    assert "08:53:26 on_failure, by interval: {'run': 'r1'}" in titles
    assert [title for title in titles if "retrain" in title] == [
        "08:53:21 retrain: nothing; act",
        "08:53:23 retrain failed: KeyError: 'n'",
    ]


def test_actions_without_metrics_and_nothing_at_all_can_be_drawn() -> None:
    assert "✓" in draw_agent_decisions([], [act(1, "succeeded", "always")])
    assert ET.fromstring(draw_decisions({}, [])).get("role") == "img"
