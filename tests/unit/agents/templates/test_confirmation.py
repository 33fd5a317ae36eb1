"""Which looks are alarms: one in a hundred finds drift where there is none, and the agents look for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scanflow_agents.templates.confirmation import evaluate_detection
from tests.unit.agents.templates.fakes import LoopHarness

DEFAULTS: dict[str, Any] = {"confirm": (2, 3), "sure_below": 1e-4, "min_effect": 0.05}


def column(effect: float) -> dict[str, Any]:
    return {
        "name": "age",
        "test": "ks",
        "statistic": effect,
        "p": 0.001,
        "effect": effect,
        "reference": {},
        "current": {},
    }


@pytest.mark.parametrize(
    ("outputs", "before", "kind", "why"),
    [
        ({"drifted": 0}, [True, True], "none", ""),
        ({"drifted": 1, "p_value": 0.004}, [], "suspected", "1 of the last 3 checks found drift, and 2 are required"),
        ({"drifted": 1, "p_value": 0.004}, [False, True], "found", "2 of the last 3 checks"),
        ({"drifted": 1}, [False, False, True], "suspected", "1 of the last 3 checks"),
        ({"drifted": 1, "p_value": 1e-9}, [], "found", "p = 1e-09 needs no confirmation"),
        ({"drifted": 1, "p_value": 1e-9, "columns": [column(0.02)]}, [True], "suspected", "0.02 in age, is below 0.05"),
        ({"drifted": 1, "p_value": 1e-9, "columns": [column(0.02), column(0.3)]}, [], "found", "no confirmation"),
    ],
)
def test_a_look_is_an_alarm_when_it_is_sure_or_confirmed(
    outputs: dict[str, Any], before: list[bool], kind: str, why: str
) -> None:
    verdict = evaluate_detection(outputs, before, **DEFAULTS)
    assert (verdict.kind, why in verdict.why) == (kind, True)


def test_a_thousand_looks_at_data_without_drift_raise_few_alarms() -> None:
    generator = np.random.default_rng(0)
    alarms, plain, before = 0, 0, list[bool]()
    for p in generator.random(1000):
        verdict = evaluate_detection({"drifted": p <= 0.01, "p_value": float(p)}, before, **DEFAULTS)
        before = [] if verdict.kind == "found" else [verdict.counts, *before]
        alarms, plain = alarms + (verdict.kind == "found"), plain + (p <= 0.01)
    assert (int(plain), alarms) == (11, 0)


def test_the_checker_asks_for_labels_once_drift_is_confirmed_and_says_why(harness: LoopHarness) -> None:
    run_id = harness.log_predictions(1000)
    for number, p in enumerate((0.004, 0.5, 0.003, 0.002), start=1):
        harness.end_detection(
            f"run-{number}", [f"{run_id}:{number}"], run_ids=[run_id], drifted=int(p < 0.01), p_value=p,
            columns=[column(0.3)] if p < 0.01 else [],
        )  # fmt: skip
        harness.fire("checker", "detection_ended")

    events = [event for event in harness.control_plane.events if event.type.startswith("drift.")]
    assert [event.type.removeprefix("drift.") for event in events] == ["suspected", "none", "found", "suspected"]
    assert events[2].data["why"] == "2 of the last 3 checks"
    assert events[2].data["columns"] == [column(0.3)]
    assert [label["id"] for label in harness.control_plane.labels("mnist", state="wanted")] == [f"{run_id}:3"]
