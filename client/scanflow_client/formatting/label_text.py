"""The label queue and votes on labels, as lines and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scanflow_client.formatting.text import format_optional, format_time, shorten, to_json
from scanflow_client.formatting.text_table import Screen, Table

MAX_COLUMNS = 12


def format_labels(labels: Sequence[Mapping[str, Any]], *, limit: int, page: str) -> Screen:
    """Return the queue, of which at most ``limit`` samples were listed; ``page``: its address in a browser.

    Where all samples are rows with the same few columns, each has a column of the table.
    """
    if not labels:
        return ["No sample is waiting for a label."]
    names = list(dict.fromkeys(name for sample in labels for name in sample.get("row") or {}))
    wide = all(sample.get("row") for sample in labels) and len(names) <= MAX_COLUMNS
    heads = ("id", "application", "prediction", "score", "purpose", "run", *(names if wide else ["sample"]))
    rows = [
        (
            str(sample["id"]),
            str(sample["app"]),
            "-" if sample.get("guess") is None else to_json(sample["guess"]),
            "-" if sample.get("score") is None else f"{sample['score']:.4g}",
            format_optional(sample.get("purpose")),
            format_optional(sample.get("run")),
            *([_format_value(sample["row"].get(name)) for name in names] if wide else [_format_sample(sample, page)]),
        )
        for sample in labels
    ]
    more = [f"These are the first {limit}. See more: scanflow labels --limit {min(10 * limit, 1000)}"]
    advice = f"Label one: scanflow labels --give {labels[0]['id']}=LABEL"
    after = f"{advice}; many: scanflow labels --export rows.csv; in a browser: scanflow dashboard labels, or {page}"
    return [Table(heads, rows), *(more if len(labels) == limit else []), after]


def format_votes(labels: Sequence[Mapping[str, Any]], *, disputed: bool) -> Screen:
    """Return the votes on samples, and the label in use; ``disputed``: only disputed samples were listed."""
    if not labels:
        return ["No sample has conflicting labels." if disputed else "No sample has a label."]
    rows = [
        (
            str(sample["id"]),
            str(sample["app"]),
            to_json(sample["label"]),
            str(vote["by"]),
            to_json(vote["label"]),
            format_time(vote["at"]),
        )
        for sample in labels
        for vote in sample["votes"]
    ]
    return [
        Table(("id", "application", "in use", "labelled by", "label", "when"), rows),
        "The label with the most votes is in use; on a tie, the newest. A labeller's newest label is the vote.",
        f"Change yours: scanflow labels --give {labels[0]['id']}=LABEL --replace",
    ]


def _format_sample(sample: Mapping[str, Any], page: str) -> str:
    if sample.get("row"):
        return ", ".join(f"{name}={_format_value(value)}" for name, value in sample["row"].items())
    data = sample.get("data") or {}
    if isinstance(shape := data.get("shape"), list):
        return f"{'×'.join(map(str, shape))}, shown at {page}"
    return shorten(", ".join(f"{name}={to_json(value)}" for name, value in data.items()))


def _format_value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else shorten(str(value))
