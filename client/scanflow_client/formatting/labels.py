"""The label queue and what people disagree on, as lines and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import as_json, clock, optional, shorten

MOST_COLUMNS = 12


def labels_screen(labels: Sequence[Mapping[str, Any]], *, limit: int, page: str) -> Screen:
    """Return the queue, of which at most ``limit`` samples were listed; ``page``: where it is in a browser.

    Where all samples are rows with the same few columns, each has a column of the table.
    """
    if not labels:
        return ["No sample waits for a label."]
    names = list(dict.fromkeys(name for one in labels for name in one.get("row") or {}))
    wide = all(one.get("row") for one in labels) and len(names) <= MOST_COLUMNS
    heads = ("id", "application", "prediction", "score", "purpose", "run", *(names if wide else ["sample"]))
    rows = [
        (
            str(one["id"]),
            str(one["app"]),
            "-" if one.get("guess") is None else as_json(one["guess"]),
            "-" if one.get("score") is None else f"{one['score']:.4g}",
            optional(one.get("purpose")),
            optional(one.get("run")),
            *([_value(one["row"].get(name)) for name in names] if wide else [_sample(one, page)]),
        )
        for one in labels
    ]
    more = [f"These are the first {limit}. See more: scanflow labels --limit {min(10 * limit, 1000)}"]
    one = f"Label one: scanflow labels --give {labels[0]['id']}=LABEL"
    after = f"{one}; many: scanflow labels --export rows.csv; in a browser: {page}"
    return [Table(heads, rows), *(more if len(labels) == limit else []), after]


def votes_screen(labels: Sequence[Mapping[str, Any]], *, disputed: bool) -> Screen:
    """Return who gave which label when, and which is in use; ``disputed``: only what people disagree on was listed."""
    if not labels:
        return ["Nobody disagrees on a label." if disputed else "No sample has a label."]
    rows = [
        (
            str(one["id"]),
            str(one["app"]),
            as_json(one["label"]),
            str(vote["by"]),
            as_json(vote["label"]),
            clock(vote["at"]),
        )
        for one in labels
        for vote in one["votes"]
    ]
    return [
        Table(("id", "application", "in use", "labelled by", "label", "when"), rows),
        "In use is the label with the most votes, of equals the newest; each labeller's newest is their vote.",
        f"Change yours: scanflow labels --give {labels[0]['id']}=LABEL --replace",
    ]


def _sample(one: Mapping[str, Any], page: str) -> str:
    if one.get("row"):
        return ", ".join(f"{name}={_value(value)}" for name, value in one["row"].items())
    data = one.get("data") or {}
    if isinstance(shape := data.get("shape"), list):
        return f"{'×'.join(map(str, shape))}, to be seen at {page}"
    return shorten(", ".join(f"{name}={as_json(value)}" for name, value in data.items()))


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else shorten(str(value))
