"""The template that follows a stream: what it reads of recorded predictions, and what it has done once they change."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.agent.actions import Call
from scanflow.agent.agent_records import Intent
from scanflow.errors import InvalidError
from scanflow_agents.templates.stream import extract_numbers
from tests.unit.agents.templates.fakes import LoopHarness, list_events


class Following:
    """The agent as it runs: what it has seen stays from look to look."""

    def __init__(self, harness: LoopHarness, **parameters: Any) -> None:
        harness.parameters["stream"] = parameters
        self.harness, self.generator = harness, np.random.default_rng(0)
        self.begin()

    def begin(self) -> None:
        """Start the agent, anew if it ran."""
        self.declared = self.harness.load("stream")

    def record_scores(self, middle: float, rows: int = 50) -> str:
        """Record predictions whose highest score is about that."""
        best = np.clip(self.generator.normal(middle, 0.05, size=rows), 0, 1)
        file = self.harness.folder / "p.npz"
        arrays: dict[str, Any] = {"input:age": np.arange(rows), "output:scores": np.stack([best, best / 9], axis=1)}
        np.savez(file, **arrays)
        return record_file(self.harness, file, rows)

    def look(self) -> Any:
        return self.harness.look(self.declared, "stream", "followed_stream")


def record_file(harness: LoopHarness, file: Path, rows: int) -> str:
    harness.control_plane.now += 5.0
    at = datetime.fromtimestamp(harness.control_plane.now, UTC)
    run = harness.tracker.log_run(
        "mnist",
        "data",
        name="predictions",
        metrics={"predictions": float(rows)},
        tags={"scanflow.kind": "predictions", "scanflow.service": "serve"},
        started_at=at,
        ended_at=at,
        artifacts=file,
    )
    harness.control_plane.now += 5.0
    return run.run_id


@pytest.mark.parametrize("detector", ["adwin", "page-hinkley", "kswin"])
def test_predictions_are_checked_as_soon_as_their_scores_fall(harness: LoopHarness, detector: str) -> None:
    following = Following(harness, detector=detector)
    for _ in range(8):
        following.record_scores(0.9)
        assert following.look()["changed"] is None
    low = [following.record_scores(0.6) for _ in range(3)]
    value = following.look()
    assert value["run_ids"][-1] in low
    [event] = list_events(harness, "stream.changed")
    assert event.data["before"] == pytest.approx(0.9, abs=0.07), "to where it is found"
    assert event.data["after"] == pytest.approx(0.6, abs=0.05)
    assert [look["changed"] for look in (following.look(), following.look())] == [None, None], "it is told once"


def test_the_checker_is_called_and_looks_for_drift(harness: LoopHarness) -> None:
    following = Following(harness)
    ids = [following.record_scores(middle) for middle in [0.9] * 6]
    assert harness.wants("stream", "followed_stream") == []
    ids.append(following.record_scores(0.5))
    called = harness.call("stream", "followed_stream")
    assert (called.agent, called.sensor, called.kwargs["run_ids"]) == ("checker", "check_predictions", ids)
    [detect] = harness.pass_on(called)
    assert isinstance(detect, Intent)
    assert detect.target == "workflow/detector"
    parameters = detect.arguments["parameters"]
    assert isinstance(parameters, dict)
    assert parameters["run_ids"] == ids
    assert isinstance(called, Call)


def test_an_agent_that_is_restarted_goes_on_where_it_was_and_tells_nothing_twice(harness: LoopHarness) -> None:
    following = Following(harness)
    for _ in range(6):
        following.record_scores(0.9)
    assert following.look()["numbers"] == 300
    following.begin()
    following.record_scores(0.5)
    assert following.look()["changed"] is not None, "what it had seen before is read again"
    following.begin()
    for _ in range(6):
        following.record_scores(0.5)
    assert following.look()["changed"] is None
    assert len(list_events(harness, "stream.changed")) == 1


def test_an_odd_file_is_left_out_and_keeps_no_other_waiting(harness: LoopHarness) -> None:
    following = Following(harness, column="age", checker="")
    arrays: dict[str, Any] = {"input:name": np.array([1, 2])}
    np.savez(harness.folder / "odd.npz", **arrays)
    record_file(harness, harness.folder / "odd.npz", 2)
    following.record_scores(0.9)
    value = following.look()
    assert (value["left_out"], value["numbers"]) == (1, 50)
    assert following.declared.strategies == ()


def test_a_column_is_read_in_the_order_that_predictions_came() -> None:
    arrays = {"input:a": np.array([[3.0], [np.nan], [1.0]]), "time": np.array([2.0, 1.0, 0.0])}
    assert extract_numbers(arrays, "a").tolist() == [1.0, 3.0]
    for wrong in ({}, {"input:a": np.zeros((2, 2))}, {"input:a": np.array(["x"])}, {"input:b": np.zeros(2)}):
        with pytest.raises(InvalidError, match="column 'a'"):
            extract_numbers(wrong, "a")
    both = {"output:p": np.array([[0.2, 0.8]]), "output:q": np.array([1.0])}
    with pytest.raises(InvalidError, match=r"outputs, of which one is needed for 'score': \['p', 'q'\]"):
        extract_numbers(both, "score")


def test_a_detector_that_is_not_there_is_refused_by_name(harness: LoopHarness) -> None:
    harness.parameters["stream"] = {"detector": "adwinn"}
    with pytest.raises(InvalidError, match=r"Agent 'stream': .*'adwinn'.*Did you mean 'adwin'"):
        harness.load("stream")
