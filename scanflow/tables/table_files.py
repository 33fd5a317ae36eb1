"""Files of tables: CSV and others of delimited text, Parquet, Feather, JSON lines, also compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scanflow.arrays import EXACT_MAX, has_large, is_missing
from scanflow.errors import InvalidError, NotFoundError
from scanflow.tables.columns import (
    DELIMITED,
    FEATHER,
    FORMATS,
    JSON_LINES,
    PARQUET,
    ColumnKind,
    Columns,
    ReadOptions,
    Spelling,
    format_number,
    get_format,
    list_members,
    replace_columns,
)
from scanflow.tables.delimited import FALLBACK_ENCODING, HEAD_BYTES, Dialect, describe_fallback, guess_dialect
from scanflow.tables.texts import (
    MISSING,
    Mark,
    ReadTexts,
    check_mark,
    find_decimal_mark,
    get_code,
    is_ambiguous,
    make_texts,
    may_have_codes,
    read_texts,
)

_SAMPLE: Final = 1000
_UNNAMED: Final = re.compile(r"Unnamed: \d+")
_MEANS_MISSING: Final = frozenset(MISSING)


def read_columns(
    path: Path,
    options: ReadOptions | None = None,
    *,
    texts: Collection[str] = (),
    kinds: Mapping[str, ColumnKind] | None = None,
) -> Columns:
    """Read a file of a table.

    Args:
        path: The file; its ending says its format.
        options: What is known of it.
        texts: Columns that are text, as they stand in the file, whatever they look like.
        kinds: Columns of which is known whether they are of numbers or text, where their own values may say otherwise.

    Raises:
        NotFoundError: there is none.
        InvalidError: it is of another kind, cannot be read, or may be read in two ways.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no file {str(path)!r}. Give a file of {FORMATS}.")
    try:
        return _read(path, options or ReadOptions(), texts, kinds or {})
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, lzma.LZMAError) as error:
        if isinstance(error, InvalidError):
            raise
        raise InvalidError(f"{str(path)!r} cannot be read ({str(error).strip()}). Write it again.") from error


def _read(path: Path, options: ReadOptions, texts: Collection[str], kinds: Mapping[str, ColumnKind]) -> Columns:
    kind = get_format(path)
    if kind in DELIMITED:
        return _read_delimited(path, options, texts, kinds)
    with _open(path) as file:
        if kind in PARQUET:
            return _read_frame(_read_typed(pd.read_parquet, file.read()), texts, kinds)
        if kind in FEATHER:
            return _read_frame(_read_typed(pd.read_feather, file.read()), texts, kinds)
        if kind in JSON_LINES:
            return _read_frame(_read_lines(file, path.name), texts, kinds)
    raise InvalidError(
        f"{path.name!r} has an unknown format. Give a file that ends in .csv, .tsv, .parquet, .feather or .jsonl, "
        "or in one of these and .gz, .bz2, .xz, .zip or .zst."
    )


def _read_lines(file: IO[bytes], name: str) -> pd.DataFrame:
    """Read JSON lines, an object each; whole numbers stay whole where others are missing or have fractions.

    Raises:
        InvalidError: a line holds something else.
    """
    records: list[dict[str, Any]] = []
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        record = json.loads(line)
        if not isinstance(record, dict):
            raise InvalidError(
                f"Line {number} of {name} is not an object. Write one a line, with the columns' names: "
                '{"age": 31, "city": "Bern"}'
            )
        records.append(record)
    names = dict.fromkeys(column for record in records for column in record)
    return pd.DataFrame({column: _make_column([record.get(column) for record in records]) for column in names})


def _make_column(values: Sequence[Any]) -> Any:
    """Return values of JSON as a column: floats would be other numbers than large whole ones."""
    if any(isinstance(value, int) and abs(value) >= EXACT_MAX for value in values):
        types = set(map(type, values))
        if types <= {int, float, type(None)} and types != {int}:
            numbers = [
                np.longdouble("nan" if value is None else value if isinstance(value, float) else str(int(value)))
                for value in values
            ]
            return pd.Series(np.array(numbers, np.longdouble))
    return pd.Series(values, dtype=None if values else object)


def _read_typed(read: Callable[..., pd.DataFrame], content: bytes) -> pd.DataFrame:
    """Read a file that has types. Of whole numbers of which some are missing pandas makes floats, if it may not keep
    them; large ones would be others then."""
    frame = read(io.BytesIO(content))
    if names := [name for name in frame.columns if isinstance(name, str) and has_large(frame[name])]:
        exact = read(io.BytesIO(content), columns=names, dtype_backend="numpy_nullable")
        frame = replace_columns(frame, {name: exact[name] for name in names if exact[name].dtype.kind in "iu"})
    return frame


def _open_zip(path: Path) -> IO[bytes]:
    with zipfile.ZipFile(path) as archive:
        members = list_members(archive)
        if len(members) != 1:
            listed = f"{len(members)} files ({', '.join(members[:5])})" if members else "no file"
            raise InvalidError(f"{path.name} has {listed}, and is to have one. Unpack it, and give one of its files.")
        return io.BytesIO(archive.read(members[0]))


def _open_zstandard(path: Path) -> IO[bytes]:
    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
        return io.BytesIO(stream.read())


_OPENERS: Mapping[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zip": _open_zip,
    ".zst": _open_zstandard,
}


def _open(path: Path) -> IO[bytes]:
    opener = _OPENERS.get(path.suffix.lower())
    opened: IO[bytes] = path.open("rb") if opener is None else opener(path)
    return opened


def _read_delimited(
    path: Path, options: ReadOptions, as_texts: Collection[str], kinds: Mapping[str, ColumnKind]
) -> Columns:
    with _open(path) as file:
        dialect = guess_dialect(
            file.read(HEAD_BYTES), path.name, encoding=options.encoding, separator=options.separator
        )
    try:
        frame = _read_text(path, dialect, [*as_texts, *kinds])
    except UnicodeDecodeError:  # further on than what was looked at
        if options.encoding:
            raise
        dialect = replace(dialect, encoding=FALLBACK_ENCODING, note=describe_fallback(path.name))
        frame = _read_text(path, dialect, [*as_texts, *kinds])
    mark = check_mark(options.decimal)
    texts = {name: _read_texts(frame[name]) for name in frame.columns if frame[name].dtype.kind not in "biuf"}
    marks: dict[str, Mark | None] = {}
    if mark is None:
        marks = {name: find_decimal_mark(column) for name, column in texts.items() if name not in as_texts}
    has_commas = mark == "," or "," in marks.values()
    numbers = [name for name in frame.columns if has_commas and frame[name].dtype.kind == "f"]
    if numbers:  # 1.234 was read as a number with a decimal point
        frame = _read_text(path, dialect, [*as_texts, *kinds, *numbers])
        again = {name: _read_texts(frame[name]) for name in numbers}
        marks |= {name: find_decimal_mark(column) for name, column in again.items() if mark is None}
        texts |= again
    large = _read_large(path, dialect, [name for name in frame.columns if name not in texts and has_large(frame[name])])
    of_others: Mark | None = "," if has_commas else None
    values: dict[str, NDArray[Any]] = {}
    read: dict[str, ReadTexts] = {}
    unnamed = {f"Unnamed: {at}" for at, name in enumerate(dialect.header) if not name.strip()} | {"Unnamed: 0"}
    left_out = {name: "row numbers" for name in frame.columns if name in unnamed and _are_row_numbers(frame[name])}
    for name in frame.columns.difference(list(left_out), sort=False):
        own: Mark | None = mark or marks.get(name) or of_others
        if name not in texts:
            values[name] = large.get(name, np.asarray(frame[name]))
        elif name in as_texts:
            values[name] = make_texts(None if is_missing(text) else text for text in frame[name])
        elif own is None and is_ambiguous(texts[name]):
            raise InvalidError(
                f"{path.name}: {name!r} has values such as {next(filter(None, texts[name]))!r}, which may be whole "
                "numbers or have a decimal comma. Say which mark decimals have: --decimal . or --decimal ,"
            )
        else:
            read[name] = read_texts(name, texts[name], own or ".", kinds.get(name))
            values[name] = read[name].values
    columns = _make_columns(values, read, left_out, dialect.note)
    whole = [name for name in values if name not in texts and _are_whole(values[name])]
    return replace(columns, spellings={**columns.spellings, **_describe_codes(path, dialect, whole)})


def _read_large(path: Path, dialect: Dialect, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the columns of whole numbers that are no floats, exactly."""
    frame = _read_text(path, dialect, names) if names else {}
    read = {name: read_texts(name, _read_texts(frame[name]), ".", "number").values for name in names}
    return {name: numbers for name, numbers in read.items() if numbers.dtype == np.longdouble}


def _are_whole(numbers: NDArray[Any]) -> bool:
    if numbers.dtype.kind == "f":
        present = numbers[~np.isnan(numbers)]
        return bool(len(present)) and all((part == np.floor(part)).all() for part in (present[:_SAMPLE], present))
    return numbers.dtype.kind in "iu"


def _describe_codes(path: Path, dialect: Dialect, names: Sequence[str]) -> dict[str, Spelling]:
    """Return how columns are written of which some numbers have zeros in front."""
    if not names:
        return {}
    with _open(path) as file:
        content = file.read()
    if dialect.encoding.startswith(("utf-16", "utf-32")):
        content = content.decode(dialect.encoding).encode()
    if not may_have_codes(content, dialect.separator):
        return {}
    frame = _read_text(path, dialect, names)
    counted = {name: frame[name].str.strip().value_counts() for name in names}
    return {
        name: Spelling(numbers=int(counts.sum()), different_numbers=len(counts), code=code)
        for name, counts in counted.items()
        if (code := get_code(counts.index))
    }


def _make_columns(
    values: Mapping[str, NDArray[Any]], read: Mapping[str, ReadTexts], left_out: Mapping[str, str], note: str = ""
) -> Columns:
    words = {name: column.words for name, column in read.items() if column.words is not None}
    spellings = {name: column.spelling for name, column in read.items() if column.spelling is not None}
    zoned = [name for name, column in read.items() if column.has_zone]
    return Columns(values, note, left_out, words=words, spellings=spellings, zoned=zoned, from_texts=tuple(read))


def _are_row_numbers(column: Any) -> bool:
    """Return whether a column numbers its rows, as the index of a DataFrame that was written with it, in any order."""
    return column.dtype.kind in "iu" and bool((column >= 0).all()) and bool(column.is_unique)


def _read_text(path: Path, dialect: Dialect, texts: Collection[str]) -> pd.DataFrame:
    header = [name.strip() for name in dialect.header]
    if (doubled := next((name for name in header if name and header.count(name) > 1), None)) is not None:
        raise InvalidError(f"{path.name} has two columns {doubled!r}. Name each of them otherwise.")
    names = [name or f"Unnamed: {at}" for at, name in enumerate(header)]  # as pandas names them
    single = len(names) == 1
    with _open(path) as file:
        # An empty line is a missing value where there is one column; at the end of the file it is nothing.
        content = io.StringIO(file.read().decode(dialect.encoding).strip("\r\n")) if single else file
        frame = pd.read_csv(
            content,
            sep=dialect.separator,
            encoding=dialect.encoding,
            header=0,
            names=names,
            index_col=False,  # where lines end in a separator, the names are not those of an index and what follows
            dtype=dict.fromkeys(texts, str),
            keep_default_na=False,
            na_values=list(MISSING),
            low_memory=False,
            skip_blank_lines=not single,
        )
    unnamed = [name for name, given in zip(names, header, strict=True) if not given]
    return frame.drop(columns=[name for name in unnamed if bool(frame[name].isna().all())])


def _read_texts(column: Any) -> NDArray[np.object_]:
    """Return a column as texts without blanks around them, None for those that mean a missing value."""
    codes, values = pd.factorize(column) if isinstance(column.dtype, pd.StringDtype) else (None, column)
    texts = ("" if is_missing(value) else _format(value).strip() for value in values)
    levels = make_texts([*(None if text in _MEANS_MISSING else text for text in texts), None])
    return levels[:-1] if codes is None else levels[codes]  # -1 where missing, which is the last place


def _read_frame(frame: pd.DataFrame, as_texts: Collection[str], kinds: Mapping[str, ColumnKind]) -> Columns:
    values: dict[str, NDArray[Any]] = {}
    read: dict[str, ReadTexts] = {}
    left_out: dict[str, str] = {}
    for label in frame.columns:
        name, column = str(label), frame[label]
        if _UNNAMED.fullmatch(name) and _are_row_numbers(column):
            left_out[name] = "row numbers"
            continue
        is_typed = isinstance(column.dtype, np.dtype) and column.dtype.kind in "biufmM"
        if is_typed and name not in as_texts and kinds.get(name) != "text":
            values[name] = np.asarray(column)
            continue
        different = column.unique() if isinstance(column.dtype, pd.StringDtype) else column
        present = [value for value in different if not is_missing(value)]
        types = {type(value) for value in present}
        if types and types <= {list, tuple, np.ndarray}:
            if len(present) == len(column) and len({np.shape(value) for value in present}) == 1:
                values[name] = np.stack([np.asarray(value) for value in present])
            else:
                left_out[name] = "lists that are no vectors of one length"
        elif types == {dict}:
            left_out[name] = "nested records"
        elif name in as_texts:
            values[name] = make_texts(None if is_missing(value) else _format(value) for value in column)
        elif types == {str} or name in kinds or (str in types and all(map(_is_number_type, types - {str}))):
            texts = _read_texts(column)
            read[name] = read_texts(name, texts, find_decimal_mark(texts) or ".", kinds.get(name))
            values[name] = read[name].values
        else:
            values[name] = make_texts(None if is_missing(value) else value for value in column)
    missing = {name: np.array([is_missing(value) for value in frame[name]], bool) for name in left_out}
    columns = _make_columns(values, read, left_out)
    zoned = [str(label) for label in frame.columns if getattr(frame[label].dtype, "tz", None) is not None]
    return replace(columns, missing=missing, zoned=[*columns.zoned, *zoned])


def _is_number_type(one: type) -> bool:
    return issubclass(one, int | float | np.number) and one is not bool


def _format(value: Any) -> str:
    return format_number(float(value)) if isinstance(value, float | np.floating) else str(value)
