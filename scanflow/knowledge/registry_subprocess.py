"""Registered models by a separate process: ``python -m scanflow.knowledge.registry_subprocess HOME [URI]``.

Asking the registry takes MLflow, and importing that a second or two of CPU. A command that changes a running service
would take them from the very cores that answer its callers; a session of its own can be made to come last instead,
for a while.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from scanflow import errors
from scanflow.errors import InternalError, ScanflowError
from scanflow.instance_messages import FoundModel, decode
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.model_cache import ModelCache
from scanflow.processes.cpu_priority import yield_cpu

LOW_PRIORITY_S: Final = 5.0
"""Longest time that a query yields the CPUs: beside a process that used all of them it took minutes."""

_URI = "SCANFLOW_REGISTRY_URI"
"""The variable with the tracker's address."""

_NAMES = ("fetch", "find", "remember", "recall")


class RegistrySubprocess:
    """A :class:`~scanflow.knowledge.model_cache.ModelCache` in another process, which ends with this one."""

    def __init__(self, home: Path, uri: str | None, *, team: str | None = None) -> None:
        """``team``: whose models alone are there. None: those of all teams."""
        self._command, self._uri, self._team = [sys.executable, "-m", __name__, str(home)], uri, team
        self._process: subprocess.Popen[bytes] | None = None

    def fetch(self, uri: str) -> FoundModel:
        return decode(FoundModel, self._request("fetch", uri, self._team))

    def find(self, uri: str, team: str | None = None) -> FoundModel:
        return decode(FoundModel, self._request("find", uri, team or self._team))

    def remember(self, name: str, version: int, shape: str) -> None:
        self._request("remember", name, version, shape)

    def recall(self, name: str, version: int) -> str | None:
        text: str | None = self._request("recall", name, version)
        return text

    def _request(self, what: str, *arguments: object) -> Any:
        process = self._ensure_process()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([what, *arguments]).encode() + b"\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], LOW_PRIORITY_S)[0]:
                yield_cpu(process.pid, False)
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self._process = None
            raise InternalError(f"The process that queries the registry exited with code {process.wait()}.")
        answer = json.loads(line)
        if "error" in answer:
            raise _build_error(answer["error"], answer["text"])
        return answer["found"]

    def _ensure_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # Not an argument, which every user of the machine can read: it may hold a password.
            variables = {**os.environ, **({} if self._uri is None else {_URI: self._uri})}
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=variables
            )
            yield_cpu(self._process.pid, True)
            weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # it has answered all that it was asked
    with contextlib.suppress(BrokenPipeError), process:
        pass


def _build_error(name: str, text: str) -> ScanflowError:
    kind = getattr(errors, name, InternalError) if name in errors.__all__ else InternalError
    error: ScanflowError = kind(text)
    return error


def _handle_request(models: ModelCache, line: bytes) -> dict[str, Any]:
    what, *arguments = json.loads(line)
    does: Callable[..., Any] = getattr(models, {name: name for name in _NAMES}[what])
    try:
        value = does(*arguments)
    except ScanflowError as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"found": asdict(value) if isinstance(value, FoundModel) else value}


def main(home: str, uri: str | None = None) -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    folder = Path(home)
    models = ModelCache(folder / "models", lambda: open_knowledge(folder, uri))
    for line in sys.stdin.buffer:
        answers.write(json.dumps(_handle_request(models, line)).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], os.environ.pop(_URI, None))
