"""What ``scanflow strategies`` and ``replay`` work on: what agents' code says, and traces as files.

The code is asked in a process of its own: no program imports another, and the code is a user's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scanflow.agent.records import Sample
from scanflow.agent.replay import Moment, Trace
from scanflow.app.quantities import parse_duration
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.problems import error_of

_KINDS = frozenset({"sample", "intent", "call", "error", "decision", "refused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    app: str
    """The application that the file makes."""

    strategies: tuple[str, ...]
    moments: tuple[Moment, ...]


def strategies_of(target: str | None) -> tuple[str, list[dict[str, Any]]]:
    """Return the application of ``FILE[:AGENT]``, and what its agents' strategies say, the built-in ones' too."""
    told = _ask("strategies", target or "")
    return told["app"], told["strategies"]


def replay(file: str | None, agent: str, samples: Iterable[Sample]) -> Replayed:
    """Return what the strategies of an agent, as ``file`` has it now, make of recorded samples."""
    given = json.dumps([one.model_dump(mode="json") for one in samples])
    told = _ask("replay", file or "", agent, given=given.encode())
    moments = tuple(Moment.model_validate(one) for one in told["moments"])
    return Replayed(app=told["app"], strategies=tuple(told["strategies"]), moments=moments)


def _ask(*words: str, given: bytes = b"") -> Any:
    """Ask ``python -m scanflow_agents``. What the code prints goes to our standard error."""
    command = [sys.executable, "-P", "-m", "scanflow_agents", *words]
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=False)
    if done.returncode == 130:
        raise KeyboardInterrupt
    try:
        told = json.loads(done.stdout)
    except ValueError:
        raise UsageError(
            f"The code of the agents ended its process (exit status {done.returncode}) before it had answered. What it "
            "printed is above. Does it end the program, or need more memory than there is?"
        ) from None
    if done.returncode == 1:
        status = told.get("status", 500) if isinstance(told, dict) else 500
        raise error_of(int(status), done.stdout, who="The agents' code")
    return told


def moment_of(text: str, *, now: float) -> float:
    """Return the moment that ``2h`` (ago) or ``2026-01-31T06:00`` means, in seconds since the epoch."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return now - parse_duration(text, what="--since")
    except InvalidError as error:
        raise InvalidError(f"{error} Or a time, such as 2026-01-31T06:00.") from error


def read_trace(path: Path) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the application and the entries of a saved trace, or of ``scanflow agents … --journal --json``."""
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
    """Write the entries that a trace needs, so that it can be replayed without the agent."""
    document = {"app": app, "agent": agent, "entries": list(_needed(trace, entries))}
    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def _needed(trace: Trace, entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the samples of a trace, what was requested for them, and all answers."""
    samples, inside = {one.id for one in trace.samples}, False
    for entry in entries:
        kind = entry["kind"]
        if kind == "sample":
            inside = entry["body"]["id"] in samples
        if kind in _KINDS and (inside or kind in {"decision", "refused"}):
            yield entry
