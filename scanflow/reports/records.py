"""What a report is drawn from. Times are seconds since the epoch, as everywhere; plots count from the first."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Kind", "LoopEvent", "Version"]

Kind = Literal["predictions", "call", "detection", "pick", "label", "retrain", "gate", "promotion", "revert", "other"]


class LoopEvent(BaseModel):
    """One thing that an agent saw or did."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: float = Field(allow_inf_nan=False)
    agent: str
    """In whose lane it is drawn."""

    kind: Kind
    text: str
    """A few words for the plot: '1,000 predictions'."""

    count: int | None = None
    """How many predictions, outliers, points: what is added up when events are drawn as one."""

    detail: str = ""
    """A sentence for the table below the plots."""


class Version(BaseModel):
    """One version of the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    at: float = Field(allow_inf_nan=False)
    """When it was made."""

    accuracy: float = Field(ge=0, le=1)
    promoted: bool = False
    """Whether it ever was the champion."""

    champion: bool = False
    """Whether it is the champion now."""
