"""Introspection of agents' code, and traces as files, for ``scanflow strategies`` and ``scanflow replay``.

A separate process loads the code: no program imports another, and the code is a user's.
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

from scanflow.agent.replay import Difference, StrategyEvaluation, Trace, build_trace, compare_moments
from scanflow.app.application import Application
from scanflow.app.application_files import dump_json
from scanflow.app.quantities import parse_duration
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.files.content import read_content
from scanflow.http.problems import parse_error
from scanflow_client.program import resolve_application

_MAX_SHOWN = 10
_KINDS = frozenset({"sample", "intent", "call", "function", "withheld", "error", "decision", "refused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The decisions of an agent's current strategies on a recorded trace."""

    app: str
    """The application that the code defines."""

    agent: str
    trace: Trace
    entries: Sequence[Mapping[str, Any]] = field(repr=False)
    """The journal of the trace."""

    strategies: tuple[str, ...]
    moments: tuple[StrategyEvaluation, ...]

    @property
    def differences(self) -> list[Difference]:
        """The decisions that differ from the recorded ones."""
        return compare_moments(self.trace.moments, self.moments)

    def as_json(self) -> dict[str, Any]:
        return {
            "app": self.app,
            "agent": self.agent,
            "samples": len(self.trace.samples),
            "moments": [moment.model_dump(mode="json", exclude={"verdicts"}) for moment in self.moments],
            "recorded": [moment.model_dump(mode="json") for moment in self.trace.moments],
            "differences": [
                difference.model_dump(mode="json") | {"sign": difference.symbol} for difference in self.differences
            ],
        }

    def save(self, path: Path) -> None:
        """Write the entries of the trace to a file, to be replayed without the agent."""
        document = {"app": self.app, "agent": self.agent, "entries": list(_select_needed(self.trace, self.entries))}
        try:
            path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise UnavailableError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def list_strategies(target: Application | str | None) -> tuple[str, list[dict[str, Any]]]:
    """Return the application of ``FILE[:AGENT]`` and its agents' strategies, built-in ones included."""
    with _provide_file(target) as file:
        reply = _ask("strategies", file)
    return reply["app"], reply["strategies"]


def check_agents(target: Application | str | None) -> int:
    """Load the agents of an application, and return the number of their strategies.

    Raises:
        ScanflowError: an agent cannot be loaded, or has a parameter that its template does not have.
        InvalidError: a strategy names a workflow, service or agent that the application does not have.
    """
    with _provide_file(target) as file:
        reply = _ask("strategies", file)
    if unknown := reply["unknown"]:
        more = [f"... and {len(unknown) - _MAX_SHOWN} more"] if len(unknown) > _MAX_SHOWN else []
        raise InvalidError("\n".join([*unknown[:_MAX_SHOWN], *more]))
    return len(reply["strategies"])


def replay(
    recorded: str | None,
    agent: str,
    entries: Sequence[Mapping[str, Any]],
    target: Application | str | None,
    *,
    since: float | None = None,
    last: int | None = None,
) -> Replay:
    """Evaluate the current strategies of ``target`` for an agent on the samples of a journal.

    ``recorded`` is the application of the journal's agent, if it is known.
    """
    trace = build_trace(entries).cut(since=since, last=last)
    samples = json.dumps([sample.model_dump(mode="json") for sample in trace.samples])
    with _provide_file(target) as file:
        reply = _ask("replay", file, agent, stdin=samples.encode())
    if recorded not in {None, reply["app"]}:
        raise InvalidError(
            f"The samples are of {recorded}:{agent}, but {target or 'the file here'} defines the application "
            f"{reply['app']!r}. Name the file of {recorded!r}: scanflow replay {agent} FILE"
        )
    moments = tuple(StrategyEvaluation.model_validate(moment) for moment in reply["moments"])
    strategies = tuple(reply["strategies"])
    return Replay(app=reply["app"], agent=agent, trace=trace, entries=entries, strategies=strategies, moments=moments)


@contextmanager
def _provide_file(target: Application | str | None) -> Iterator[str]:
    """Provide a file of an application that another process can load."""
    if target is None or isinstance(target, str):
        yield target or ""
        return
    with NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(dump_json(resolve_application(target)))
        file.flush()
        yield file.name


def _ask(*arguments: str, stdin: bytes = b"") -> Any:
    """Return the JSON output of ``python -m scanflow_agents``. The code's own output goes to our standard error."""
    command = [sys.executable, "-P", "-m", "scanflow_agents", *arguments]
    process = subprocess.run(command, input=stdin, stdout=subprocess.PIPE, check=False)
    if process.returncode == 130:
        raise KeyboardInterrupt
    try:
        reply = json.loads(process.stdout)
    except ValueError:
        raise UsageError(
            f"The code of the agents ended its process (exit status {process.returncode}) before it returned a "
            "result. Its output is above. Check whether it exits the program or runs out of memory."
        ) from None
    if process.returncode == 1:
        status = reply.get("status", 500) if isinstance(reply, dict) else 500
        raise parse_error(int(status), process.stdout, who="The agents' code")
    return reply


def parse_moment(text: str, *, now: float) -> float:
    """Return ``2h`` (ago) or ``2026-01-31T06:00`` as seconds since the epoch."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return now - parse_duration(text, what="--since")
    except InvalidError as error:
        raise InvalidError(f"{error} Or a time, such as 2026-01-31T06:00.") from error


def read_trace(agent: str, path: Path) -> tuple[str | None, str, list[dict[str, Any]]]:
    """Return the application, if it is known, the agent and the entries of a saved trace or a printed journal."""
    try:
        document: Any = json.loads(read_content(path))
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no file {str(path)!r:.300}. Save one: scanflow replay AGENT --save FILE"
        ) from error
    except OSError as error:
        raise InvalidError(f"{str(path)!r} cannot be read: {error.strerror}. Name another file.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{str(path)!r} cannot be read as JSON: {error}") from error
    app, entries = (document.get("app"), document.get("entries")) if isinstance(document, Mapping) else (None, document)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidError(f"{str(path)!r} contains no trace. Save one: scanflow replay AGENT --save {path.name}")
    own, _, name = agent.replace("/", ":").rpartition(":")
    return own or (app if isinstance(app, str) else None), name, entries


def _select_needed(trace: Trace, entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the samples of a trace, the requests made on them, and all decisions."""
    samples, selected = {sample.id for sample in trace.samples}, False
    for entry in entries:
        kind = entry["kind"]
        if kind == "sample":
            selected = entry["body"]["id"] in samples
        if kind in _KINDS and (selected or kind in {"decision", "refused"}):
            yield entry
