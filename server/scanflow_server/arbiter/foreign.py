"""Finding that somebody else has changed what a strategy is about to write: an autoscaler, a person. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from scanflow.agent.records import JSON, Intent
from scanflow_server.arbiter.identity import seconds
from scanflow_server.arbiter.objection import Objection

FOREIGN_S = 900.0
"""How long a foreign writer's value is left alone, in seconds from when it was first seen."""


def foreign_fields(
    fields: tuple[str, ...], *, observed: Mapping[str, JSON], last_written: Mapping[str, JSON]
) -> tuple[str, ...]:
    """Return the fields that are not as they were last written. What was never written or cannot be seen is no such."""
    return tuple(
        field
        for field in sorted(set(fields))
        if field in observed and field in last_written and not same(observed[field], last_written[field])
    )


def same(one: JSON, other: JSON) -> bool:
    """Whether two values are equal as JSON: 2 and 2.0 are, true and 1 are not."""
    return _written(one) == _written(other)


def against_foreign(
    intent: Intent,
    *,
    observed: Mapping[str, JSON],
    last_written: Mapping[str, JSON],
    since: Mapping[str, float],
    now: float,
    patience_s: float = FOREIGN_S,
) -> Objection | None:
    """Return what keeps an intent from overwriting somebody else's value. ``since``: when that was first seen."""
    for field in foreign_fields(intent.fields, observed=observed, last_written=last_written):
        over = since.get(field, now) + patience_s
        if now >= over:
            continue
        return Objection(
            f"Somebody else changed the field {field!r} of {intent.target!r}: it is {_written(observed[field])}, and "
            f"{_written(last_written[field])} was written here last. Wait {seconds(over - now)}, or overwrite it: "
            f"scanflow approve {intent.id}.",
            retry_at=over,
        )
    return None


def _written(value: JSON) -> str:
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)


def _plain(value: JSON) -> JSON:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value
