"""Searches for the best configuration of a service as drawings: what each reached, and how it divides the cores."""

from __future__ import annotations

from statistics import fmean, median
from typing import NamedTuple

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.drawing.scatter import Cut, ScatterPoint, draw_cuts, draw_frontier
from scanflow.tuning.candidates import Candidate, describe
from scanflow.tuning.goals import Measurement
from scanflow.tuning.result import TuningResult


def draw_search_frontier(service: str, result: TuningResult, *, width: float = svg.WIDTH) -> Markup:
    """Draw requests per second over the 99th percentile of the latency, with the Pareto frontier."""
    points = []
    for candidate, measured in list_arms(result):
        if not any(measurement.failed for measurement in measured):
            latency = median(measurement.p99_s for measurement in measured) * 1000
            rate = fmean(measurement.rate for measurement in measured)
            words = f"{describe(candidate)}: {rate:.4g} requests/s, p99 {latency:.3g} ms"
            points.append(
                ScatterPoint(latency, rate, _format_label(candidate, result), words, *_get_look(candidate, result))
            )
    points.sort(key=lambda point: point.colour == "blue")  # the others' labels are placed first
    return draw_frontier(
        f"Configurations of {service}",
        points,
        x_name="p99 of the latency, ms",
        y_name="requests/s",
        bound=None if result.goal.p99_s is None else result.goal.p99_s * 1000,
        width=width,
    )


def draw_search_cuts(service: str, result: TuningResult, *, cores: float, width: float = svg.WIDTH) -> Markup:
    """Draw how each measured candidate divides the cores, and its requests per second; the best first."""
    cuts = []
    for candidate, measured in list_arms(result):
        failed = any(measurement.failed for measurement in measured)
        rate = None if failed else fmean(measurement.rate for measurement in measured)
        words = "failed" if rate is None else f"{rate:.4g}"
        colour, _ = _get_look(candidate, result)
        mark = "✗" if failed else "✓" if candidate == result.winner else ""
        colour = "red" if failed else colour
        name = f"{describe(candidate)}{' (as it is)' if candidate == result.default else ''}"
        title = f"{name}: {words}" + ("" if failed else " requests/s")
        cuts.append(Cut(name, title, candidate.instances, candidate.cores, rate, words, mark, colour))
    cuts.sort(key=lambda cut: -(cut.value or 0.0))
    name = f"How configurations of {service} divide the cores"
    return draw_cuts(name, cuts, cores=cores, value_name="requests/s", width=width)


def list_arms(result: TuningResult) -> list[tuple[Candidate, tuple[Measurement, ...]]]:
    arms = [(trial.candidate, tuple(trial.measured)) for trial in result.trials if trial.measured]
    return [(result.default, tuple(result.defaults)), *arms] if result.defaults else arms


def _get_look(candidate: Candidate, result: TuningResult) -> tuple[str, str]:
    """Return the colour and the shape of a candidate."""
    if candidate == result.winner:
        return "green", "diamond"
    return ("ink", "square") if candidate == result.default else ("blue", "circle")


def _format_label(candidate: Candidate, result: TuningResult) -> str:
    if candidate == result.winner:
        return f"✓ {describe(candidate)}"
    return f"{describe(candidate)}{' (as it is)' if candidate == result.default else ''}"


class ArmSummary(NamedTuple):
    """What was measured of a candidate, or of the service as it is."""

    words: str
    rate: float
    p50_s: float
    p90_s: float
    p99_s: float
    score: float | None
    """The factor by which it is better; below 0: it misses the bound. None: it is the service as it is."""

    problem: str = ""
    """Why its requests failed."""


def summarize_arms(result: TuningResult) -> list[ArmSummary]:
    """Return what was measured of each candidate, in the order of measurement."""
    scores = {trial.candidate: trial.compute_score(result.goal, result.default) for trial in result.trials}
    summaries = []
    for candidate, measured in list_arms(result):
        p50_s, p90_s, p99_s = (median(getattr(each, name) for each in measured) for name in ("p50_s", "p90_s", "p99_s"))
        words = f"{describe(candidate)}{' (as it is)' if candidate == result.default else ''}"
        problem = next((each.reason or "requests failed" for each in measured if each.failed), "")
        rate = fmean(each.rate for each in measured)
        summaries.append(ArmSummary(words, rate, p50_s, p90_s, p99_s, scores.get(candidate), problem))
    return summaries
