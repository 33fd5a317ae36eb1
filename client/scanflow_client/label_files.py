"""Write the label queue to a CSV file that people fill in, and read it back."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scanflow.app.parameter_texts import parse_json
from scanflow.arrays import EXACT_MAX
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.tables.delimited import HEAD_BYTES, Dialect, get_binary_format, guess_dialect
from scanflow.text.printable import make_one_line, make_printable

_MAX_CLASSES = 50
_TRUTHS = {"true": True, "false": False}
_FORMULA_MARKS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # and full-width
FIRST_COLUMNS, LAST_COLUMNS = ("id",), ("guess", "purpose", "label")


def write(path: Path, samples: Sequence[Mapping[str, Any]]) -> int:
    """Write a row for each sample, with its columns and an empty label; return the number of rows.

    Raises:
        InvalidError: the file exists, and may hold labels, or it cannot be written.
    """
    columns = list(dict.fromkeys(name for sample in samples for name in sample.get("row") or {}))
    own = {*FIRST_COLUMNS, *LAST_COLUMNS}
    shown = [_make_text(make_one_line(name)) for name in columns]
    heads = [*FIRST_COLUMNS, *(f"row.{name}" if name in own else name for name in shown), *LAST_COLUMNS]
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(heads)
            for sample in samples:
                row = sample.get("row") or {}
                values = [_format_cell(row.get(name)) for name in columns]
                lines.writerow(
                    [_make_text(sample["id"]), *values, _format_cell(sample.get("guess")), sample.get("purpose"), ""]
                )
    except FileExistsError as error:
        raise InvalidError(
            f"The file {str(path)!r} exists already and may contain labels. Name another file."
        ) from error
    except OSError as error:
        raise InvalidError(f"{str(path)!r} cannot be written: {error.strerror}. Name another file.") from error
    return len(samples)


def parse_label(text: str) -> Any:
    """Return a label by its value: a number however it is written (``3`` for 3.0), true or false in any case, JSON, or
    the text; None: it is null."""
    if text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    value = parse_json(text)
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_MAX else value


def read(path: Path, *, encoding: str = "", separator: str = "", decimal: str = "") -> tuple[list[dict[str, Any]], int]:
    """Return the labels of a file with the columns ``id`` and ``label``, and the number of rows without a label.

    Raises:
        InvalidError: it cannot be read, or some of its lines are wrong; the message names them.
        NotFoundError: there is no such file.
    """
    labels: list[dict[str, Any]] = []
    wrong: list[str] = []
    unlabelled = 0
    try:
        dialect = _guess_dialect(path, encoding, separator)
        with path.open(encoding=dialect.encoding, newline="") as lines:
            rows = csv.DictReader(lines, strict=True, delimiter=dialect.separator, skipinitialspace=True)
            rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
            if twice := [name for name in ("id", "label") if (rows.fieldnames or []).count(name) > 1]:
                raise InvalidError(f"{str(path)!r} has two columns {twice[0]!r}. Name one of them otherwise.")
            if missing := [name for name in ("id", "label") if name not in (rows.fieldnames or ())]:
                raise InvalidError(
                    f"{str(path)!r} has no column {missing[0]!r}. Its first line has to name the columns: id,label"
                )
            for row in rows:
                id, label = _read_text(row["id"] or ""), _read_text(row["label"] or "")
                if not label:
                    unlabelled += 1
                elif not id:
                    wrong.append(f"line {rows.line_num}: it has a label but no id")
                elif parse_label(label) is None:
                    wrong.append(f"line {rows.line_num}: the label of {id!r} is null. Leave it empty")
                else:
                    labels.append({"id": id, "label": label, "line": rows.line_num})
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {str(path)!r:.300}. Write one: scanflow labels --export FILE") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidError(f"{str(path)!r:.300} cannot be read: {why}. Save it as a CSV file in UTF-8.") from error
    if wrong:
        raise InvalidError(f"No label from {str(path)!r} was recorded:\n" + "\n".join(f"- {line}" for line in wrong))
    numbers = _read_numbers([label["label"] for label in labels], path, decimal)
    for row in labels:
        text: str = row["label"]
        row["label"] = parse_label(numbers.get(text, text))
    return labels, unlabelled


def _guess_dialect(path: Path, encoding: str, separator: str) -> Dialect:
    """Return how a file of labels is written.

    Raises:
        InvalidError: it is no text, or may be read in two ways.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if binary := get_binary_format(head):
        raise InvalidError(f"{str(path)!r:.300} is {binary}, and no CSV file. Save it as CSV in UTF-8.")
    if head.removeprefix(codecs.BOM_UTF8).startswith(b"id,"):  # as we write it: what else ids contain is no separator
        separator = separator or ","
    dialect = guess_dialect(head, repr(str(path)), encoding=encoding, separator=separator)
    if dialect.note:  # a person's words, of which none may be another
        raise InvalidError(
            f"{str(path)!r:.300} is not in UTF-8. Say its encoding, as --encoding {dialect.encoding}, or save it "
            "in UTF-8."
        )
    return dialect


def _read_numbers(labels: Sequence[str], path: Path, decimal: str) -> dict[str, str]:
    """Return numbers with commas, of decimals or between thousands, as JSON writes them.

    Raises:
        InvalidError: they may be either.
    """
    if not any("," in label and label[-1:].isdigit() for label in labels):
        return {}
    from scanflow.tables.texts import check_mark, find_decimal_mark, is_ambiguous, make_texts, parse_numbers

    texts = make_texts(labels)
    mark = check_mark(decimal) or find_decimal_mark(texts)
    if mark is None and is_ambiguous(texts):
        raise InvalidError(
            f"{str(path)!r:.300} has labels such as {next(label for label in labels if ',' in label)!r}, which may be "
            "whole numbers or have a decimal comma. Say which mark decimals have: --decimal . or --decimal ,"
        )
    different = list(dict.fromkeys(labels))
    numbers = parse_numbers(different, mark or ".")
    return {
        label: repr(float(number))
        for label, number in zip(different, numbers, strict=True)
        if "," in label and number == number
    }


def describe_unknown_classes(
    labels: Sequence[Mapping[str, Any]], others: Iterable[Mapping[str, Any]] = ()
) -> list[str]:
    """Return a line for each class among new labels that the model predicted for none of the samples.

    Where the model's guesses are amounts, labels that are no numbers are named; where they are of many classes, no
    label is.

    Args:
        labels: The labels as the server recorded them, with the ``guess`` of the model.
        others: Other samples of the label queue, of these and other applications.
    """
    apps = {label.get("app") for label in labels}
    known = [*labels, *(sample for sample in others if sample.get("app") in apps)]
    guesses = [sample.get("guess") for sample in known if sample.get("guess") not in (None, -1)]
    classes = {str(guess) for guess in guesses}
    are_numbers = all(isinstance(guess, int | float) for guess in guesses)
    is_amount = any(isinstance(guess, float) and not guess.is_integer() for guess in guesses)
    if is_amount and are_numbers:
        expected = "no number, as the predictions are; such a sample is left out of the training."
    elif is_amount or not 2 <= len(classes) <= _MAX_CLASSES:
        return []
    else:
        expected = f"no class that the model predicted here: {', '.join(sorted(classes))}."
    ids: dict[str, list[str]] = {}
    for label in labels:
        is_number = isinstance(label.get("label"), int | float)
        if str(label.get("label")) not in classes and not (are_numbers and is_number):  # of digits, not all come up
            ids.setdefault(str(label.get("label")), []).append(str(label["id"]))
    return [
        f"! {name!r} (of {', '.join(own[:3])}{', ...' if len(own) > 3 else ''}) is {expected}"
        f"{'' if is_amount else did_you_mean(name, classes)} If it is mistyped, correct it: scanflow labels --give "
        "ID=LABEL --replace"
        for name, own in ids.items()
    ]


def _format_cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    return _make_text(make_printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))


def _make_text(text: str) -> str:
    """Return text that comes from the clients of the service so that no spreadsheet evaluates it: with ``'`` before."""
    return f"'{text}" if _needs_mark(text) else text


def _read_text(cell: str) -> str:
    """Return the text of a cell without what :func:`_make_text` put before it, and without space around it."""
    text = cell.lstrip()
    return text[1:] if text.startswith("'") and _needs_mark(text[1:]) else text.rstrip()


def _needs_mark(text: str) -> bool:
    """Return whether a spreadsheet may take a text for a formula, or would lose the space around it.

    So would text that begins with the mark already, so that one mark can be taken off again.
    """
    bare = text.lstrip("'")
    return bare.startswith(_FORMULA_MARKS) or bare != bare.strip() or not bare[:1].isprintable()
