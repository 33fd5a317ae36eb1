"""Decide whether a check that found drift is an alarm: at a level of 1 %, one in 100 checks is false. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class DriftVerdict:
    """The verdict on a check."""

    kind: Literal["found", "suspected", "none"]
    counts: bool
    """Whether it confirms others."""

    why: str


def evaluate_detection(
    outputs: Mapping[str, Any],
    before: Sequence[bool],
    *,
    confirm: tuple[int, int],
    sure_below: float,
    min_effect: float,
) -> DriftVerdict:
    """Evaluate the newest check.

    Args:
        outputs: The detection's outputs: ``drifted``, and optionally ``p_value`` and ``columns``.
        before: Whether earlier checks since the last alarm counted, the newest first.
        confirm: Of the last so many checks (the second number), so many have to count (the first).
        sure_below: A check with a p-value at or below this needs no other.
        min_effect: Where columns are named and none has this effect, the check does not count.
    """
    if not outputs.get("drifted"):
        return DriftVerdict("none", False, "")
    columns = [column for column in outputs.get("columns") or () if isinstance(column, Mapping)]
    effects = [
        (float(column["effect"]), str(column.get("name"))) for column in columns if _is_number(column.get("effect"))
    ]
    if effects and max(effects)[0] < min_effect:
        effect, name = max(effects)
        return DriftVerdict("suspected", False, f"the largest effect, {effect:.2f} in {name}, is below {min_effect:g}")
    needed, window = confirm
    counted = 1 + sum(before[: window - 1])
    if counted >= needed:
        return DriftVerdict(
            "found", True, f"{counted} of the last {min(window, 1 + len(before))} checks" if needed > 1 else ""
        )
    p = outputs.get("p_value")
    if _is_number(p) and float(str(p)) <= sure_below:
        return DriftVerdict("found", True, f"p = {float(str(p)):.2g} needs no confirmation")
    return DriftVerdict(
        "suspected", True, f"{counted} of the last {window} checks found drift, and {needed} are required"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
