"""The tracker: counts new predictions, and has them checked when there are enough (Table 5.5, first row)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

import scanflow as sf
from scanflow.agent.actions import Call, call
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensed_runs import Run
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.model import Model, Whole
from scanflow.errors import InvalidError, UsageError
from scanflow.knowledge.filters import parse_filter
from scanflow_agents.clock_errors import AHEAD_S
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.template_client import report_event
from scanflow_agents.templates.template_options import Options, bound_call, check_agent, find_checked_model


class TrackerOptions(Options):
    min_predictions: Whole = Field(default=1000, ge=1)
    """The number of new predictions that starts a check (Algorithm 1, line 1)."""

    checker: str = "checker"
    """The name of the checker agent."""

    nodes: tuple[str, ...] = ()
    """The services, or steps of batch workflows, whose predictions count. Empty: all those that the model of
    :func:`~scanflow.drift.detection` made, or may have made."""

    filter_string: str = bookmarks.PREDICTIONS
    """The filter of tracked runs with predictions."""

    metric: str = "predictions"
    """The metric with the number of predictions of such a run. For thesis listing 5.4: ``n_predictions``."""

    settled_s: float = Field(default=1.0, ge=0)
    """Runs that ended less than this ago, in seconds, count the next time, as they may still be being written."""

    most_runs: Whole = Field(default=1000, ge=1)
    """About how many tracked runs are handed over at a time, the oldest first; more where those have fewer predictions
    than ``min_predictions``."""

    again_after_s: float = Field(default=60.0, ge=0)
    """Predictions that were handed over and are still unchecked are handed over again after this, in seconds, as the
    checker may have been busy; earlier only if as many new ones arrived."""


class PredictionCounts(Model):
    """The predictions since the last checked ones."""

    predictions: int
    new: int
    """Those that were not handed over yet."""

    due: bool
    run_ids: list[str]
    """The tracked runs with the predictions."""

    since: float
    """The end time of the last checked ones."""


@dataclass
class _Handover:
    until: float = 0.0
    """The end time of the newest of those predictions."""

    at: float = 0.0
    reported: float = 0.0
    """The end time of the newest predictions that were reported. A repeated handover is not reported; predictions that
    came in small pieces meanwhile are."""


def declare(app: Application, agent: Agent) -> None:
    options = TrackerOptions.from_agent(agent)
    checker = check_agent(app, agent, options.checker, "checker")
    model, least, handed = find_checked_model(app, checker), options.min_predictions, _Handover()
    try:
        parse_filter(options.filter_string)
    except UsageError as error:
        raise InvalidError(f"Agent {agent.name!r}: filter_string: {error}") from error

    def count_predictions(run: Run) -> int:
        return round(run.metrics.get(options.metric, 0.0))

    @sensor(sf.every(seconds=options.interval_s))
    def count_number_of_predictions(context: Context) -> PredictionCounts:
        """Count the predictions recorded since the last checked ones."""
        since, until = bookmarks.get_check_time(context), context.clock() - options.settled_s
        if handed.at > context.clock() + AHEAD_S:  # by a clock that was ahead
            handed.until = handed.at = handed.reported = 0.0
        recorded = bookmarks.list_predictions(
            context, filter_string=options.filter_string, nodes=options.nodes, model=model, after=since, until=until
        )
        runs = bookmarks.select_oldest(recorded, options.most_runs, least=least, size=count_predictions)
        now = context.clock()
        counts = {run.run_id: count_predictions(run) for run in runs}
        new = sum(counts[run.run_id] for run in runs if bookmarks.get_end_time(run) > handed.until)
        total = sum(counts.values())
        due = total >= least and (new >= least or now >= handed.at + options.again_after_s)
        if due:
            handed.until, handed.at = max(bookmarks.get_end_time(run) for run in runs), now
            news = sum(counts[run.run_id] for run in runs if bookmarks.get_end_time(run) > handed.reported)
            if news >= least:
                report_event(context, "predictions.counted", f"agent/{context.agent}", predictions=total, new=news)
                handed.reported = handed.until
        ids = list(counts) if due else list(counts)[: options.most_runs]  # it is kept, and nobody is told the rest
        return PredictionCounts(predictions=total, new=new, due=due, run_ids=ids, since=since)

    def enough(counts: PredictionCounts) -> bool:
        return counts.predictions >= least and counts.due

    def hand_over(counts: PredictionCounts) -> Call:
        return call(
            checker, "check_predictions", run_ids=counts.run_ids, predictions=counts.predictions, since=counts.since
        )

    Strategy(
        name="count_number_of_predictions",
        when=count_number_of_predictions,
        if_=enough,
        then=hand_over,
        autonomy=bound_call(options.autonomy),
    )
