"""How a replay is told, as plain lines and rows; and traces as files keep them. Pure, but for the files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from scanflow.agent.replaying import Difference, Moment, Trace
from scanflow.app.quantities import parse_duration
from scanflow.errors import InvalidError, NotFoundError, UnavailableError

__all__ = [
    "HEADS",
    "conclusion",
    "difference_rows",
    "moment_of",
    "moment_rows",
    "read_entries",
    "save_entries",
    "told",
]

HEADS = ("when", "sensor", "strategy", "rule", "wants", "then")
_KINDS = frozenset({"sample", "intent", "call", "error", "decision", "refused"})
_MOST_SHOWN = 160


def moment_rows(moments: Iterable[Moment], trace: Trace) -> list[tuple[str, ...]]:
    """Return a timeline as a table: when, which sensor and strategy, whether its rule held, what it wants, and what was
    answered when it was wanted then."""
    then = {one.place: one for one in trace.moments}
    rows: list[tuple[str, ...]] = []
    for one in moments:
        answers = then[one.place].answers if one.place in then else ()
        rows.append(
            (
                time_words(one.at),
                one.sensor,
                one.strategy,
                "-" if one.sensor_error or one.error else "held" if one.held else "no",
                _short(f"the sensor failed: {one.sensor_error}" if one.sensor_error else _wants(one)),
                ", ".join(answers) or "-",
            )
        )
    return rows


def difference_rows(differences: Iterable[Difference]) -> list[tuple[str, ...]]:
    """Return what is decided otherwise as a table: sign, when, strategy, then and now."""
    return [(one.sign, time_words(one.at), one.strategy, _short(one.before), _short(one.after)) for one in differences]


def conclusion(samples: int, strategies: Sequence[str], differences: Sequence[Difference]) -> str:
    """Return what came of it in one line."""
    over = f"{_count(samples, 'sample')}, {_count(len(strategies), 'strategy')}"
    if not differences:
        return f"{over}: all is decided as it was then."
    signs = {"+": "newly wanted", "-": "wanted no more", "~": "wanted otherwise"}
    counted = [
        f"{count} {words}" for sign, words in signs.items() if (count := sum(one.sign == sign for one in differences))
    ]
    differ = f"{_count(len(differences), 'decision')} {'differs' if len(differences) == 1 else 'differ'}"
    return f"{over}: {differ} from what was decided then: {', '.join(counted)}."


def told(
    app: str, agent: str, trace: Trace, moments: Sequence[Moment], differences: Sequence[Difference]
) -> dict[str, Any]:
    """Return a replay as JSON can hold it."""
    return {
        "app": app,
        "agent": agent,
        "samples": len(trace.samples),
        "moments": [one.model_dump(mode="json", exclude={"answers"}) for one in moments],
        "recorded": [one.model_dump(mode="json") for one in trace.moments],
        "differences": [one.model_dump(mode="json") | {"sign": one.sign} for one in differences],
    }


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


def read_entries(path: Path) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the application and the entries of a trace that was saved, or of ``scanflow agents … --journal --json``.

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
    app = found.get("app") if isinstance(found, Mapping) else None
    entries = found.get("entries") if isinstance(found, Mapping) else found
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise InvalidError(f"{str(path)!r} holds no trace. Save one: scanflow replay AGENT --save {path.name}")
    return (app if isinstance(app, str) else None), entries


def save_entries(path: Path, app: str, agent: str, entries: Iterable[Mapping[str, Any]], trace: Trace) -> None:
    """Write the entries that a trace was made of, so that they can be replayed without the agent.

    Raises:
        UnavailableError: the file cannot be written.
    """
    document = {"app": app, "agent": agent, "entries": list(_those_of(trace, entries))}
    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def time_words(at: float) -> str:
    """Return a moment as the clock on the wall shows it."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def _those_of(trace: Trace, entries: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Yield the entries that a part of a trace needs: its samples, what was wanted of them, and all answers."""
    samples, inside = {one.id for one in trace.samples}, False
    for entry in entries:
        kind = entry["kind"]
        if kind == "sample":
            inside = entry["body"]["id"] in samples
        if kind in _KINDS and (inside or kind in {"decision", "refused"}):
            yield entry


def _wants(one: Moment) -> str:
    return one.outcome if one.held or one.error else "-"


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else line[: _MOST_SHOWN - 1] + "…"
