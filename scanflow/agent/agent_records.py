"""Records that agents and the control plane exchange and store: samples, intents, decisions, actions and events.

Serialized as JSON. All times are seconds since the epoch.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

JSON: TypeAlias = JsonValue
"""JSON values: text, numbers, true, false, null, and lists and mappings of those. The models here reject NaN and
infinity, which would be serialized as null."""

Autonomy = Literal["observe", "suggest", "approve", "auto"]
"""The autonomy of a strategy: record the action, propose it, wait for approval, or act."""

Verdict = Literal["act", "refuse", "queue", "approve", "suggest", "observe", "duplicate"]

ActionState = Literal["pending", "running", "succeeded", "failed", "reverted", "refused", "observed", "lost"]
"""``refused``: rejected by the arbiter or a person; ``observed``: only recorded, as its strategy observes;
``lost``: its execution was interrupted, and whether it took effect is unknown."""


_DUE = re.compile(r"(?:interval|cron|date):(\d{4}-[\d:T.-]+Z)$")
"""In a sample's cause: when its sensor was due."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Sample(_Record):
    """What a sensor returned at one firing."""

    id: str
    agent: str
    sensor: str
    at: float
    value: JSON
    cause: str
    """The cause of the firing, the same for each delivery of it: ``interval:2026-01-31T06:00:00Z``."""

    error: str | None = None
    """The error, if there is no value."""

    seconds: float = 0.0
    """The duration of the sensor's execution."""

    @property
    def lag_s(self) -> float | None:
        """How late its sensor ran; None: it was not due at a time, but called."""
        if (match := _DUE.match(self.cause)) is None:
            return None
        with suppress(ValueError):
            return max(0.0, self.at - datetime.fromisoformat(match[1]).timestamp())
        return None


class Guard(_Record):
    """A metric that must not get worse after an action, else the action is reverted."""

    metric: str
    """``service.NAME.errors``, ``service.NAME.p95_s``, ``model.NAME.accuracy``, or one that the agent posts."""

    worse: Literal["higher", "lower"] = "lower"
    """The direction that is worse: ``lower`` for an accuracy, ``higher`` for a latency."""

    by: float = 0.0
    """The tolerance, in the metric's unit."""

    within_s: float = 60.0
    """How long after the action the metric is watched."""


class PrimitiveCall(_Record):
    """A primitive with its arguments: an action, or the inverse of one."""

    primitive: str
    arguments: dict[str, JSON]


class _Limits(_Record):
    """What a strategy's actions are subject to."""

    priority: int = 0
    """Of two intents for the same field, the one with the higher priority wins."""

    autonomy: Autonomy = "auto"
    cool_down_s: float = 0.0
    """How long its strategy waits after an action before it acts on the same target again. 0: not at all."""

    hysteresis_s: float = 0.0
    """How long a change of the same fields stays in place before this intent may revert it, whoever made it. 0: not at
    all."""

    budget: int | None = None
    """The maximum number of actions of its strategy in ``budget_window_s``. None: no limit."""

    budget_window_s: float = 3600.0
    guard: Guard | None = None


class Intent(_Limits):
    """An action that a strategy requests, before the arbiter decides."""

    id: str
    app: str
    team: str
    agent: str
    strategy: str
    primitive: str
    arguments: dict[str, JSON]
    target: str
    """``workflow/NAME``, ``service/NAME``, ``run/NAME``, ``model/NAME`` or ``agent/NAME``."""

    fields: tuple[str, ...]
    """The fields of the target that it writes: ``replicas``, ``model``, ``resource``, ``affinity``, ``traffic``,
    ``running``."""

    source: Literal["agent", "person"] = "agent"
    """Whether a strategy or a person requested it; for a person, ``agent`` is the name of the token."""

    sample: Sample | None = None
    """The sample that the strategy was evaluated on."""

    rule: str = ""
    """The rule that held and the values it compared, as text."""

    key: str
    """Idempotency key, ``AGENT/STRATEGY/CAUSE``: the same key is never acted on twice."""

    at: float

    @property
    def evidence(self) -> dict[str, JSON]:
        """The evidence in its sample, if any: for a model, why it is better (:mod:`scanflow.drift.promotion`)."""
        value = None if self.sample is None else self.sample.value
        evidence = value.get("evidence") if isinstance(value, dict) else None
        return evidence if isinstance(evidence, dict) else {}


class PermittedCall(_Record):
    """A primitive that a strategy may request, and on which target."""

    primitive: str
    target: str
    """``workflow/NAME``, ``service/NAME`` or ``run/NAME``; ``workflow/*``: any workflow; ``*``: any target."""

    arguments: dict[str, JSON] | None = None
    """The only arguments that it may be requested with. None: any."""


class StrategyLimits(_Limits):
    """What a strategy may do, as the server stores it when its agent is deployed. An intent never exceeds it."""

    name: str
    calls: tuple[PermittedCall, ...] = ()
    secrets: tuple[str, ...] = Field(default=(), exclude=True)
    """The references to secrets of its agent's application, which its intents may pass on. Not stored."""


class Decision(_Record):
    """The arbiter's decision on an intent, and its reason."""

    intent: str
    """The intent's id."""

    verdict: Verdict
    reason: str
    winner: str | None = None
    """The id of the intent that it lost against, if any."""

    by: str | None = None
    """The person who decided; None: the arbiter."""

    at: float
    retry_at: float | None = None
    """When a queued intent is decided again."""


class Action(_Record):
    """An intent in execution: its decision, state and result."""

    id: str
    """The intent's id."""

    intent: Intent
    state: ActionState
    decision: Decision
    began: float | None
    ended: float | None
    result: JSON = None
    error: str | None = None
    inverse: PrimitiveCall | None = None
    """The inverse, known once it is done."""

    reverted_by: str | None = None
    """Who reverted it, or is reverting it: a person's name, or the guard."""

    approved_by: str | None = None
    """The person who approved it, if one did."""

    approved_why: str = ""
    """That person's reason."""

    repeats: int = 0
    """How many later intents of its strategy had the same decision for the same reason; those are not kept."""

    repeated: float | None = None
    """When the last one was decided."""

    @property
    def started_run(self) -> str | None:
        """The run that it started, which may go on after it, fail or be stopped; None: it started none."""
        starts = self.inverse is not None and self.inverse.primitive == "stop_workflow"
        if self.state != "succeeded" or not starts or not isinstance(self.result, dict):
            return None
        return str(self.result["run"]) if "run" in self.result else None

    @property
    def repeats_decision(self) -> bool:
        """Whether the repeats had the decision of now; else an earlier one: to ask the person who decided since."""
        return self.repeated is None or self.repeated >= self.decision.at


class ActionExplanation(_Record):
    """The explanation of an action."""

    lines: list[str]
    """Sample, trigger, rule, intent, decision, action, effect."""

    action: Action

    def __str__(self) -> str:
        return "\n".join(self.lines)


class SensorReport(_Record):
    """The status of one sensor of a running agent."""

    name: str
    trigger: dict[str, JSON]
    next: float | None = None
    """When it fires next, if known."""

    last: float | None = None
    fired: int = 0
    missed: int = 0
    """The number of due firings that were missed."""

    errors: int = 0


class AgentView(_Record):
    """An agent and its status, as listed by the server."""

    name: str
    app: str
    team: str
    state: Literal["starting", "running", "silent", "stopping", "stopped"]
    """``silent``: it should be running and has sent no heartbeat for a while."""

    url: str | None = None
    pid: int | None = None
    started: float | None = None
    restarts: int = 0
    error: str | None = None
    """Why it does not start, or what fails in it repeatedly. None: no known error."""

    sensors: tuple[SensorReport, ...] | None = None
    """As last reported, some seconds ago. None: it is not running."""

    @property
    def full_name(self) -> str:
        return f"{self.app}:{self.name}"


class Event(_Record):
    """Something that happened: a run failed, a model was promoted. Sensors are fired by events."""

    id: int = 0
    """Its sequence number in the server's list. 0: not yet listed."""

    at: float
    """When it happened, in seconds since the epoch."""

    type: str
    """Dotted: ``run.failed``, ``service.unready``, ``sample``, ``action.reverted``."""

    app: str = ""
    """The application that it belongs to. Empty: none."""

    subject: str = ""
    """The resource that it is about: ``workflow/NAME``, ``service/NAME``, and so on."""

    data: dict[str, JSON] = Field(default_factory=dict)
    """What else is known of it, by its type."""


class SensorCall(_Record):
    """A call to a sensor: the body of ``POST /sensors/{name}``."""

    args: tuple[JSON, ...] = ()
    kwargs: dict[str, JSON] = Field(default_factory=dict)


class SampleAccepted(_Record):
    sample: str
    """The id of the sample that the firing will produce."""
