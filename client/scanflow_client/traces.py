"""Traces of agents as files, and the moments that ``--since`` names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from scanflow.agent.replay import Trace
from scanflow.app.quantities import parse_duration
from scanflow.errors import InvalidError, NotFoundError, UnavailableError

_KINDS = frozenset({"sample", "intent", "call", "error", "decision", "refused"})


def moment_of(text: str, *, now: float) -> float:
    """Return the moment that ``2h`` (ago) or ``2026-01-31T06:00`` means, in seconds since the epoch.

    Raises:
        InvalidError: it is neither.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return now - parse_duration(text, what="--since")
    except InvalidError as error:
        raise InvalidError(f"{error} Or a time, such as 2026-01-31T06:00.") from error


def read_trace(path: Path) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the application and the entries of a saved trace, or of ``scanflow agents … --journal --json``.

    Raises:
        NotFoundError: there is no such file.
        InvalidError: it holds no trace.
    """
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {str(path)!r}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidError(f"{str(path)!r} cannot be read as JSON: {error}") from error
    app, entries = (found.get("app"), found.get("entries")) if isinstance(found, Mapping) else (None, found)
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise InvalidError(f"{str(path)!r} holds no trace. Save one: scanflow replay AGENT --save {path.name}")
    return (app if isinstance(app, str) else None), entries


def save_trace(path: Path, app: str, agent: str, entries: Iterable[Mapping[str, Any]], trace: Trace) -> None:
    """Write the entries that a trace needs, so that it can be replayed without the agent.

    Raises:
        UnavailableError: the file cannot be written.
    """
    document = {"app": app, "agent": agent, "entries": list(_needed(trace, entries))}
    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def _needed(trace: Trace, entries: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Yield the samples of a trace, what was requested for them, and all answers."""
    samples, inside = {one.id for one in trace.samples}, False
    for entry in entries:
        kind = entry["kind"]
        if kind == "sample":
            inside = entry["body"]["id"] in samples
        if kind in _KINDS and (inside or kind in {"decision", "refused"}):
            yield entry
