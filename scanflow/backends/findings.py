"""What a place was found to offer, and what to do about what it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mark = Literal["✓", "–", "✗"]
"""``✓`` good, ``–`` not there but not needed, ``✗`` a problem."""


@dataclass(frozen=True, slots=True)
class Finding:
    mark: Mark
    what: str
    found: str
    advice: str = ""
