"""What ``scanflow drift`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scanflow.app.quantities import counted
from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import percent

if TYPE_CHECKING:
    from scanflow.drift.segments import Segment
    from scanflow.drift.streaming import Change
    from scanflow.drift.table import DataTable
    from scanflow.drift.two_sample import ColumnDrift, Comparison

MOST = 10
_BARS = "▁▂▃▄▅▆▇█"


def comparison_json(found: Comparison, within: Sequence[Segment] = ()) -> dict[str, Any]:
    """Return a comparison as JSON holds it, with those of the segments if there are any."""
    told = {
        "drifted": found.drifted or any(one.found.drifted for one in within if one.found),
        "p": found.p,
        "level": found.level,
        "rows": {"reference": found.rows[0], "current": found.rows[1]},
        "columns": [{name: one for name, one in asdict(each).items() if name != "shares"} for each in found.columns],
        "joint": [{"test": one.test, "p": one.p, "columns": one.columns} for one in found.joint],
    }
    rows = [{"reference": one.rows[0], "current": one.rows[1]} for one in within]
    segments = [
        {"name": one.name, "rows": both, **({} if one.found is None else comparison_json(one.found))}
        for one, both in zip(within, rows, strict=True)
    ]
    return told | ({"segments": segments} if within else {})


def comparison_screen(
    found: Comparison, reference: DataTable, current: DataTable, within: Sequence[Segment] = ()
) -> Screen:
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
    if within:
        lines.append(Table(("segment", "reference", "current", "p", "drifted in"), [_segment(one) for one in within]))
    return lines


def _segment(one: Segment) -> tuple[str, ...]:
    old, new = (f"{count:,}" for count in one.rows)
    if one.found is None:
        return one.name, old, new, "-", "too few rows"
    named = ", ".join(column.name for column in one.found.named[:MOST])
    return one.name, old, new, f"{one.found.p:.3g}", (named or "all together") if one.found.drifted else "-"


def changes_screen(found: Sequence[Change]) -> Screen:
    """Return where a stream changed."""
    if not found:
        return ["No change."]
    rows = [(f"{one.row:,}", f"{one.before:.4g}", f"{one.after:.4g}") for one in found]
    return [f"{counted(len(found), 'change')}.", Table(("seen at row", "mean before", "mean after"), rows)]


_TESTS = {
    "means": "their means",
    "products": "their spread and how they depend on each other",
    "mmd": "maximum mean discrepancy",
}


def _row(one: ColumnDrift, found: Comparison, reference: DataTable, current: DataTable) -> tuple[str, ...]:
    from scanflow.drift.table import shares

    bars = shares(reference.columns[one.name], current.columns[one.name], most=12)
    tallest = max(*bars.reference, *bars.current, 1e-9)
    mark = "*" if found.has_drifted(one) else ""
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
    return ", ".join(f"{name or repr(name)} {percent(own[name])}" for name in moved) + gone
