"""What ``scanflow drift check`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import counted, percent

if TYPE_CHECKING:
    from scanflow.drift.table import DataTable
    from scanflow.drift.two_sample import ColumnDrift, Comparison

MOST = 10
_BARS = "▁▂▃▄▅▆▇█"


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON holds it."""
    return {
        "drifted": found.drifted,
        "p": found.p,
        "level": found.level,
        "rows": {"reference": found.rows[0], "current": found.rows[1]},
        "columns": [{name: one for name, one in asdict(each).items() if name != "shares"} for each in found.columns],
        "joint": [asdict(one) for one in found.joint],
    }


def comparison_screen(found: Comparison, reference: DataTable, current: DataTable) -> Screen:
    """Return the verdict, the columns that moved most, and what all columns say together."""
    old, new = found.rows
    verdict = "Drifted" if found.drifted else "No drift"
    seen = f"{verdict}: {new:,} rows against {old:,}, p {found.p:.3g} at the level {found.level:g}."
    by_joint = [one for one in found.joint if one.p <= found.level]
    lines: list[str | Table] = [seen]
    if found.drifted_columns:
        lines.append(f"{counted(len(found.drifted_columns), 'column')} of {len(found.columns)} drifted.")
    elif found.drifted:
        lines.append("No column drifted by itself, but how they vary together did.")
    shown = found.drifted_columns[:MOST] or found.columns[:3]
    rows = [_row(one, found, reference, current) for one in shown]
    lines.append(Table(("column", "test", "statistic", "p", "effect", "before", "after", "distribution"), rows))
    if len(found.drifted_columns) > MOST:
        lines.append(f"... {len(found.drifted_columns) - MOST} more; all of them: --json")
    for one in by_joint:
        about = f": {', '.join(one.columns)}" if one.columns else ""
        lines.append(f"All columns together ({_TESTS[one.test]}): p {one.p:.3g}{about}")
    return lines


_TESTS = {
    "means": "their means",
    "products": "their spread and how they depend on each other",
    "mmd": "maximum mean discrepancy",
}


def _row(one: ColumnDrift, found: Comparison, reference: DataTable, current: DataTable) -> tuple[str, ...]:
    from scanflow.drift.table import shares

    bars = shares(reference.columns[one.name], current.columns[one.name], most=12)
    tallest = max(*bars.reference, *bars.current, 1e-9)
    mark = "*" if one.p <= found.level and one.effect >= found.least_effect else ""
    return (
        f"{one.name}{mark}",
        one.test,
        f"{one.statistic:.3g}",
        f"{one.p:.3g}",
        f"{one.effect:.2f}",
        _summary(one.reference, one.current),
        _summary(one.current, one.reference),
        f"{_bars(bars.reference, tallest)} {_bars(bars.current, tallest)}",
    )


def _bars(values: Sequence[float], tallest: float) -> str:
    return "".join(_BARS[min(int(one / tallest * len(_BARS)), len(_BARS) - 1)] for one in values)


def _summary(own: dict[str, float], other: dict[str, float]) -> str:
    """Return mean and deviation, or the shares of the two categories that moved most, and what is missing."""
    gone = f", {percent(own['missing'])} missing" if own.get("missing") or other.get("missing") else ""
    if "mean" in own:
        return f"{own['mean']:.3g} ± {own['sd']:.3g}{gone}"
    moved = sorted(own.keys() - {"missing"}, key=lambda name: -abs(own[name] - other.get(name, 0.0)))[:2]
    return ", ".join(f"{name} {percent(own[name])}" for name in moved) + gone
