"""The planner's tuning strategies: a search for a service's configuration starts on a promotion, on a load change or
each night, and a better configuration is applied (thesis 4.2 and 4.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act
from scanflow.agent.agent_records import Autonomy, Event, Guard
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agent import Agent
from scanflow.app.model import Model, Number, Whole
from scanflow.app.quantities import format_count
from scanflow.app.triggers import Trigger
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import InvalidError
from scanflow.tuning.candidates import Candidate, build_candidate, describe
from scanflow.tuning.goals import GoalName
from scanflow.tuning.step import RUN_PREFIX
from scanflow_agents.templates.infrastructure import AGREEING, CONFIRMATION
from scanflow_agents.templates.template_client import (
    find_service,
    list_newest_runs,
    list_strategy_actions,
    read_outputs,
    report_event,
)
from scanflow_agents.templates.template_options import DAY_S, WatchOptions

RetuneTrigger = Literal["on_promotion", "on_load_change", "nightly"]

RETUNE, APPLY = "retune", "apply_tuning"


class RetuneOptions(WatchOptions):
    """Parameters of the strategies below, as the planner has them."""

    retune: RetuneTrigger | None = None
    """When a search for the best configuration of the service starts: on a promotion of its model, on a load change, or
    each night. None: off."""

    retune_inputs: Any = None
    """The inputs that the search sends: rows, or a mapping of input names to rows."""

    retune_file: str | None = None
    """The file with the inputs, beside the application's, in place of ``retune_inputs``."""

    retune_goal: GoalName = "throughput"
    """The objective of the search."""

    retune_p99_s: Number | None = Field(default=None, gt=0)
    """An upper bound of the 99th percentile of the latency, in seconds. None: no bound."""

    retune_trials: Whole = Field(default=20, ge=1, le=200)
    """The most candidates to measure."""

    retune_minutes: Number = Field(default=15.0, gt=0, le=240)
    """The time limit of a search, in minutes."""

    retune_budget: Whole = Field(default=4, ge=1)
    """The most searches a day."""

    retune_at: str = "0 3 * * *"
    """When a nightly search starts: a cron expression, in UTC."""

    retune_load_factor: Number = Field(default=2.0, gt=1)
    """The factor by which the request rate must rise or fall since the last search to count as a load change."""

    retune_guard_s: float = Field(default=300.0, ge=0)
    """How long failed requests are watched after a configuration is applied, in seconds."""

    retune_autonomy: Autonomy = "suggest"
    """The autonomy of both strategies: ``suggest`` proposes to people, who accept by ``scanflow approve``."""


class TuningDue(Model):
    """Whether a search is due and possible."""

    trigger: RetuneTrigger | None
    due: bool
    stands: str | None
    """Why none is possible."""

    rps: float | None
    rps_before: float | None
    """Requests a second now, and at the last search."""


class TuningOutcome(Model):
    """What a search resulted in: outputs of its run, see :mod:`scanflow.tuning.result`."""

    winner: dict[str, Any] | None
    default: dict[str, Any] | None
    comparison: dict[str, Any] | None
    trials: int | None
    history: dict[str, Any] | None
    goal: str | None
    evidence: dict[str, Any]
    run: str
    stands: str | None
    """Why the service is not resized."""


def declare_retuning(agent: Agent, app: str, service: str, model: str, options: RetuneOptions) -> None:
    """Declare ``retune``: start a search for the best configuration of a service; and ``apply_tuning``: resize the
    service to a significantly better one.

    Args:
        agent: The agent with these options.
        app: The application's name.
        service: The online workflow's name.
        model: The registered model's name.
        options: With ``retune`` set.

    Raises:
        InvalidError: neither or both of the search's inputs and file are set.
    """
    if (options.retune_inputs is None) == (options.retune_file is None):
        raise InvalidError(
            f"Agent {agent.name!r}: a search needs inputs to send. Set either of: "
            "parameters={'retune_inputs': [[1, 2, 3]]}, or parameters={'retune_file': 'x.npy'}."
        )
    _declare_search(service, model, options)
    _declare_apply(app, service, options)


def _declare_search(service: str, model: str, options: RetuneOptions) -> None:
    watch = LoadWatch(options.retune_load_factor)

    @sensor(_build_trigger(model, options))
    def tuning_due(context: Context) -> TuningDue:
        """Check whether a search for the service is due and possible."""
        begun = list_strategy_actions(context, RETUNE)  # before the runs, which include those that it started
        record = find_service(context, service)
        rate = None if record is None or record.load is None else record.load.rate
        changed = watch.observe(rate) if options.retune == "on_load_change" else True
        runs = list_newest_runs(context, f"{RUN_PREFIX}{service}")
        busy = [str(run.name) for run in runs if run.state == "running"]
        busy += [action.id for action in begun if action.state in {"pending", "running"}]
        stands = _find_obstacle(service, record)
        if stands is None and busy:
            stands = f"a search is already active: {busy[0]}"
        due = changed and stands is None
        search = TuningDue(trigger=options.retune, due=due, stands=stands, rps=rate, rps_before=watch.reference)
        if due:
            watch.restart(rate)
        return search

    def is_due(search: TuningDue) -> bool:
        return search.due

    Strategy(
        name=RETUNE,
        when=tuning_due,
        if_=is_due,
        then=lambda _search: do.tune_workflow(
            service,
            inputs=options.retune_inputs,
            file=options.retune_file,
            goal=options.retune_goal,
            p99_s=options.retune_p99_s,
            trials=options.retune_trials,
            minutes=float(options.retune_minutes),
        ),
        autonomy=options.retune_autonomy,
        budget=options.retune_budget,
        budget_window=DAY_S,
    )


def _declare_apply(app: str, service: str, options: RetuneOptions) -> None:
    @sensor(sf.on_event("run.succeeded", workflow=f"{RUN_PREFIX}{service}", app=app))
    def tuning_ended(context: Context, event: Event) -> TuningOutcome:
        """Read the outcome of a search, and check that the service was not resized since."""
        run = event.subject.removeprefix("run/")
        outputs = read_outputs(context, run)
        record = find_service(context, service)
        names = ("winner", "default", "comparison", "trials", "history", "goal")
        outcome: dict[str, Any] = {name: outputs.get(name) for name in names}
        outcome["evidence"] = {"reason": describe_result(outcome)}
        stands = _find_obstacle(service, record)
        if stands is None and record is not None and _was_resized(record, outputs):
            stands = "the service was resized since"
        report_event(context, "service.tuned", f"service/{service}", run=run, **outcome)
        return TuningOutcome(**outcome, run=run, stands=stands)

    def is_better(outcome: TuningOutcome) -> bool:
        return outcome.winner is not None and outcome.stands is None

    def apply(outcome: TuningOutcome) -> Act | None:
        return None if outcome.winner is None else resize(service, outcome.winner)

    Strategy(
        name=APPLY,
        when=tuning_ended,
        if_=is_better,
        then=apply,
        autonomy=options.retune_autonomy,
        guard=Guard(metric=f"service.{service}.errors", worse="higher", by=0.02, within_s=options.retune_guard_s),
    )


class LoadWatch:
    """Detects changes of a service's load since the last search. A restarted agent starts over."""

    def __init__(self, factor: float) -> None:
        """``factor``: this many times more or fewer requests a second are a load change."""
        self._factor = factor
        self._looks: deque[bool] = deque(maxlen=CONFIRMATION)
        self.reference: float | None = None
        """The reference load in requests a second; None: not measured yet."""

    def observe(self, rate: float | None) -> bool:
        """Check the requests a second, and return whether two of the last three checks found another load."""
        if rate is None or rate <= 0:
            return False
        if self.reference is None:
            self.reference = rate
        self._looks.append(not self.reference / self._factor < rate < self.reference * self._factor)
        return sum(self._looks) >= AGREEING and self._looks[-1]

    def restart(self, rate: float | None) -> None:
        """Set the reference load."""
        self.reference = self.reference if rate is None else rate
        self._looks.clear()


def resize(service: str, winner: Mapping[str, Any]) -> Act:
    """Return the primitive that resizes a service to a search's winner."""
    best = Candidate(**winner)
    return do.apply_workflow_instance(
        service,
        instances=best.instances,
        cores=best.cores,
        gpu=best.gpu or None,
        affinity=best.affinity,
        threads=best.threads,
    )


def describe_result(outcome: Mapping[str, Any]) -> str:
    """Describe the outcome of a search in one line, from the outputs of its run, with the trials that its history
    saved."""
    default, history = describe(Candidate(**outcome["default"])), outcome["history"]
    effort = format_count(outcome["trials"], "trial")
    if history and history["saved_trials"]:
        effort += f", {history['saved_trials']} saved by the search for {history['source']}"
    if outcome["winner"] is None:
        return f"No configuration is significantly better than {default} for {outcome['goal']}; {effort}"
    winner = describe(Candidate(**outcome["winner"]))
    ratio = "{ratio:.2f}× ({low:.2f} to {high:.2f})".format(**outcome["comparison"])
    return f"{winner} is {ratio} as good as {default} for {outcome['goal']}; {effort}"


def _build_trigger(model: str, options: RetuneOptions) -> Trigger:
    if options.retune == "on_promotion":
        return sf.on_event("model.promoted", subject=f"model/{model}")
    return sf.cron(options.retune_at) if options.retune == "nightly" else sf.every(seconds=options.watch_interval_s)


def _find_obstacle(service: str, record: ServiceRecord | None) -> str | None:
    if record is None:
        return f"the service {service!r} is not deployed"
    return None if record.scaling is None else "its scaling decides the number of instances"


def _was_resized(record: ServiceRecord, outputs: Mapping[str, Any]) -> bool:
    default = Candidate(**outputs["default"])
    return build_candidate(record.shape, float(outputs["cores"])) != default
