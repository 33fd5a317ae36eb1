"""What agents and the control plane tell each other and keep: samples, intents, decisions, actions and events.

Values that travel as JSON and are written down; nothing here acts. All times are seconds since the epoch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

JSON: TypeAlias = JsonValue
"""What JSON can hold: text, numbers, true, false, null, and lists and mappings of those. The models here refuse NaN and
infinity, which would become null on their way."""

Autonomy = Literal["observe", "suggest", "approve", "auto"]
"""How far a strategy may go by itself: note what it would do, propose it, wait for approval, or act."""

Verdict = Literal["act", "refuse", "queue", "approve", "suggest", "observe", "duplicate"]

ActionState = Literal["pending", "running", "succeeded", "failed", "reverted", "refused", "observed", "lost"]
"""``refused``: the arbiter or a person said no; ``observed``: its strategy only observes, so it was noted;
``lost``: what carried it out ended midway, and whether it took effect is not known."""


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
    """What made it fire, the same for one firing however often it is told: ``interval:2026-01-31T06:00:00Z``."""

    error: str | None = None
    """Why there is no value, if there is none."""

    seconds: float = 0.0
    """How long the sensor took."""


class Guard(_Record):
    """What must not get worse through an action, else the action is reverted."""

    metric: str
    """``service.NAME.errors``, ``service.NAME.p95_s``, ``model.NAME.accuracy``, or one that the agent posts."""

    worse: Literal["higher", "lower"] = "lower"
    """Which way is worse. An accuracy gets worse as it gets lower; a latency as it gets higher."""

    by: float = 0.0
    """How much worse it may get, in the metric's own unit."""

    within_s: float = 60.0
    """For how long after the action it is watched."""


class PrimitiveCall(_Record):
    """A primitive with its arguments: what an action does, or what undoes it."""

    primitive: str
    arguments: dict[str, JSON]


class Intent(_Record):
    """What a strategy wants done, before the arbiter has had its say."""

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
    """What it writes of the target: ``replicas``, ``model``, ``resource``, ``affinity``, ``traffic``, ``running``."""

    source: Literal["agent", "person"] = "agent"
    """Whether a strategy wants it, or a person asked for it: then ``agent`` is the name of that person's token."""

    priority: int = 0
    """Of two that want the same field, the one with the higher wins."""

    autonomy: Autonomy = "auto"
    cool_down_s: float = 0.0
    """After an action of its strategy on the target, for how long it does not act there again. 0: at once."""

    hysteresis_s: float = 0.0
    """For how long a change of what it writes is left standing: within it, it does not take back the last one, whoever
    made that. 0: it may at once."""

    budget: int | None = None
    """How many actions its strategy has in ``budget_window_s``. None: as many as it wants."""

    budget_window_s: float = 3600.0
    guard: Guard | None = None
    sample: Sample | None = None
    """What it was decided from."""

    rule: str = ""
    """The rule that held, with the values it compared, in words."""

    key: str
    """``AGENT/STRATEGY/CAUSE``: the same key is never acted on twice."""

    at: float

    @property
    def evidence(self) -> dict[str, JSON]:
        """What speaks for it, where its sample says: of a model, why it is better (:mod:`scanflow.drift.promotion`)."""
        value = None if self.sample is None else self.sample.value
        found = value.get("evidence") if isinstance(value, dict) else None
        return found if isinstance(found, dict) else {}


class Decision(_Record):
    """What the arbiter said to an intent, and why."""

    intent: str
    """The intent's id."""

    verdict: Verdict
    reason: str
    winner: str | None = None
    """The id of the intent it lost against, if it lost."""

    by: str | None = None
    """The person who said so; None: the arbiter."""

    at: float
    retry_at: float | None = None
    """When a queued one is looked at again."""


class Action(_Record):
    """An intent on its way: what was decided, what was done and what came of it."""

    id: str
    """The intent's."""

    intent: Intent
    state: ActionState
    decision: Decision
    began: float | None
    ended: float | None
    result: JSON = None
    error: str | None = None
    inverse: PrimitiveCall | None = None
    """What would undo it, known once it is done."""

    reverted_by: str | None = None
    """Who undid it, or is about to: a person's name, or the guard."""


class Why(_Record):
    """Why an action was done, or was not."""

    lines: list[str]
    """Sample, trigger, rule, intent, decision, action, effect."""

    action: Action

    def __str__(self) -> str:
        return "\n".join(self.lines)


class SensorReport(_Record):
    """How one sensor of a running agent fares. Times are seconds since the epoch."""

    name: str
    trigger: dict[str, JSON]
    next: float | None = None
    """When it fires next, if a time is known."""

    last: float | None = None
    fired: int = 0
    missed: int = 0
    """Firings that fell due and could not be made: each is counted."""

    errors: int = 0


class AgentView(_Record):
    """An agent, and how it stands, as the server lists it."""

    name: str
    app: str
    team: str
    state: Literal["starting", "running", "silent", "stopping", "stopped"]
    """``silent``: it should be there, and has not said so for a while."""

    url: str | None = None
    pid: int | None = None
    started: float | None = None
    restarts: int = 0
    error: str | None = None
    """Why it does not come up, or what fails in it again and again. None: nothing that is known."""

    sensors: tuple[SensorReport, ...] | None = None
    """As it said some seconds ago. None: it is not running."""

    @property
    def full_name(self) -> str:
        return f"{self.app}:{self.name}"


class Event(_Record):
    id: int = 0
    """Its place in the server's list, counted up. 0: not yet listed."""

    at: float
    type: str
    """Dotted: ``run.failed``, ``service.unready``, ``sample``, ``action.reverted``."""

    app: str = ""
    subject: str = ""
    """What it happened to: ``workflow/NAME``, ``service/NAME``, and so on."""

    data: dict[str, JSON] = Field(default_factory=dict)


class SensorCall(_Record):
    """Asks a call-receive sensor to fire: the body of ``POST /sensors/{name}``."""

    args: tuple[JSON, ...] = ()
    kwargs: dict[str, JSON] = Field(default_factory=dict)


class Accepted(_Record):
    sample: str
    """The id of the sample that the firing will leave."""
