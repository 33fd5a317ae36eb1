"""The demo's traffic: the tutorial's program that sends digits, and the responses it counts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scanflow.errors import InternalError

READY_S = 60.0
END_S = 30.0
_SHOWN = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """The responses of one revision of the service to digits of one kind."""

    kind: str
    revision: str
    right: int
    wrong: int
    failed: int

    @property
    def sent(self) -> int:
        return self.right + self.wrong + self.failed

    @property
    def accuracy(self) -> float | None:
        """From 0 to 1; None: there were no responses."""
        count = self.right + self.wrong
        return self.right / count if count else None


def responses_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Responses, ...]:
    """Return the counts that the program prints."""
    return tuple(Responses(**row) for row in rows)


class TrafficProgram:
    """A running traffic program; a context that stops it."""

    def __init__(self, program: Path, *arguments: str, log: Path) -> None:
        """Start it, and return when it is ready to send; its standard error goes to ``log``.

        Raises:
            InternalError: it exited, or took too long.
        """
        self._log = log
        self._ready, self._begun = threading.Event(), False
        self.responses: tuple[Responses, ...] = ()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(program), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ready.wait(READY_S)
        if not self._begun:
            self._process.kill()
            self.stop()
            raise InternalError(f"The traffic program could not be started. {self._log_text()}")

    def send(self, order: str) -> None:
        """Change what it sends: ``drifted 4``.

        Raises:
            InternalError: it has exited.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise InternalError(f"The traffic program has exited. {self._log_text()}") from error

    def stop(self) -> None:
        """Stop it; :attr:`responses` is final then."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # it has exited
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(END_S)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            if "sent" in found:
                self.responses = responses_of(found["sent"])
            self._begun = True
            self._ready.set()
        self._ready.set()  # it has exited

    def _log_text(self) -> str:
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            text = ""
        return f"Its log: {text[-_SHOWN:]}" if text else "Its log is empty."
