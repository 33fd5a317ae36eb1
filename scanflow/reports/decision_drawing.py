"""An agent's samples and actions as a drawing: what its sensors measured, and what was decided of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, tzinfo

from markupsafe import Markup

from scanflow.agent.agent_records import Action, Sample
from scanflow.agent.replay import StrategyEvaluation
from scanflow.drawing import svg
from scanflow.drawing.decision_chart import draw_decisions
from scanflow.drawing.event_lanes import LaneEvent
from scanflow.drawing.line_chart import EventLine, Point, Threshold
from scanflow.drawing.states import get_state_look

MOST_METRICS = 6
_COMPARED = re.compile(r"\b([A-Za-z_]\w*(?:\.\w+)*) *(>=|<=|>|<) *(-?\d[\d_]*(?:\.\d+)?(?:e-?\d+)?)\b")

Address = Callable[[str], str]
"""Returns the address of an action's page, by its id; empty: it has none."""


def draw_agent_decisions(
    samples: Sequence[Sample],
    actions: Sequence[Action],
    moments: Sequence[StrategyEvaluation] = (),
    *,
    address: Address | None = None,
    span: tuple[float, float] | None = None,
    width: float = svg.WIDTH,
    zone: tzinfo = UTC,
) -> Markup:
    """Draw the numbers that an agent's sensors measured, with its actions and the thresholds of their rules.

    Args:
        samples: From the agent's journal, in the order of time.
        actions: Its actions, in any order.
        moments: The evaluations in its journal, or of a replay: each strategy has a lane of those that held or failed.
        address: Of an action's page.
        span: The ends of the axis, in seconds since the epoch. None: those of everything drawn.
    """
    metrics = collect_metrics(samples, zone)
    rules = list(dict.fromkeys(action.intent.rule for action in actions))
    thresholds = {name: [*_list_thresholds(name, rules)] for name in metrics}
    observations: dict[str, list[LaneEvent]] = {}
    measured = {name.partition(".")[0] for name in metrics}
    for sample in samples:
        if sample.error is not None or sample.sensor not in measured:  # the others are points of a line
            observations.setdefault(sample.sensor, []).append(_build_observation(sample, zone))
    for moment in moments:
        if moment.held or moment.error is not None:
            observations.setdefault(moment.strategy, []).append(_build_evaluation(moment, zone))
    decisions = [
        _build_decision(action, address, zone) for action in sorted(actions, key=lambda action: action.decision.at)
    ]
    return draw_decisions(
        metrics, decisions, observations=observations, thresholds=thresholds, span=span, width=width, zone=zone
    )


def collect_metrics(samples: Iterable[Sample], zone: tzinfo = UTC) -> dict[str, list[Point]]:
    """Return the numbers in samples by name: the sensor's, or ``SENSOR.FIELD``. Errors are gaps in all of a sensor's.

    Of more than :data:`MOST_METRICS`, those that vary come first, then those that were seen most often.
    """
    metrics: dict[str, list[Point]] = {}
    for sample in samples:
        when = svg.format_time(sample.at, zone=zone)
        if sample.error is not None:
            for name, points in metrics.items():
                if name.partition(".")[0] == sample.sensor:
                    points.append(Point(sample.at, math.nan, ""))
        for name, value in _list_numbers(sample):
            metrics.setdefault(name, []).append(Point(sample.at, value, f"{when} {name} = {value:,.6g}"))
    ranked = sorted(metrics, key=lambda name: (len({point.value for point in metrics[name]}) == 1, -len(metrics[name])))
    shown = set(ranked[:MOST_METRICS])
    return {name: points for name, points in metrics.items() if name in shown}


def _list_numbers(sample: Sample) -> Iterator[tuple[str, float]]:
    values = sample.value if isinstance(sample.value, dict) else {"": sample.value}
    for field, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{sample.sensor}.{field}" if field else sample.sensor, float(value)


def _list_thresholds(metric: str, rules: Iterable[str]) -> Iterator[Threshold]:
    """Yield what rules compare a metric with: a name in their text that is the metric's, its field's or, with an
    attribute, that of a sensor that measures one number."""
    names = {metric, metric.rpartition(".")[2]}
    bounds = {
        f"{name} {sign} {bound}": float(bound.replace("_", ""))
        for rule in rules
        for name, sign, bound in _COMPARED.findall(rule)
        if name in names or name.partition(".")[0] == metric
    }
    for words, value in bounds.items():
        yield Threshold(value, words, "amber")


def _build_observation(sample: Sample, zone: tzinfo) -> LaneEvent:
    when, cause = svg.format_time(sample.at, zone=zone), sample.cause.partition(":")[0]
    if sample.error is not None:
        return LaneEvent(sample.at, "failed", f"{when} {sample.sensor} failed: {sample.error}", "red", "cross")
    return LaneEvent(sample.at, "", f"{when} {sample.sensor}, by {cause}: {_shorten(sample.value)}", "blue")


def _build_evaluation(moment: StrategyEvaluation, zone: tzinfo) -> LaneEvent:
    when = svg.format_time(moment.at, zone=zone)
    if moment.error is not None:
        return LaneEvent(moment.at, "failed", f"{when} {moment.strategy} failed: {moment.error}", "red", "cross")
    parts = [part for part in (moment.rule, moment.outcome, ", ".join(moment.verdicts)) if part]
    return LaneEvent(moment.at, "", f"{when} {moment.strategy}: {'; '.join(parts)}", "violet", "diamond")


def _shorten(value: object) -> str:
    return svg.shorten_text(str(value), 60 * svg.estimate_text_width("x"))


def _build_decision(action: Action, address: Address | None, zone: tzinfo) -> EventLine:
    intent, decision = action.intent, action.decision
    look = get_state_look(action.state)
    target = intent.target.partition("/")[2]
    when = svg.format_time(decision.at, zone=zone)
    before = "" if action.repeats_decision else "requested before that, "
    repeated = f"; {before}the same {action.repeats:,} times more" if action.repeats else ""
    parts = [f"{when} {intent.strategy}: {intent.primitive} {target}", f"{decision.verdict}, {action.state}"]
    parts += [part for part in (intent.rule, decision.reason, action.error) if part]
    return EventLine(
        decision.at,
        f"{intent.primitive.replace('_', ' ')} {target}",
        look.colour,
        look.mark,
        "; ".join(parts) + repeated,
        "" if address is None else address(action.id),
    )
