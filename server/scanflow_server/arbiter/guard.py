"""Whether an action made worse what it was not to. Pure."""

from __future__ import annotations

from scanflow.agent.records import Guard


def regressed(guard: Guard, before: float | None, after: float | None) -> str | None:
    """Return how the guard's metric got worse by more than it may, in words; None: it did not, or nobody knows."""
    if before is None or after is None:
        return None
    worse_by = after - before if guard.worse == "higher" else before - after
    if worse_by <= guard.by:
        return None
    return f"{guard.metric} went from {before:.6g} to {after:.6g}, which is worse by more than {guard.by:.6g}"
