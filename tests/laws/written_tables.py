"""One table, written in the many ways in which people and programs write tables."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How a table is written. Delimited text has all of it, other formats the order and the compression."""

    kind: str = "csv"
    separator: str = ","
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    quoting: int = csv.QUOTE_MINIMAL
    day: str = "%Y-%m-%d"
    is_whole_as_float: bool = False
    has_open_rows: bool = False
    has_index: bool = False
    missing: str = ""
    line_end: str = "\n"
    packing: str = ""
    is_reversed: bool = False
    """The order of its columns."""


SEPARATORS = (",", ";", "\t", "|")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252")
DAYS = ("%Y-%m-%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y/%m/%d", "%Y-%m-%dT%H:%M:%S")
KINDS = ("csv", "parquet", "feather", "jsonl")
PACKINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def make_table(seed: int, rows: int = 60) -> pd.DataFrame:
    """Return a table of numbers, whole and large ones too, truth values, categories, codes and days, some missing."""
    generator = np.random.default_rng(seed)
    price = np.round(generator.normal(1500, 900, rows), 2)
    price[generator.random(rows) < 0.1] = np.nan
    days = pd.Timestamp("2025-03-04") + pd.to_timedelta(generator.integers(0, 300, rows), unit="D")
    names = np.array(["Málaga", "Köln", "a;b", "1,5 m", "tab\there", 'say "hi"', "two  words"], object)
    return pd.DataFrame(
        {
            "price": price,
            "share": np.round(generator.random(rows), 4),
            "count": generator.integers(0, 4_000_000, rows),
            "city": [None if value < 0.1 else names[int(value * 7)] for value in generator.random(rows)],
            "code": [f"{number:05d}" for number in generator.integers(0, 40, rows)],
            "day": days.astype("datetime64[us]"),
            "paid": generator.random(rows) < 0.5,
            "serial": 2**60 + generator.integers(0, 40, rows),
        }
    )


def write_table(folder: Path, name: str, table: pd.DataFrame, how: Writing) -> Path:
    """Write a table as that says, and return the file."""
    table = table.loc[:, table.columns[::-1]] if how.is_reversed else table
    content = {"parquet": _as_parquet, "feather": _as_feather, "jsonl": _as_json_lines}.get(how.kind, _as_text)(
        table, how
    )
    kind = how.kind if how.kind != "csv" or how.separator != "\t" else "tsv"
    path = folder / f"{name}.{kind}{how.packing}"
    if how.packing == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{name}.{kind}", content)
    else:
        path.write_bytes(PACKINGS[how.packing](content))
    return path


def _as_parquet(table: pd.DataFrame, how: Writing) -> bytes:
    return _write_binary((table.astype({"count": float}) if how.is_whole_as_float else table).to_parquet)


def _as_feather(table: pd.DataFrame, how: Writing) -> bytes:
    return _write_binary((table.astype({"count": str}) if how.is_whole_as_float else table).to_feather)


def _write_binary(write: Callable[[Any], Any]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def _as_json_lines(table: pd.DataFrame, how: Writing) -> bytes:
    texts = table.assign(day=table["day"].dt.strftime(how.day))
    return str(texts.to_json(orient="records", lines=True, double_precision=15)).encode()


def _as_text(table: pd.DataFrame, how: Writing) -> bytes:
    buffer = io.StringIO(newline="")
    lines = csv.writer(buffer, delimiter=how.separator, quoting=how.quoting, lineterminator=how.line_end)  # type: ignore[arg-type]  # typeshed has literals
    index = [""] if how.has_index else []
    lines.writerow([*index, *table.columns])
    for at, row in enumerate(table.itertuples(index=False)):
        cells = [_format_cell(value, how) for value in row]
        lines.writerow([*([at] if how.has_index else []), *cells, *([""] if how.has_open_rows else [])])
    return buffer.getvalue().encode(how.encoding)


def _format_cell(value: Any, how: Writing) -> str:
    if value is None or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return how.missing
    if isinstance(value, pd.Timestamp):
        return str(value.strftime(how.day))
    if isinstance(value, bool | np.bool_ | str):
        return str(value)
    text = f"{value:,}" if how.thousands else str(value)
    if isinstance(value, int | np.integer) and how.is_whole_as_float:
        text += ".0"
    return text.replace(",", "\0").replace(".", how.decimal).replace("\0", how.thousands)


@dataclass(frozen=True, kw_only=True)
class MixedColumn:
    """A column of 300 numbers of which some are words."""

    seed: int
    words: Mapping[str, float]
    """Each with its share of the rows."""

    shift: float = 0.0
    """Of the numbers' mean, in deviations."""

    def make_numbers(self) -> Any:
        """Return the numbers, (300,), NaN where there is a word."""
        return np.array([float(text) if text not in self.words else np.nan for text in self.make_texts()])

    def make_texts(self) -> list[str]:
        generator = np.random.default_rng(self.seed)
        texts = list(map(str, np.round(generator.normal(self.shift, size=300), 3)))
        rows = iter(generator.permutation(300))
        for word, share in self.words.items():
            for _ in range(round(share * 300)):
                texts[next(rows)] = word
        return texts


def write_mixed_column(path: Path, column: MixedColumn) -> Path:
    """Write a column as text, or in JSON lines its numbers as numbers; beside it is one of numbers that never drift."""
    beside = np.random.default_rng(100 + column.seed).normal(size=300).round(3)
    frame = pd.DataFrame({"q": column.make_texts(), "beside": beside})
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        values = [text if text in column.words else float(text) for text in frame["q"]]
        frame.assign(q=pd.Series(values, dtype=object)).to_json(path, orient="records", lines=True)
    return path
