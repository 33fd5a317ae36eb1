"""The tables of the pages: columns of which no row has a value are left out."""

from __future__ import annotations

from scanflow_server.dashboard.page_cells import Cell, CellTable, Moment, list_filled_columns
from tests.unit.test_markup import render_evil_page


def test_a_column_is_left_out_where_no_row_has_a_value() -> None:
    columns = ("name", "restarts", "error", "last", "models", "fired")
    rows: list[list[Cell]] = [["a", None, "", Moment(None), [], 0], ["b", None, None, Moment(None), [], 0]]
    assert list_filled_columns(CellTable(columns, rows)) == [0, 5]
    assert list_filled_columns(CellTable(columns, [*rows, ["c", 1, None, Moment(2.0), None, None]])) == [0, 1, 3, 5]


def test_a_page_shows_the_other_columns() -> None:
    page = render_evil_page("services", table=CellTable(("service", "error"), [["digits", None]]), window="60 s")
    assert ('<th scope="col">service</th>' in page, 'data-label="error"' in page) == (True, False)


def test_a_table_has_the_columns_of_its_rows_in_their_order() -> None:
    table = CellTable.make([{"run": "a", "took": None}, {"run": "b", "took": "1 s"}], "No run.", "scanflow run")
    assert table == CellTable(("run", "took"), [["a", None], ["b", "1 s"]], "No run.", "scanflow run")
    assert CellTable.make([], "No run.") == CellTable((), [], "No run.")
