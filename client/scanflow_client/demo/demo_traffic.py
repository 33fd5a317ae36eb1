"""The demo's traffic: the tutorial's program that sends digits, and the responses it counts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from scanflow.errors import StepFailedError, UnavailableError

READY_S, READY_TIMES = 60.0, 2.0  # longest time until it is ready: this, or this multiple of the start-up
END_S = 30.0
_MAX_SHOWN = 2000


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


class TrafficProgram:
    """A running traffic program; a context manager that stops it."""

    def __init__(self, program: Path, *arguments: str, log: Path) -> None:
        """Start the program; its standard error goes to ``log``."""
        self._log = log
        self._ready, self._begun = threading.Event(), False
        self.responses: tuple[Responses, ...] = ()
        self.history: list[tuple[float, tuple[Responses, ...]]] = []
        """Cumulative responses, about once a second."""

        command = [sys.executable, str(program), *arguments]
        pipe = subprocess.PIPE
        with log.open("wb") as errors:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._counts = self._process.stdin, self._process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self, startup_s: float = 0.0) -> None:
        """Wait until the program is ready to send digits.

        ``startup_s``: how long the demo took until it was started; extends the limit.
        """
        limit_s = max(READY_S, READY_TIMES * startup_s)
        ready = self._ready.wait(limit_s)
        if not self._begun:
            self.stop()
            if ready:
                raise StepFailedError(f"The traffic program exited. {self._read_log()}")
            raise UnavailableError(
                f"The traffic program did not read its digits within {limit_s:.0f} s (start-up: {startup_s:.0f} s). "
                f"{self._read_log()}"
            )

    def send(self, order: str) -> None:
        """Send the program a command: ``drifted 4``."""
        try:
            self._orders.write(order + "\n")
            self._orders.flush()
        except OSError as error:
            raise StepFailedError(f"The traffic program has exited. {self._read_log()}") from error

    def stop(self) -> None:
        """Stop the program; :attr:`responses` is final then."""
        with suppress(OSError):  # it has exited
            self._orders.close()
        if not self._begun:  # it still reads its digits, and reads orders only afterwards
            self._process.kill()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(END_S)
        self._counts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self) -> None:
        for line in self._counts:
            message = json.loads(line)
            if "sent" in message:
                self.responses = tuple(Responses(**row) for row in message["sent"])
                self.history.append((time.time(), self.responses))
            self._begun = True
            self._ready.set()
        self._ready.set()  # it has exited

    def _read_log(self) -> str:
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            text = ""
        return f"Its log: {text[-_MAX_SHOWN:]}" if text else "Its log is empty."
