"""Output of ``scanflow drift``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scanflow.app.quantities import format_count
from scanflow.drift.column_text import format_mean
from scanflow_client.formatting.text import format_percent
from scanflow_client.formatting.text_table import Screen, Table

if TYPE_CHECKING:
    from scanflow.drift.dependence import Dependence
    from scanflow.drift.segments import Segment
    from scanflow.drift.streaming import Change
    from scanflow.drift.table import DataTable
    from scanflow.drift.two_sample import ColumnDrift, Comparison

MAX_ROWS = 10
_BARS = "▁▂▃▄▅▆▇█"


def comparison_to_json(comparison: Comparison, within: Sequence[Segment] = ()) -> dict[str, Any]:
    """Return a comparison in JSON types, with those of its segments."""
    document = {
        "drifted": comparison.drifted or any(segment.comparison.drifted for segment in within if segment.comparison),
        "p": comparison.p,
        "level": comparison.level,
        "rows": {"reference": comparison.rows[0], "current": comparison.rows[1]},
        "compared_rows": {"reference": comparison.compared_rows[0], "current": comparison.compared_rows[1]},
        "not_compared": dict(comparison.left_out),
        "columns": [
            {name: value for name, value in asdict(column).items() if name not in {"shares", "is_time"}}
            for column in comparison.columns
        ],
        "joint": [{"test": test.test, "p": test.p, "columns": test.columns} for test in comparison.joint],
    }
    rows = [{"reference": segment.rows[0], "current": segment.rows[1]} for segment in within]
    segments = [
        {
            "name": segment.name,
            "rows": counts,
            **({} if segment.comparison is None else comparison_to_json(segment.comparison)),
        }
        for segment, counts in zip(within, rows, strict=True)
    ]
    return document | ({"segments": segments} if within else {})


def dependence_to_json(dependence: Dependence) -> dict[str, Any]:
    return {**asdict(dependence), "effective_rows": dependence.effective_rows, "stride": dependence.stride}


def format_dependence(dependence: Dependence, *, in_order: bool) -> list[str]:
    """Return what rows that depend on those before them mean for the verdict."""
    said = (
        f"Rows depend on those before them: {dependence.rows:,} say as much about {dependence.column} as "
        f"{dependence.effective_rows:,} independent ones."
    )
    if in_order:
        return [f"{said} One row in {dependence.stride} is compared."]
    return [f"{said} If they are in order of time, this may be a false alarm. Ask again with --in-order."]


def format_comparison(
    comparison: Comparison,
    reference: DataTable | None = None,
    current: DataTable | None = None,
    within: Sequence[Segment] = (),
) -> Screen:
    """Return the verdict, the columns that moved most, and the joint tests of all columns.

    Without the tables distributions are drawn as coarsely as they were compared.
    """
    old, new = comparison.rows
    verdict = "Drifted" if comparison.drifted else "No drift"
    seen = f"{verdict}: {new:,} rows against {old:,}, p {comparison.p:.3g} at the level {comparison.level:g}."
    by_joint = [test for test in comparison.joint if test.p <= comparison.level]
    lines: list[str | Table] = [seen]
    if comparison.compared_rows != comparison.rows:
        old, new = comparison.compared_rows
        lines.append(f"The figures are of {new:,} rows and {old:,}, drawn at random.")
    if comparison.left_out:
        lines.append("Not compared: " + ", ".join(f"{name} ({why})" for name, why in comparison.left_out.items()) + ".")
    if comparison.drifted_columns:
        lines.append(f"{format_count(len(comparison.drifted_columns), 'column')} of {len(comparison.columns)} drifted.")
    elif comparison.drifted:
        lines.append("No single column drifted, but their joint distribution did.")
    shown = comparison.drifted_columns[:MAX_ROWS] or comparison.columns[:3]
    rows = [_format_column(column, comparison, reference, current) for column in shown]
    lines.append(Table(("column", "test", "statistic", "p", "effect", "before", "after", "distribution"), rows))
    if len(comparison.drifted_columns) > MAX_ROWS:
        lines.append(f"... {len(comparison.drifted_columns) - MAX_ROWS} more; all of them: --json")
    for test in by_joint:
        about = f": {', '.join(test.columns)}" if test.columns else ""
        lines.append(f"All columns together ({_TESTS[test.test]}): p {test.p:.3g}{about}")
    if within:
        lines.append(
            Table(
                ("segment", "reference", "current", "p", "drifted in"), [_format_segment(segment) for segment in within]
            )
        )
    return lines


def _format_segment(segment: Segment) -> tuple[str, ...]:
    old, new = (f"{count:,}" for count in segment.rows)
    if segment.comparison is None:
        return segment.name, old, new, "-", "too few rows"
    named = ", ".join(column.name for column in segment.comparison.named[:MAX_ROWS])
    return (
        segment.name,
        old,
        new,
        f"{segment.comparison.p:.3g}",
        (named or "all together") if segment.comparison.drifted else "-",
    )


def format_changes(changes: Sequence[Change]) -> Screen:
    """Return the changes of a stream."""
    if not changes:
        return ["No change."]
    rows = [(f"{change.row:,}", f"{change.before:.4g}", f"{change.after:.4g}") for change in changes]
    return [f"{format_count(len(changes), 'change')}.", Table(("detected at row", "mean before", "mean after"), rows)]


_TESTS = {"means": "their means", "products": "their spread and dependence", "mmd": "maximum mean discrepancy"}


def _format_column(
    column: ColumnDrift, comparison: Comparison, reference: DataTable | None, current: DataTable | None
) -> tuple[str, ...]:
    from scanflow.drift.table import compute_column_shares

    bars = column.shares
    if column.name not in comparison.left_out and reference is not None and current is not None:
        bars = compute_column_shares(reference.columns[column.name], current.columns[column.name], most=12)
    tallest = max(*bars.reference, *bars.current, 1e-9)
    mark = "*" if comparison.has_drifted(column) else ""
    return (
        f"{column.name}{mark}",
        column.test,
        f"{column.statistic:.3g}",
        f"{column.p:.3g}",
        f"{column.effect:.2f}",
        _summarize_column(column.reference, column.current, is_time=column.is_time),
        _summarize_column(column.current, column.reference, is_time=column.is_time),
        f"{_draw_bars(bars.reference, tallest)} {_draw_bars(bars.current, tallest)}",
    )


def _draw_bars(values: Sequence[float], tallest: float) -> str:
    return "".join(_BARS[min(int(value / tallest * len(_BARS)), len(_BARS) - 1)] for value in values)


def _summarize_column(own: dict[str, float], other: dict[str, float], *, is_time: bool) -> str:
    """Return mean and deviation, or the shares of the two categories that moved most, and the missing share."""
    gone = "".join(
        f", {format_percent(own.get(share, 0.0))} {share}"
        for share in ("infinite", "missing")
        if own.get(share) or other.get(share)
    )
    if "mean" in own:
        return f"{format_mean(own['mean'], own['sd'], is_time=is_time)}{gone}"
    moved = sorted(own.keys() - {"infinite", "missing"}, key=lambda name: -abs(own[name] - other.get(name, 0.0)))[:2]
    shares = ", ".join(f"{name or repr(name)} {format_percent(own[name])}" for name in moved)
    return shares + gone if shares else gone.removeprefix(", ")
