"""What ``scanflow strategies`` and ``replay`` work on: what agents' code says, and traces as files.

The code is asked in a process of its own: no program imports another, and the code is a user's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from scanflow.agent.replay import Difference, Moment, Trace, difference, trace_of
from scanflow.app.application import Application
from scanflow.app.files import dump_json
from scanflow.app.quantities import parse_duration
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.problems import error_of
from scanflow_client.program import application_of

_KINDS = frozenset({"sample", "intent", "call", "error", "decision", "refused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the strategies of an agent make now of what it recorded."""

    app: str
    """The application that the code makes."""

    agent: str
    trace: Trace
    entries: Sequence[Mapping[str, Any]] = field(repr=False)
    """The journal that the trace is of."""

    strategies: tuple[str, ...]
    moments: tuple[Moment, ...]

    @property
    def differences(self) -> list[Difference]:
        """Where another decision than the recorded one is made."""
        return difference(self.trace.moments, self.moments)

    def as_json(self) -> dict[str, Any]:
        return {
            "app": self.app,
            "agent": self.agent,
            "samples": len(self.trace.samples),
            "moments": [one.model_dump(mode="json", exclude={"answers"}) for one in self.moments],
            "recorded": [one.model_dump(mode="json") for one in self.trace.moments],
            "differences": [one.model_dump(mode="json") | {"sign": one.symbol} for one in self.differences],
        }

    def save(self, path: Path) -> None:
        """Write the entries that the trace needs, so that it can be replayed without the agent."""
        document = {"app": self.app, "agent": self.agent, "entries": list(_needed(self.trace, self.entries))}
        try:
            path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise UnavailableError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def strategies_of(target: Application | str | None) -> tuple[str, list[dict[str, Any]]]:
    """Return the application of ``FILE[:AGENT]``, and what its agents' strategies say, the built-in ones' too."""
    with _file_of(target) as file:
        told = _ask("strategies", file)
    return told["app"], told["strategies"]


def replay(
    recorded: str | None,
    agent: str,
    entries: Sequence[Mapping[str, Any]],
    target: Application | str | None,
    *,
    since: float | None = None,
    last: int | None = None,
) -> Replay:
    """Return what the strategies of an agent, as ``target`` has it now, make of what is in a journal.

    ``recorded`` is the application whose agent recorded it, where that is known.
    """
    trace = trace_of(entries).cut(since=since, last=last)
    given = json.dumps([one.model_dump(mode="json") for one in trace.samples])
    with _file_of(target) as file:
        told = _ask("replay", file, agent, given=given.encode())
    if recorded not in {None, told["app"]}:
        raise InvalidError(
            f"The samples are of {recorded}:{agent}, and {target or 'the file here'} makes the application "
            f"{told['app']!r}. Name the file of {recorded!r}: scanflow replay {agent} FILE"
        )
    moments = tuple(Moment.model_validate(one) for one in told["moments"])
    strategies = tuple(told["strategies"])
    return Replay(app=told["app"], agent=agent, trace=trace, entries=entries, strategies=strategies, moments=moments)


@contextmanager
def _file_of(target: Application | str | None) -> Iterator[str]:
    """Give the file of an application, as another process can load it."""
    if target is None or isinstance(target, str):
        yield target or ""
        return
    with NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(dump_json(application_of(target)))
        file.flush()
        yield file.name


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


def read_trace(agent: str, path: Path) -> tuple[str | None, str, list[dict[str, Any]]]:
    """Return the application, if it is known, the agent and the entries of a saved trace, or of a printed journal."""
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {str(path)!r}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidError(f"{str(path)!r} cannot be read as JSON: {error}") from error
    app, entries = (found.get("app"), found.get("entries")) if isinstance(found, Mapping) else (None, found)
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise InvalidError(f"{str(path)!r} holds no trace. Save one: scanflow replay AGENT --save {path.name}")
    own, _, name = agent.replace("/", ":").rpartition(":")
    return own or (app if isinstance(app, str) else None), name, entries


def _needed(trace: Trace, entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the samples of a trace, what was requested for them, and all answers."""
    samples, inside = {one.id for one in trace.samples}, False
    for entry in entries:
        kind = entry["kind"]
        if kind == "sample":
            inside = entry["body"]["id"] in samples
        if kind in _KINDS and (inside or kind in {"decision", "refused"}):
            yield entry
