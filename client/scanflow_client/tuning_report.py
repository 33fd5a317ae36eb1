"""The report of a tuning search, and how it is shown: as lines, a table and a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from scanflow.app.quantities import format_bytes, format_count
from scanflow.drawing import svg
from scanflow.reports.search_drawings import draw_search_cuts, draw_search_frontier
from scanflow.tuning.candidates import Candidate, RefusedCut, describe
from scanflow_client.formatting.text import format_amount, format_latency
from scanflow_client.formatting.text_table import Screen, Table

if TYPE_CHECKING:
    from scanflow.tuning.comparison import PairedComparison
    from scanflow.tuning.goals import Goal, Measurement
    from scanflow.tuning.result import Trial, TuningResult
    from scanflow.tuning.study import SearchStep
    from scanflow.tuning.warm_start import TuningHistory
    from scanflow_client.tuning_target import TuningTarget

_WORDS = {"throughput": "requests/s", "latency": "p90 of a single caller", "cost": "requests/s of each core"}


@dataclass(frozen=True, kw_only=True)
class TuningReport:
    target: TuningTarget
    result: TuningResult
    cores: int
    gpus: float = 0.0
    """The budget of GPUs; 0: it asks for none."""

    refused_cuts: tuple[RefusedCut, ...] = ()
    """The cuts of the GPUs that are no candidates."""

    def summary(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        result = self.result
        comparison = result.comparison
        return {
            "service": self.target.workflow.name,
            "goal": result.goal.name,
            "p99_s": result.goal.p99_s,
            "cores": self.cores,
            "gpus": self.gpus,
            "refused_cuts": [refused._asdict() for refused in self.refused_cuts],
            "default": asdict(result.default),
            "best": asdict(result.best),
            "winner": None if result.winner is None else asdict(result.winner),
            "comparison": None if comparison is None else asdict(comparison),
            "candidates": result.alternatives + 1,
            "trials": [asdict(trial) for trial in result.trials],
            "fresh": None if result.fresh is None else asdict(result.fresh),
            "repeated": result.repeated,
            "disturbed": result.disturbed,
            "interrupted": result.interrupted,
            "history": None
            if result.history is None
            else {
                "source": result.history.source,
                "valid": result.is_history_valid,
                "trials": result.history.trials,
                "saved_trials": result.saved_trials,
            },
        }


def format_step(step: SearchStep) -> str:
    """Return the current candidate, and the best so far."""
    best = "" if step.score <= 1 else f"; best so far {describe(step.best)}, {step.score:.2f}×"
    return f"{step.number} of {step.most}: {describe(step.candidate)}{best}; {step.left_s:.0f} s left"


def format_candidate(trial: Trial, goal: Goal, default: Candidate) -> str:
    """Return the score of a candidate."""
    reason = f": {trial.reason}" if trial.failed else ""
    return f"  {describe(trial.candidate)}: {_format_score(trial, goal, default)}{reason}"


def format_tuning(report: TuningReport) -> Screen:
    """Return the measured candidates, and the verdict."""
    result = report.result
    arms = [
        (describe(trial.candidate), trial.measured, _format_score(trial, result.goal, result.default))
        for trial in result.trials
    ]
    if result.defaults:
        arms.insert(0, (f"{describe(result.default)} (as it is)", tuple(result.defaults), "1"))
    figures = [
        figure for figure in _GPU_FIGURES if any(figure.compute(measured) is not None for _, measured, _ in arms)
    ]
    rows = [_format_row(name, measured, score, figures) for name, measured, score in arms]
    names = [figure.name for figure in figures]
    table = Table(("candidate", "requests/s", "p50", "p90", "p99", *names, "better by"), rows)
    refused = [f"Left out: {refused}" for refused in report.refused_cuts]
    lines = [*refused, *_format_notes(result), _format_verdict(report)]
    return [_format_head(report), *([table] if rows else []), *lines]


def _format_head(report: TuningReport) -> str:
    result = report.result
    bound = "" if result.goal.p99_s is None else f", p99 within {format_latency(result.goal.p99_s)}"
    measured = f"{len(result.trials)} of {result.alternatives} other configurations measured"
    cut = " It was interrupted." if result.interrupted else ""
    budget = describe_budget(report.cores, report.gpus)
    return f"{report.target.workflow.name} on {budget} for {_WORDS[result.goal.name]}{bound}: {measured}.{cut}"


def describe_budget(cores: int, gpus: float) -> str:
    """Return ``4 cores and 1 GPU``; 0: it asks for none."""
    devices = f" and {gpus:g} GPU{'s' if gpus > 1 else ''}" if gpus else ""
    return f"{format_count(cores, 'core')}{devices}"


class _GpuFigure(NamedTuple):
    """A column that is there if it was measured of any candidate."""

    name: str
    attribute: str
    format: Callable[[float], str]

    def compute(self, measured: Sequence[Measurement]) -> float | None:
        """Return the mean; None: not measured."""
        values = [value for it in measured if (value := getattr(it, self.attribute)) is not None]
        return fmean(values) if values else None


_GPU_FIGURES = (
    _GpuFigure("GPU memory", "gpu_bytes", lambda size: format_bytes(round(size))),
    _GpuFigure("J per 1,000", "energy_j_per_1000", format_amount),
)


def _format_row(
    name: str, measured: Sequence[Measurement], score: str, figures: Sequence[_GpuFigure] = ()
) -> list[str]:
    if any(measurement.failed for measurement in measured):
        return [name, "-", "-", "-", "-", *("-" for _ in figures), score]
    rate = format_amount(fmean(measurement.rate for measurement in measured), 4)
    times = [median(getattr(measurement, which) for measurement in measured) for which in ("p50_s", "p90_s", "p99_s")]
    means = [(figure, figure.compute(measured)) for figure in figures]
    more = ["-" if mean is None else figure.format(mean) for figure, mean in means]
    return [name, rate, *map(format_latency, times), *more, score]


def _format_score(trial: Trial, goal: Goal, default: Candidate) -> str:
    if trial.failed:
        return "✗ failed"
    score = trial.compute_score(goal, default)
    return f"{score:.2f}×" if score > 0 else f"✗ p99 is {-score:.3g} times the bound"


def _format_notes(result: TuningResult) -> list[str]:
    notes = [f"✗ {describe(trial.candidate)}: {trial.reason}" for trial in result.trials if trial.failed]
    notes += [] if result.history is None else [format_history(result, result.history)]
    if not result.repeated:
        return notes
    others = f"Other processes used the machine: {result.repeated} measurements were repeated"
    again = f", and {result.disturbed} of them disturbed again" if result.disturbed else ""
    return [*notes, f"{others}{again}."]


def format_history(result: TuningResult, history: TuningHistory) -> str:
    """Return the source of a search's warm start, and the number of trials it saved."""
    if not result.is_history_valid:
        return (
            f"Started from the search for {history.source}; its best is not best here, so the full space was searched."
        )
    if not history.complete:
        return f"Started from the search for {history.source}, which was interrupted, so the full space was searched."
    saved = f"{format_count(len(result.trials), 'trial')} in place of {history.trials}: {result.saved_trials} saved"
    return f"Started from the search for {history.source}: {saved}. Search from scratch: --fresh"


def _format_verdict(report: TuningReport) -> str:
    result, name = report.result, report.target.workflow.name
    if (nearest := result.nearest) is not None:
        bound = format_latency(result.goal.p99_s)
        return (
            f"✗ No candidate keeps p99 within {bound}. The nearest is {describe(nearest[0])}, at {nearest[1]:.2f} "
            "times the bound."
        )
    if result.winner is not None and result.comparison is not None:
        if result.default_misses:
            bound = format_latency(result.goal.p99_s)
            return f"✓ {describe(result.best)} keeps p99 within {bound}, but {name} as it is does not."
        return f"✓ {describe(result.best)} is better: {_format_interval(result.comparison)}, measured again."
    if result.fresh is not None and result.comparison is None:
        return f"Not decided: {describe(result.best)} failed when it was measured again."
    if result.comparison is not None:
        interval = _format_interval(result.comparison)
        return (
            f"No difference beyond noise: the best candidate, {describe(result.best)}, is {interval} of {name} as it "
            "is, measured again."
        )
    if result.best != result.default:
        return f"Not decided: there was no time to measure {describe(result.best)} again. Give more: --minutes"
    return f"No candidate is better than {name} as it is: {describe(result.default)}."


def _format_interval(comparison: PairedComparison) -> str:
    return f"{comparison.ratio:.2f}× ({comparison.low:.2f} to {comparison.high:.2f})"


def suggest_command(report: TuningReport) -> str | None:
    """Return the command that applies the winner; None: there is no winner."""
    winner, name = report.result.winner, report.target.workflow.name
    if winner is None:
        return None
    shape_options = format_shape_options(winner)
    if report.target.record is not None:
        return f"scanflow scale {name} {winner.instances} {shape_options}"
    source = "app.py" if report.target.source is None else report.target.source
    return f"scanflow deploy {source}:{name} --instances {winner.instances} {shape_options}"


def format_shape_options(candidate: Candidate) -> str:
    gpu = f" --gpu {candidate.gpu}" if candidate.gpu else ""
    return f"--cores {candidate.cores:g}{gpu} --affinity {candidate.affinity}"


def draw_tuning(report: TuningReport, *, width: float = svg.WIDTH) -> Markup:
    """Return requests per second over the 99th percentile of the latency as SVG, with the Pareto frontier."""
    return draw_search_frontier(report.target.workflow.name, report.result, width=width)


def draw_tuning_cuts(report: TuningReport, *, width: float = svg.WIDTH) -> Markup:
    """Return how each measured candidate divides the cores, and its requests per second, as SVG; the best first."""
    return draw_search_cuts(report.target.workflow.name, report.result, cores=report.cores, width=width)
