"""What agents' code says, asked in a process of its own: no program imports another, and the code is a user's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scanflow.agent.records import Sample
from scanflow.agent.replay import Moment
from scanflow.errors import ScanflowError, UsageError
from scanflow.problems import error_of

_PROBLEM = 1
_STOPPED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What the strategies of a file make of recorded samples."""

    app: str
    """The application that the file makes."""

    strategies: tuple[str, ...]
    moments: tuple[Moment, ...]


def strategies_of(target: str | None) -> tuple[str, list[dict[str, Any]]]:
    """Return the application of ``FILE[:AGENT]``, and what its agents' strategies say, the built-in ones' too.

    Raises:
        UsageError: the file or an agent's code cannot be loaded, or does not fit.
    """
    told = _ask("strategies", target or "")
    return told["app"], told["strategies"]


def replay(file: str | None, agent: str, samples: Iterable[Sample]) -> Replayed:
    """Return what the strategies of an agent, as ``file`` has it now, make of recorded samples.

    Raises:
        UsageError: as of :func:`strategies_of`.
    """
    given = json.dumps([one.model_dump(mode="json") for one in samples])
    told = _ask("replay", file or "", agent, given=given.encode())
    moments = tuple(Moment.model_validate(one) for one in told["moments"])
    return Replayed(app=told["app"], strategies=tuple(told["strategies"]), moments=moments)


def _ask(*words: str, given: bytes = b"") -> Any:
    """Ask ``python -m scanflow_agents``. What the code prints goes to our standard error."""
    command = [sys.executable, "-P", "-m", "scanflow_agents", *words]
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=False)
    if done.returncode == _STOPPED:
        raise KeyboardInterrupt
    try:
        told = json.loads(done.stdout)
    except ValueError:
        raise UsageError(
            f"The code of the agents ended its process (exit status {done.returncode}) before it had answered. What it "
            "printed is above. Does it end the program, or need more memory than there is?"
        ) from None
    if done.returncode == _PROBLEM:
        raise _problem(told)
    return told


def _problem(told: Any) -> ScanflowError:
    status = told.get("status", 500) if isinstance(told, dict) else 500
    return error_of(int(status), json.dumps(told).encode(), who="The agents' code")
