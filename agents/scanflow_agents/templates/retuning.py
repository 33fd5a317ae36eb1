"""The planner's strategies for how a service is served: a search is begun on a promotion, on a change of the load or
each night, and what it finds better is applied (thesis 4.2 and 4.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act
from scanflow.agent.context import Context
from scanflow.agent.records import Autonomy, Event, Guard
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agents import Agent
from scanflow.app.model import Number, Whole
from scanflow.app.quantities import counted
from scanflow.app.triggers import Trigger
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import InvalidError
from scanflow.tuning.candidates import Candidate, candidate_of, describe
from scanflow.tuning.goals import GoalName
from scanflow.tuning.workflow import RUN_PREFIX
from scanflow_agents.templates.control_plane import acted_on, find_service, newest_runs, outputs_of, tell
from scanflow_agents.templates.options import Watching

RetuneTrigger = Literal["on_promotion", "on_load_change", "nightly"]

RETUNE, APPLY = "retune", "apply_tuning"
AGREEING, LOOKS = 2, 3
"""Of the last three looks, two must find another load."""

DAY_S = 86_400.0


class RetuneOptions(Watching):
    """Parameters of the strategies below, as the planner has them."""

    retune: RetuneTrigger | None = None
    """When a search for how the service is served best begins: when a version of its model was promoted, when its load
    changed, or each night. None: off."""

    retune_inputs: Any = None
    """What the search sends: rows, or a mapping of input names to rows."""

    retune_file: str | None = None
    """The file with what it sends, beside the application's, in place of ``retune_inputs``."""

    retune_goal: GoalName = "throughput"
    """What is to be as good as possible."""

    retune_p99_s: Number | None = Field(default=None, gt=0)
    """A bound of the 99th percentile that has to be kept, in seconds. None: no bound."""

    retune_trials: Whole = Field(default=20, ge=1, le=200)
    """Candidates to measure at most."""

    retune_minutes: Number = Field(default=15.0, gt=0, le=240)
    """How long a search may take."""

    retune_budget: Whole = Field(default=4, ge=1)
    """The most searches a day."""

    retune_at: str = "0 3 * * *"
    """When a nightly search begins: a cron expression, in UTC."""

    retune_load_factor: Number = Field(default=2.0, gt=1)
    """So many times more or fewer requests a second than at the last search are another load."""

    retune_guard_s: float = Field(default=300.0, ge=0)
    """For how long failed requests are watched after what was found is applied, in seconds."""

    retune_autonomy: Autonomy = "suggest"
    """How far both strategies go by themselves: ``suggest`` tells people, who have it done by ``scanflow approve``."""


def declare_retuning(agent: Agent, app: str, service: str, model: str, options: RetuneOptions) -> None:
    """Declare ``retune``: begin a search for how a service is served best; and ``apply_tuning``: resize the service to
    what a search found better beyond noise.

    Args:
        agent: Whose parameters they are.
        app: The application's name.
        service: The online workflow's name.
        model: The registered model's name.
        options: With ``retune`` set.

    Raises:
        InvalidError: nothing is said of what the search sends, or both.
    """
    if (options.retune_inputs is None) == (options.retune_file is None):
        raise InvalidError(
            f"Agent {agent.name!r}: a search needs what it sends. Say it in one of two ways: "
            "parameters={'retune_inputs': [[1, 2, 3]]}, or parameters={'retune_file': 'x.npy'}."
        )
    _declare_search(service, model, options)
    _declare_apply(app, service, options)


def _declare_search(service: str, model: str, options: RetuneOptions) -> None:
    watch = LoadWatch(options.retune_load_factor)

    @sensor(_trigger(model, options))
    def tuning_due(context: Context) -> dict[str, Any]:
        """Look whether a search for the service may begin, and why."""
        begun = acted_on(context, RETUNE)  # before the runs: what has begun by then is among those
        record = find_service(context, service)
        rate = None if record is None or record.load is None else record.load.rate
        changed = watch.look(rate) if options.retune == "on_load_change" else True
        runs = newest_runs(context, f"{RUN_PREFIX}{service}")
        busy = [str(one.name) for one in runs if one.state == "running"]
        busy += [one.id for one in begun if one.state in {"pending", "running"}]
        stands = _stands_against(service, record)
        if stands is None and busy:
            stands = f"a search goes on: {busy[0]}"
        due = changed and stands is None
        found = {"trigger": options.retune, "due": due, "stands": stands, "rps": rate, "rps_before": watch.reference}
        if due:
            watch.restart(rate)
        return found

    Strategy(
        name=RETUNE,
        when=tuning_due,
        if_=lambda found: found["due"],
        then=lambda _found: do.tune_workflow(
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
    def tuning_ended(context: Context, event: Event) -> dict[str, Any]:
        """Read what a search found, and whether the service is still as it was then."""
        run = event.subject.removeprefix("run/")
        outputs = outputs_of(context, run)
        record = find_service(context, service)
        found = {name: outputs.get(name) for name in ("winner", "default", "comparison", "trials", "history", "goal")}
        found["evidence"] = {"reason": describe_result(found)}
        stands = _stands_against(service, record)
        if stands is None and record is not None and _was_resized(record, outputs):
            stands = "the service was resized since"
        tell(context, "service.tuned", f"service/{service}", run=run, **found)
        return {**found, "run": run, "stands": stands}

    Strategy(
        name=APPLY,
        when=tuning_ended,
        if_=lambda found: found["winner"] is not None and found["stands"] is None,
        then=lambda found: resize(service, found["winner"]),
        autonomy=options.retune_autonomy,
        guard=Guard(metric=f"service.{service}.errors", worse="higher", by=0.02, within_s=options.retune_guard_s),
    )


class LoadWatch:
    """Whether a service's load is another than at the last search. An agent that is restarted begins anew."""

    def __init__(self, factor: float) -> None:
        """``factor``: so many times more or fewer requests a second are another load."""
        self._factor = factor
        self._looks: deque[bool] = deque(maxlen=LOOKS)
        self.reference: float | None = None
        """Requests a second that the load is compared with; None: none was seen yet."""

    def look(self, rate: float | None) -> bool:
        """Take one look at requests a second, and say whether two of the last three found another load."""
        if rate is None or rate <= 0:
            return False
        if self.reference is None:
            self.reference = rate
        self._looks.append(not self.reference / self._factor < rate < self.reference * self._factor)
        return sum(self._looks) >= AGREEING and self._looks[-1]

    def restart(self, rate: float | None) -> None:
        """Compare with this load from now on."""
        self.reference = self.reference if rate is None else rate
        self._looks.clear()


def resize(service: str, winner: Mapping[str, Any]) -> Act:
    """Return what resizes a service to what a search found best."""
    best = Candidate(**winner)
    return do.apply_workflow_instance(
        service, instances=best.instances, cores=best.cores, affinity=best.affinity, threads=best.threads
    )


def describe_result(found: Mapping[str, Any]) -> str:
    """Return in one line what a search found, from the outputs of its run, and how many trials its history saved."""
    default, history = describe(Candidate(**found["default"])), found["history"]
    effort = counted(found["trials"], "trial")
    if history and history["saved_trials"]:
        effort += f", {history['saved_trials']} saved by the search for {history['source']}"
    if found["winner"] is None:
        return f"Nothing is better beyond noise than {default} for {found['goal']}; {effort}"
    winner = describe(Candidate(**found["winner"]))
    ratio = "{ratio:.2f}× ({low:.2f} to {high:.2f})".format(**found["comparison"])
    return f"{winner} is {ratio} as good as {default} for {found['goal']}; {effort}"


def _trigger(model: str, options: RetuneOptions) -> Trigger:
    if options.retune == "on_promotion":
        return sf.on_event("model.promoted", subject=f"model/{model}")
    return sf.cron(options.retune_at) if options.retune == "nightly" else sf.every(seconds=options.watch_interval_s)


def _stands_against(service: str, record: ServiceRecord | None) -> str | None:
    if record is None:
        return f"the service {service!r} is not deployed"
    return None if record.scaling is None else "its scaling decides how many instances there are"


def _was_resized(record: ServiceRecord, outputs: Mapping[str, Any]) -> bool:
    default = Candidate(**outputs["default"])
    return candidate_of(record.shape, float(outputs["cores"])) != default
