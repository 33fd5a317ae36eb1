"""A replay as tables and lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scanflow.agent.replay import Difference, Moment, Trace
from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import clock, counted, shorten

MAX_ROWS = 200
"""The newest moments of a timeline that are printed."""


def replay_screen(
    trace: Trace, moments: Sequence[Moment], strategies: Sequence[str], differences: Sequence[Difference]
) -> Screen:
    """Return a timeline, the decisions that differ from the recorded ones, and a summary."""
    rows = _moment_rows(moments, trace)
    screen: list[str | Table] = []
    if len(rows) > MAX_ROWS:
        screen.append(f"The last {MAX_ROWS} of {len(rows):,} moments; all of them: --json")
    if rows:
        screen += [Table(("when", "sensor", "strategy", "rule", "requests", "recorded"), rows[-MAX_ROWS:]), ""]
    if differences:
        changed = [
            (one.symbol, clock(one.at), one.strategy, shorten(one.before), shorten(one.after)) for one in differences
        ]
        screen += [Table(("", "when", "strategy", "recorded", "now"), changed), ""]
    return [*screen, _summary(len(trace.samples), strategies, differences)]


def replay_json(
    app: str, agent: str, trace: Trace, moments: Sequence[Moment], differences: Sequence[Difference]
) -> dict[str, Any]:
    """Return a replay as JSON can hold it."""
    return {
        "app": app,
        "agent": agent,
        "samples": len(trace.samples),
        "moments": [one.model_dump(mode="json", exclude={"answers"}) for one in moments],
        "recorded": [one.model_dump(mode="json") for one in trace.moments],
        "differences": [one.model_dump(mode="json") | {"sign": one.symbol} for one in differences],
    }


def _moment_rows(moments: Iterable[Moment], trace: Trace) -> list[tuple[str, ...]]:
    recorded = {one.place: one.answers for one in trace.moments}
    return [
        (
            clock(one.at),
            one.sensor,
            one.strategy,
            "-" if one.sensor_error or one.error else "held" if one.held else "no",
            shorten(f"the sensor failed: {one.sensor_error}" if one.sensor_error else _request(one)),
            ", ".join(recorded.get(one.place, ())) or "-",
        )
        for one in moments
    ]


def _request(one: Moment) -> str:
    return one.outcome if one.held or one.error else "-"


def _summary(samples: int, strategies: Sequence[str], differences: Sequence[Difference]) -> str:
    head = f"{counted(samples, 'sample')}, {counted(len(strategies), 'strategy')}"
    if not differences:
        return f"{head}: all decisions are as recorded."
    signs = {"+": "added", "-": "removed", "~": "changed"}
    counts = {text: sum(one.symbol == sign for one in differences) for sign, text in signs.items()}
    differ = f"{counted(len(differences), 'decision')} {'differs' if len(differences) == 1 else 'differ'}"
    parts = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    return f"{head}: {differ} from what was recorded: {parts}."
