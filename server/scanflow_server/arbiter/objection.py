"""What stands against an intent, in words that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Objection:
    """Why an intent is not acted on now."""

    reason: str
    verdict: Literal["refuse", "queue", "duplicate"] = "refuse"
    winner: str | None = None
    """The id of the intent that stands in the way."""

    retry_at: float | None = None
    """When it may be otherwise, in seconds since the epoch."""
