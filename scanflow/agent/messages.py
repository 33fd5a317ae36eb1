"""What an agent's HTTP face takes and answers, one frozen model each."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from scanflow.agent.records import JSON


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SensorCall(_Message):
    """Asks a call-receive sensor to fire: the body of ``POST /sensors/{name}``."""

    args: tuple[JSON, ...] = ()
    kwargs: dict[str, JSON] = Field(default_factory=dict)


class Accepted(_Message):
    sample: str
    """The id of the sample that the firing will leave."""


class SensorReport(_Message):
    """How one sensor of a running agent fares: an item of ``GET /sensors``. Times are seconds since the epoch."""

    name: str
    trigger: dict[str, JSON]
    next: float | None = None
    """When it fires next, if a time is known."""

    last: float | None = None
    fired: int = 0
    missed: int = 0
    """Firings that fell due and could not be made: each is counted."""

    errors: int = 0


class Here(_Message):
    """Where a running agent is: what it tells the server again and again."""

    url: str
    pid: int
