"""The data of a report. Times are seconds since the epoch, as everywhere; plots count from the first."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, computed_field

Kind = Literal[
    "predictions", "call", "detection", "look", "label", "retrain", "gate", "promotion", "revert", "failure", "other"
]
"""``detection``: a detection found drift; ``look``: a detection found none."""


class LoopEvent(BaseModel):
    """An event or action of an agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: float = Field(allow_inf_nan=False)
    agent: str  # in whose lane it is drawn
    kind: Kind
    text: str  # A few words for the plot: '1,000 predictions'
    count: int | None = None  # how many predictions, outliers, points: what is added up when events are drawn as one
    picked: int | None = None  # how many points a detection picked for people to label
    detail: str = ""  # A sentence for the table below the plots


class ScoredAnswers(NamedTuple):
    """The correct answers of a version at a time, among those with a known label: 1 or more."""

    at: float
    version: str  # V2; or the revision of a service without registered models
    right: int
    n: int


class RequestCounts(BaseModel):
    """The requests to a version between two measurements, as in ``service.measured``."""

    model_config = ConfigDict(frozen=True)

    at: float = Field(allow_inf_nan=False)
    since: float = Field(allow_inf_nan=False)
    version: str
    requests: int = Field(ge=0)
    errors: int = Field(ge=0)
    p95_s: float | None = Field(default=None, allow_inf_nan=False)  # of the latency lately: a minute on this machine


class ModelUse(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    began: float = Field(allow_inf_nan=False)
    ended: float | None = Field(default=None, allow_inf_nan=False)  # None: it is the champion now


class Version(BaseModel):
    """One version of the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    at: float = Field(allow_inf_nan=False)  # when it was made
    accuracy: float = Field(ge=0, le=1)
    n: int | None = None  # of how many samples that is the share; None: it was not told
    interval: tuple[float, float] | None = None  # where it may really be, at 95 %
    uses: tuple[ModelUse, ...] = ()  # when it was the champion, in the order of time

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own form; mypy knows no decorated property
    @property
    def promoted(self) -> bool:
        return bool(self.uses)

    @computed_field  # type: ignore[prop-decorator]  # as above
    @property
    def champion(self) -> bool:
        return bool(self.uses) and self.uses[-1].ended is None
