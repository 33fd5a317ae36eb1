"""What a search for the best way to serve found, as lines, a table and a plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

from scanflow.app.quantities import counted
from scanflow.html_table import html_table
from scanflow.reports import drawing as svg
from scanflow.tuning.candidates import Candidate, describe
from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import latency

if TYPE_CHECKING:
    from scanflow.tuning.comparison import PairedComparison
    from scanflow.tuning.goals import Goal, Measurement
    from scanflow.tuning.result import Trial, TuningResult
    from scanflow.tuning.study import SearchStep
    from scanflow.tuning.warm_start import TuningHistory
    from scanflow_client.tuning import TuningReport

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360.0, 64.0, 24.0, 40.0, 56.0
_WORDS = {"throughput": "requests/s", "latency": "p90 of a single caller", "cost": "requests/s of each core"}


def step_text(step: SearchStep) -> str:
    """Return what is being tried, and the best so far."""
    best = "" if step.score <= 1 else f"; best so far {describe(step.best)}, {step.score:.2f}×"
    return f"{step.number} of {step.most}: {describe(step.candidate)}{best}; {step.left_s:.0f} s left"


def candidate_text(trial: Trial, goal: Goal, default: Candidate) -> str:
    """Return what became of a candidate."""
    return f"  {describe(trial.candidate)}: {_score(trial, goal, default)}"


def tuning_screen(report: TuningReport) -> Screen:
    """Return what was measured, and what follows from it."""
    found = report.result
    rows = [_row(describe(one.candidate), one.measured, _score(one, found.goal, found.default)) for one in found.trials]
    if found.defaults:
        rows.insert(0, _row(f"{describe(found.default)} (as it is)", found.defaults, "1"))
    table = Table(("candidate", "requests/s", "p50", "p90", "p99", "better by"), rows)
    lines = [*_notes(found), _verdict(report)]
    return [_head(report), *([table] if rows else []), *lines]


def _head(report: TuningReport) -> str:
    found = report.result
    bound = "" if found.goal.p99_s is None else f", p99 within {latency(found.goal.p99_s)}"
    measured = f"{len(found.trials)} of {found.exhaustive - 1} other ways to serve measured"
    cut = " It was interrupted." if found.interrupted else ""
    return (
        f"{report.target.workflow.name} on {report.cores} cores for {_WORDS[found.goal.name]}{bound}: {measured}.{cut}"
    )


def _row(name: str, measured: Sequence[Measurement], score: str) -> list[str]:
    if any(one.failed for one in measured):
        return [name, "-", "-", "-", "-", score]
    rate = f"{fmean(one.rate for one in measured):.4g}"
    times = [median(getattr(one, which) for one in measured) for which in ("p50_s", "p90_s", "p99_s")]
    return [name, rate, *map(latency, times), score]


def _score(trial: Trial, goal: Goal, default: Candidate) -> str:
    if trial.failed:
        reason = next(one.reason for one in trial.measured if one.failed)
        return f"✗ failed: {reason}"
    score = trial.score(goal, default)
    return f"{score:.2f}×" if score > 0 else f"✗ p99 is {-score:.3g} times the bound"


def _notes(found: TuningResult) -> list[str]:
    notes = [] if found.history is None else [history_text(found, found.history)]
    if not found.repeated:
        return notes
    others = f"Others used the machine: {found.repeated} measurements were made again"
    again = f", and {found.disturbed} of them disturbed again" if found.disturbed else ""
    return [*notes, f"{others}{again}."]


def history_text(found: TuningResult, history: TuningHistory) -> str:
    """Return what a search began from, and how many trials that saved."""
    if not found.is_history_valid:
        return f"Began from the search for {history.source}; what was best there is not here, so all was searched."
    if not history.complete:
        return f"Began from the search for {history.source}, which was cut short, so all was searched."
    saved = f"{counted(len(found.trials), 'trial')} in place of {history.trials}: {found.saved_trials} saved"
    return f"Began from the search for {history.source}: {saved}. From nothing: --fresh"


def _verdict(report: TuningReport) -> str:
    found, name = report.result, report.target.workflow.name
    if (nearest := found.nearest) is not None:
        bound = latency(found.goal.p99_s)
        return (
            f"✗ Nothing keeps p99 within {bound}. The nearest is {describe(nearest[0])}, {nearest[1]:.2f} times that."
        )
    if found.winner is not None and found.comparison is not None:
        if found.default_misses:
            bound = latency(found.goal.p99_s)
            return f"✓ {describe(found.best)} keeps p99 within {bound}, and {name} as it is does not."
        return f"✓ {describe(found.best)} is better: {_interval(found.comparison)}, measured anew."
    if found.fresh is not None and found.comparison is None:
        return f"Not decided: {describe(found.best)} failed when it was measured anew."
    if found.comparison is not None:
        return (
            f"Not better beyond noise: the best other, {describe(found.best)}, is {_interval(found.comparison)} of "
            f"{name} as it is, measured anew."
        )
    if found.best != found.default:
        return f"Not decided: there was no time to measure {describe(found.best)} anew. Give more: --minutes"
    return f"Nothing is better than {name} as it is: {describe(found.default)}."


def _interval(found: PairedComparison) -> str:
    return f"{found.ratio:.2f}× ({found.low:.2f} to {found.high:.2f})"


def next_command(report: TuningReport) -> str | None:
    """Return what puts the winner to use; None: nothing does."""
    winner, name = report.result.winner, report.target.workflow.name
    if winner is None:
        return None
    shape = shape_options(winner)
    if report.target.record is not None:
        return f"scanflow scale {name} {winner.instances} {shape}"
    source = "app.py" if report.target.source is None else report.target.source
    return f"scanflow deploy {source}:{name} --instances {winner.instances} {shape}"


def shape_options(one: Candidate) -> str:
    return f"--cores {one.cores:g} --affinity {one.affinity}"


def tuning_html(report: TuningReport) -> str:
    """Return the same, and the plot, as a notebook shows it."""
    head, *rest = tuning_screen(report)
    table = next((one for one in rest if isinstance(one, Table)), Table((), ()))
    lines = [str(one) for one in rest if not isinstance(one, Table)]
    return html_table(str(head), table.headers, table.rows, *lines) + tuning_chart(report)


def tuning_chart(report: TuningReport) -> str:
    """Return requests a second over the 99th percentile of the latency as SVG, with the frontier: what no other beats
    in both."""
    found = report.result
    points: dict[Candidate, tuple[float, float]] = {}
    arms = [(one.candidate, one.measured) for one in found.trials if not one.failed]
    if found.defaults:
        arms.insert(0, (found.default, tuple(found.defaults)))
    for candidate, measured in arms:
        points[candidate] = (median(one.p99_s for one in measured) * 1000, fmean(one.rate for one in measured))
    name = f"Ways to serve {report.target.workflow.name}"
    if not points:
        return svg.whole(40.0, name, svg.text(f"{name}: nothing was measured", 12.0, 24.0, "ink", anchor="start"))
    x_most, y_most = (1.15 * max(one[place] for one in points.values()) for place in (0, 1))
    right, bottom = svg.WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / x_most * (right - _LEFT), bottom - y / y_most * (bottom - _TOP)

    parts = [*_axes(x_most, y_most, right, bottom, found.goal), *_frontier(list(points.values()), at)]
    ends = sorted(points.items(), key=lambda one: one[1])
    widths = [(at(*point)[0], svg.text_width(_label(one, found))) for one, point in ends]
    rows = svg.place(widths, left=_LEFT, right=right, rows=len(ends))
    for (candidate, point), label in zip(ends, rows, strict=True):
        x, y = at(*point)
        colour = "green" if candidate == found.winner else "ink" if candidate == found.default else "blue"
        words = f"{describe(candidate)}: {point[1]:.4g} requests/s, p99 {point[0]:.3g} ms"
        mark = svg.element("circle", svg.element("title", svg.safe(words)), cx=x, cy=y, r=5.0, **svg.paint(colour))
        parts.append(mark)
        if label is not None:
            parts.append(svg.text(_label(candidate, found), label.middle, y - 10 - 14 * label.row, colour))
    return svg.whole(_HEIGHT, name, *parts)


def _label(one: Candidate, found: TuningResult) -> str:
    if one == found.winner:
        return f"✓ {describe(one)}"
    return f"{describe(one)}{' (as it is)' if one == found.default else ''}"


def _axes(x_most: float, y_most: float, right: float, bottom: float, goal: Goal) -> list[str]:
    parts = [svg.line(_LEFT, bottom, right, bottom, "soft"), svg.text("requests/s", 8.0, 20.0, "soft", anchor="start")]
    for tick in svg.ticks(0.0, x_most, 8):
        x = _LEFT + tick / x_most * (right - _LEFT)
        parts += [svg.line(x, bottom, x, bottom + 5, "soft"), svg.text(f"{tick:g}", x, bottom + 20, "soft")]
    for tick in svg.ticks(0.0, y_most, 5):
        y = bottom - tick / y_most * (bottom - _TOP)
        parts += [svg.line(_LEFT, y, right, y, "line"), svg.text(f"{tick:g}", _LEFT - 8, y + 4, "soft", anchor="end")]
    parts.append(svg.text("p99 of the latency, ms", right, bottom + 40, "soft", anchor="end"))
    if goal.p99_s is not None and goal.p99_s * 1000 <= x_most:
        x = _LEFT + goal.p99_s * 1000 / x_most * (right - _LEFT)
        parts += [svg.line(x, _TOP, x, bottom, "red", stroke_dasharray="4 4"), svg.text("bound", x, _TOP - 6, "red")]
    return parts


def _frontier(points: list[tuple[float, float]], at: Callable[[float, float], tuple[float, float]]) -> list[str]:
    """Return the line through what no other beats in both latency and throughput."""
    best, line = -math.inf, list[tuple[float, float]]()
    for x, y in sorted(points, key=lambda one: (one[0], -one[1])):
        if y > best:
            best = y
            line.append(at(x, y))
    pairs = pairwise(line)
    return [svg.line(x1, y1, x2, y2, "soft", width=2, stroke_dasharray="2 3") for (x1, y1), (x2, y2) in pairs]
