"""What recorded times say of the clock that they were taken from."""

from __future__ import annotations

AHEAD_S = 60.0
"""Recorded times further ahead of the clock than this, in seconds, come from a wrong clock."""
