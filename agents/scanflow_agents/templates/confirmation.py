"""Whether a look that found drift is an alarm: looks are many, and at a level of 1 % one in 100 is false. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class DriftVerdict:
    """What to make of a look."""

    kind: Literal["found", "suspected", "none"]
    counts: bool
    """Whether it is one of those that confirm others."""

    why: str


def verdict_on(
    outputs: Mapping[str, Any],
    before: Sequence[bool],
    *,
    confirm: tuple[int, int],
    sure_below: float,
    min_effect: float,
) -> DriftVerdict:
    """Judge the newest look.

    Args:
        outputs: What the detection left: ``drifted``, and ``p_value`` and ``columns`` if it can say so.
        before: Which looks counted since drift was found last, the newest first.
        confirm: Of the last so many looks (the second number), so many have to count (the first).
        sure_below: A look with a p-value at or below this needs no other.
        min_effect: Where columns are named and none has moved by as much, the look does not count.
    """
    if not outputs.get("drifted"):
        return DriftVerdict("none", False, "")
    columns = [one for one in outputs.get("columns") or () if isinstance(one, Mapping)]
    effects = [(float(one["effect"]), str(one.get("name"))) for one in columns if _is_number(one.get("effect"))]
    if effects and max(effects)[0] < min_effect:
        effect, name = max(effects)
        return DriftVerdict("suspected", False, f"the largest effect, {effect:.2f} in {name}, is below {min_effect:g}")
    needed, of = confirm
    counted = 1 + sum(before[: of - 1])
    if counted >= needed:
        return DriftVerdict(
            "found", True, f"{counted} of the last {min(of, 1 + len(before))} looks" if needed > 1 else ""
        )
    p = outputs.get("p_value")
    if _is_number(p) and float(str(p)) <= sure_below:
        return DriftVerdict("found", True, f"p {float(str(p)):.2g} needs no second look")
    return DriftVerdict("suspected", True, f"{counted} of the last {of} looks found drift, and {needed} are needed")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
