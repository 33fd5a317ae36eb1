"""The tracker: counts new predictions, and has them checked when there are enough (Table 5.5, first row)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

import scanflow as sf
from scanflow.agent.actions import Call, call
from scanflow.agent.context import Context
from scanflow.agent.sensors.runs import Run
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.model import Whole
from scanflow.errors import InvalidError, UsageError
from scanflow.knowledge.filters import parse_filter
from scanflow_agents.host.sensor_state import AHEAD_S
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.control_plane import tell
from scanflow_agents.templates.options import Options, agent_named


class TrackerOptions(Options):
    min_predictions: Whole = Field(default=1000, ge=1)
    """So many new predictions are worth a look (Algorithm 1, line 1)."""

    checker: str = "checker"
    """The agent that is called."""

    nodes: tuple[str, ...] = ()
    """Services, or steps of batch workflows, whose predictions count. Empty: all."""

    filter_string: str = bookmarks.PREDICTIONS
    """Which tracked runs are predictions."""

    metric: str = "predictions"
    """The metric with how many predictions such a run holds. For thesis listing 5.4: ``n_predictions``."""

    settled_s: float = Field(default=1.0, ge=0)
    """What ended less than this ago, in seconds, is counted the next time: it may still be being written."""

    most_runs: Whole = Field(default=1000, ge=1)
    """About so many tracked runs are handed over at once, the oldest first; more where so many hold fewer predictions
    than are worth a look."""

    again_after_s: float = Field(default=60.0, ge=0)
    """What was handed over and is still not checked is handed over again after so long, in seconds: the checker may
    have been busy. Earlier only where as many again came."""


@dataclass
class _HandedOver:
    until: float = 0.0
    """When the newest of those predictions ended."""

    at: float = 0.0
    told: float = 0.0
    """When the newest of those ended that people were told of. What is handed over again is no news, and what came in
    small pieces meanwhile is."""


def declare(app: Application, agent: Agent) -> None:
    options = TrackerOptions.of(agent)
    checker = agent_named(app, agent, options.checker, "checker")
    least, handed = options.min_predictions, _HandedOver()
    try:
        parse_filter(options.filter_string)
    except UsageError as error:
        raise InvalidError(f"Agent {agent.name!r}: filter_string: {error}") from error

    def predictions_in(run: Run) -> int:
        return round(run.metrics.get(options.metric, 0.0))

    @sensor(sf.every(seconds=options.interval_s))
    def count_number_of_predictions(context: Context) -> dict[str, Any]:
        """Count the predictions that were recorded since the last that were checked."""
        since, until = bookmarks.checked_until(context), context.clock() - options.settled_s
        if handed.at > context.clock() + AHEAD_S:  # by a clock that was ahead
            handed.until = handed.at = handed.told = 0.0
        found = bookmarks.predictions(
            context, filter_string=options.filter_string, nodes=options.nodes, after=since, until=until
        )
        runs, now = bookmarks.oldest(found, options.most_runs, least=least, size=predictions_in), context.clock()
        counts = {run.run_id: predictions_in(run) for run in runs}
        new = sum(counts[run.run_id] for run in runs if bookmarks.time_of(run) > handed.until)
        total = sum(counts.values())
        due = total >= least and (new >= least or now >= handed.at + options.again_after_s)
        if due:
            handed.until, handed.at = max(bookmarks.time_of(run) for run in runs), now
            news = sum(counts[run.run_id] for run in runs if bookmarks.time_of(run) > handed.told)
            if news >= least:
                tell(context, "predictions.counted", f"agent/{context.agent}", predictions=total, new=news)
                handed.told = handed.until
        ids = list(counts) if due else list(counts)[: options.most_runs]  # it is kept, and nobody is told the rest
        return {"predictions": total, "new": new, "due": due, "run_ids": ids, "since": since}

    def enough(found: dict[str, Any]) -> bool:
        return bool(found["predictions"] >= least and found["due"])

    def hand_over(found: dict[str, Any]) -> Call:
        return call(checker, "check_predictions", **{name: found[name] for name in ("run_ids", "predictions", "since")})

    Strategy(
        name="count_number_of_predictions",
        when=count_number_of_predictions,
        if_=enough,
        then=hand_over,
        autonomy=options.autonomy,
    )
