"""Findings of ``scanflow doctor``: what a backend offers, and advice about what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mark = Literal["✓", "–", "✗"]
"""``✓`` good, ``–`` missing but not needed, ``✗`` a problem."""


@dataclass(frozen=True, slots=True)
class Finding:
    mark: Mark
    what: str
    found: str
    advice: str = ""
