"""Commands on drift that need no agent: drift check, drift stream."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from scanflow.errors import InvalidError, UsageError
from scanflow_client.cli.command_help import DocumentedCommand
from scanflow_client.cli.command_options import DecimalOption, EncodingOption, JsonOption, SeparatorOption
from scanflow_client.cli.command_output import respond
from scanflow_client.cli.exit_codes import UNAVAILABLE

EXIT_DRIFTED = UNAVAILABLE.code

drift = typer.Typer(name="drift", help="Detect drift in tables and streams.", no_args_is_help=True)


@drift.command(cls=DocumentedCommand)
def check(
    reference: Annotated[
        Path,
        typer.Argument(help="Data without drift: CSV, Parquet, Feather, JSON lines, npz, a folder of predictions."),
    ],
    current: Annotated[Path, typer.Argument(help="The data to test, with the same columns.")],
    level: Annotated[float, typer.Option(help="Maximum rate of false alarms on data without drift.")] = 0.01,
    min_effect: Annotated[
        float, typer.Option(min=0, max=1, help="Ignore changes of a column's distribution below this.")
    ] = 0.0,
    by: Annotated[str, typer.Option(help="Also test within each category of this column.")] = "",
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Leave out a column, such as a date that only grows. May be repeated."),
    ] = None,
    fail_on_drift: Annotated[bool, typer.Option("--fail-on-drift", help="Exit with 3 if there is drift.")] = False,
    separator: SeparatorOption = "",
    encoding: EncodingOption = "",
    decimal: DecimalOption = "",
    in_order: Annotated[
        bool, typer.Option("--in-order", help="The rows are in order of time: compare nearly independent ones.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the columns that moved most into this SVG file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Test whether a table has drifted from another, and in which columns.

    Examples:
        scanflow drift check january.csv june.csv
        scanflow drift check january.csv june.csv --without date
        scanflow drift check january.parquet june.parquet --fail-on-drift --plot drift.svg
    """
    from scanflow.drift.comparable import leave_out, list_incomparable_columns
    from scanflow.drift.dependence import find_dependence, thin
    from scanflow.drift.read import read_pair
    from scanflow.drift.segments import Segment, compare_by
    from scanflow.drift.two_sample import choose_permutations, compare
    from scanflow.tables.columns import ReadOptions
    from scanflow_client.formatting.drift_text import (
        comparison_to_json,
        dependence_to_json,
        format_comparison,
        format_dependence,
    )

    if plot is not None and (plot.suffix.lower() != ".svg" or not plot.absolute().parent.is_dir()):
        raise UsageError(f"--plot writes an SVG file. {str(plot)!r} has to end in .svg, and its folder to be there.")
    options = ReadOptions(separator=separator, encoding=encoding, decimal=decimal)
    before, after, aligned, unread = read_pair(reference, current, options)
    unread |= dict.fromkeys(without or (), "by --without")
    before, after = (leave_out(table, without or ()) for table in (before, after))
    within: list[Segment] = []
    dependence = None
    if in_order:
        before, after, dependence = thin(before, after, list_incomparable_columns(before, after))
    if by:
        comparison, within = compare_by(before, after, by, level=level, least_effect=min_effect)
    else:
        permutations = choose_permutations(level)
        comparison = compare(before, after, level=level, least_effect=min_effect, permutations=permutations)
    comparison = replace(comparison, left_out={**unread, **comparison.left_out})
    if not in_order:
        dependence = find_dependence(before, after, comparison.left_out)
    if plot is not None:
        from scanflow.reports.distributions import draw_columns

        try:
            plot.write_text(draw_columns(comparison), encoding="utf-8")
        except OSError as error:
            raise InvalidError(f"{str(plot)!r} cannot be written: {error.strerror}. Name another file.") from error
    document = comparison_to_json(comparison, within) | ({"aligned": aligned} if aligned else {})
    notes = list(aligned)
    if dependence is not None:
        document["dependence"] = dependence_to_json(dependence)
        # Of many rows few are drawn, which are then far apart.
        matters = document["drifted"] and dependence.effective_rows < max(comparison.compared_rows)
        notes += format_dependence(dependence, in_order=in_order) if in_order or matters else []
    respond(document, as_json, lambda: [*notes, *format_comparison(comparison, before, after, within)])
    if fail_on_drift and document["drifted"]:
        raise typer.Exit(EXIT_DRIFTED)


@drift.command(cls=DocumentedCommand)
def stream(
    file: Annotated[Path, typer.Argument(help="Rows in order of arrival: CSV, Parquet, npz.")],
    column: Annotated[str, typer.Argument(help="The column of numbers: a latency, an error, a feature.")],
    detector: Annotated[str, typer.Option(help="adwin, kswin or page-hinkley.")] = "adwin",
    as_json: JsonOption = False,
) -> None:
    """Find the rows at which a stream of numbers changed.

    Examples:
        scanflow drift stream requests.csv latency
        scanflow drift stream requests.csv latency --detector kswin
    """
    from scanflow.drift.read import read_table
    from scanflow.drift.streaming import detect_changes
    from scanflow_client.formatting.drift_text import format_changes

    table = read_table(file)
    if column not in table.columns or not table.columns[column].is_numeric:
        raise InvalidError(f"{file.name} has no column {column!r} of numbers. It has {', '.join(table.columns)}.")
    values = table.columns[column]
    detections = detect_changes(values.values[~values.missing], detector)
    respond([asdict(change) for change in detections], as_json, lambda: format_changes(detections))
