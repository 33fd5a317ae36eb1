"""The server's events as a story: who did what, and which versions there were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scanflow.agent.agent_records import Event
from scanflow.reports.loop_events import collect_champions, collect_versions, parse_loop_event, select_loop_events
from scanflow.reports.page import render_report


def event(type: str, agent: str | None = "planner", *, at: float = 100.0, subject: str = "", **data: Any) -> Event:
    about = {} if agent is None else {"agent": agent}
    return Event(at=at, type=type, app="mnist", subject=subject, data={**about, **data})


def make_evaluation_event(
    version: int, old: float, new: float, *, champion: int | None = 1, better: bool = True
) -> Event:
    figures: dict[str, Any] = {
        "champion_metric": old,
        "challenger_metric": new,
        "metric": "accuracy",
        "run": "bold-fox-2",
    }
    return event(
        "model.judged", subject="model/mnist_cnn", version=version, champion=champion, better=better, **figures
    )


@pytest.mark.parametrize(
    ("happened", "kind", "text"),
    [
        (event("predictions.counted", "tracker", predictions=1200, new=1000), "predictions", "1,000 predictions"),
        (
            event("drift.found", "checker", anomalies=300, picked=100, predictions=1000, run="a-b-1"),
            "detection",
            "drift: 300 of 1,000 outliers; 100 samples selected for labelling",
        ),
        (
            event("drift.found", "checker", anomalies=160, picked=0, predictions=685, samples=520),
            "detection",
            "drift: 160 of 520 outliers",
        ),
        (event("drift.found", "checker", anomalies=3, picked=0, predictions=None), "detection", "drift: 3 outliers"),
        (event("drift.none", "checker", predictions=1000), "look", "no drift in 1,000 predictions"),
        (
            event("drift.unknown", "checker", tries=5, files=1, error="detect: KeyError: 'age'"),
            "look",
            "drift unknown: 5 detections of the same predictions failed",
        ),
        (event("labels.given", None, count=100, by="ada"), "label", "100 labels"),
        (event("labels.given", None, count=1, by="ada"), "label", "1 label"),
        (make_evaluation_event(2, 0.9, 0.93), "gate", "V2 0.930 > 0.900: better"),
        (make_evaluation_event(2, 0.9, 0.9, better=False), "gate", "V2 0.900 ≤ 0.900: not better"),
        (event("model.promoted", "executor", version=2, action="abc"), "promotion", "V2 is the champion"),
        (event("model.rejected", "executor", version=2, why="it fails"), "gate", "V2 rejected"),
        (
            event("intent", subject="workflow/training", verdict="act", primitive="run_workflow"),
            "call",
            "runs training",
        ),
        (
            event(
                "intent", subject="workflow/training", verdict="act", primitive="run_workflow", strategy="retrain_model"
            ),
            "retrain",
            "runs training",
        ),
        (
            event("intent", subject="service/serve", verdict="refuse", primitive="update_workflow_replica"),
            "other",
            "rescales serve: refuse",
        ),
        (
            event("action.reverted", subject="service/serve", primitive="upgrade_workflow"),
            "revert",
            "changes the model of serve: reverted",
        ),
        (event("action.failed", subject="run/x", primitive="pause_run"), "failure", "pause run x: failed"),
    ],
)
def test_each_thing_has_its_kind_and_its_text(happened: Event, kind: str, text: str) -> None:
    loop_event = parse_loop_event(happened)
    assert loop_event is not None
    assert (loop_event.kind, loop_event.text, loop_event.at, loop_event.agent) == (
        kind,
        text,
        100.0,
        happened.data.get("agent", "labels"),
    )


@pytest.mark.parametrize(
    "happened",
    [
        event("run.succeeded", None),
        event("sample"),
        event("intent", verdict="duplicate"),
        event("drift.found", None, anomalies=3),
        event("model.judged", version="two"),
        event("model.judged", champion_metric="high", challenger_metric=None),
        event("labels.given", count="many"),
    ],
)
def test_what_is_no_part_of_it_is_left_out_and_no_odd_event_breaks_it(happened: Event) -> None:
    assert parse_loop_event(happened) is None
    assert collect_versions([happened]) == []


def test_versions_have_the_figure_of_their_first_comparison_and_who_was_promoted() -> None:
    versions = collect_versions(
        [
            make_evaluation_event(2, 0.90, 0.93),
            event("model.promoted", "executor", subject="model/mnist_cnn", version=2),
            make_evaluation_event(3, 0.92, 0.91, champion=2, better=False),
            make_evaluation_event(4, 0.92, 0.95, champion=2),
            event("model.promoted", "executor", subject="model/mnist_cnn", version=4),
        ]
    )
    assert [(version.version, version.accuracy, version.promoted, version.champion) for version in versions] == [
        (1, 0.90, True, False),
        (2, 0.93, True, False),
        (3, 0.91, False, False),
        (4, 0.95, True, True),
    ]


def make_move_event(type: str, version: int, *, at: float = 100.0, **data: Any) -> Event:
    return event(type, "executor", at=at, subject="model/mnist_cnn", version=version, **data)


def later(event: Event, at: float) -> Event:
    return event.model_copy(update={"at": at})


FIRST = later(make_evaluation_event(2, 0.90, 0.93), 100)
PROMOTED = make_move_event("model.promoted", 2, before=1, at=110)


@pytest.mark.parametrize(
    ("happened", "uses"),
    [
        pytest.param(
            [FIRST, PROMOTED, later(make_evaluation_event(3, 0.90, 0.89, champion=1, better=False), 150)],
            {1: [(100, 110), (150, None)], 2: [(110, 150)], 3: []},
            id="the one that a comparison names, also where somebody moved the alias",
        ),
        pytest.param(
            [FIRST, PROMOTED, make_move_event("model.rejected", 2, why="it fails", at=130)],
            {1: [(100, 110), (130, None)], 2: [(110, 130)]},
            id="the one before, once a champion is rejected",
        ),
        pytest.param(
            [
                FIRST,
                PROMOTED,
                make_move_event("model.promoted", 2, before=2, at=120),
                make_move_event("model.rejected", 2, at=130),
            ],
            {1: [(100, 110), (130, None)], 2: [(110, 130)]},
            id="the one before its first promotion, where a rejected one was promoted again",
        ),
        pytest.param(
            [
                later(make_evaluation_event(2, 0.90, 0.93, champion=None), 100),
                make_move_event("model.promoted", 2, before=None, at=110),
                make_move_event("model.rejected", 2, at=120),
            ],
            {2: [(110, 120)]},
            id="none, after a rejection of one that had none before",
        ),
        pytest.param(
            [FIRST, make_move_event("model.rejected", 2, at=120)],
            {1: [(100, None)], 2: []},
            id="the same, where another is rejected",
        ),
        pytest.param(
            [FIRST, PROMOTED, later(make_evaluation_event(3, 0.93, 0.9, champion=None), 120)],
            {1: [(100, 110)], 2: [(110, None)], 3: []},
            id="the same, where a comparison names none",
        ),
    ],
)
def test_who_is_the_champion(happened: list[Event], uses: dict[int, list[tuple[float, float | None]]]) -> None:
    versions = collect_versions(happened)
    assert {entry.version: [(use.began, use.ended) for use in entry.uses] for entry in versions} == uses
    assert [entry.version for entry in versions if entry.champion] == [
        version for version, times in uses.items() if times and times[-1][1] is None
    ]


COMPARISONS = st.tuples(st.floats(0, 100), st.floats(0, 30))
"""When a comparison begins, and how many seconds it takes."""


@given(promotions=st.lists(st.floats(1, 100), min_size=1, max_size=5, unique=True), compared=st.lists(COMPARISONS))
@example(promotions=[10.0], compared=[(9.0, 5.0)])
@example(promotions=[10.0, 20.0], compared=[(9.0, 5.0), (9.5, 12.0), (15.0, 1.0), (21.0, 1.0)])
def test_a_comparison_says_who_was_the_champion_when_it_began(
    promotions: list[float], compared: list[tuple[float, float]]
) -> None:
    """The oracle: who was promoted when; a comparison names the champion of when it began, and is reported later."""
    at = [0.0, *sorted(promotions)]
    events = [
        event("model.promoted", "executor", at=when, version=number, before=number - 1)
        for number, when in enumerate(at[1:], start=2)
    ]
    for began, took in compared:
        champion = max(number for number, when in enumerate(at, start=1) if when <= began)
        judged = make_evaluation_event(9, 0.8, 0.9, champion=champion)
        events.append(judged.model_copy(update={"at": began + took, "data": {**judged.data, "began": began}}))
    changes = collect_champions(sorted(events, key=lambda each: each.at))
    assert changes[-len(promotions) :] == [(when, number) for number, when in enumerate(at[1:], start=2)]
    assert {number for _, number in changes[: -len(promotions)]} <= {1}


def test_events_become_a_page_and_what_was_reported_twice_or_of_another_application_counts_once() -> None:
    detection = event("drift.found", "checker", anomalies=300, picked=150, predictions=1000, run="a-b-1")
    happened = [
        event("predictions.counted", "tracker", new=1000, predictions=1000),
        detection,
        detection.model_copy(update={"id": 9, "at": 105.0}),
        detection.model_copy(update={"app": "other"}),
        event("drift.found", "checker", anomalies=80, picked=50, predictions=1000, run="a-b-2"),
        event("drift.found", "checker", anomalies=3, predictions=1000, run="a-b-3"),
        make_evaluation_event(2, 0.9, 0.93),
    ]
    events = select_loop_events(happened, app="mnist")
    assert len(events) == 5
    assert len(select_loop_events([event("labels.given", count=1, by="ada")] * 2)) == 2
    page = render_report(title="A <loop>", events=events, versions=collect_versions(happened))
    assert "<dt>samples selected</dt><dd>200</dd>" in page
    assert "<dt>anomalies</dt><dd>383</dd>" in page
    assert "1,000 predictions" in page
    assert "A &lt;loop&gt;" in page


def test_a_model_of_another_name_has_versions_of_its_own() -> None:
    other = make_evaluation_event(7, 0.1, 0.2, champion=6).model_copy(update={"subject": "model/other"})
    assert [
        version.version for version in collect_versions([make_evaluation_event(2, 0.9, 0.93), other], model="mnist_cnn")
    ] == [1, 2]
