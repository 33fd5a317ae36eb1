"""The demo's traffic: the tutorial's own program, which sends digits, and what it says was answered."""

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

__all__ = ["Answered", "Traffic", "answered_of"]

READY_S = 60.0
END_S = 30.0
_SHOWN = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What became of predictions of one kind that one revision of the service answered."""

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
        """From 0 to 1; None: nothing was answered."""
        answered = self.right + self.wrong
        return self.right / answered if answered else None


def answered_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Answered, ...]:
    """Read what the program says."""
    return tuple(Answered(**row) for row in rows)


class Traffic:
    """A traffic program at work; a context that ends it."""

    def __init__(self, program: Path, *arguments: str, log: Path) -> None:
        """Start it, and return when it is ready to send. ``log``: where its own words go.

        Raises:
            InternalError: it ended instead, or took too long.
        """
        self._log = log
        self._ready, self._begun = threading.Event(), False
        self.answered: tuple[Answered, ...] = ()
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
            raise InternalError(f"The traffic could not be started. {self._words()}")

    def tell(self, order: str) -> None:
        """Change what is sent: ``drifted 4``.

        Raises:
            InternalError: it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise InternalError(f"The traffic has ended. {self._words()}") from error

    def stop(self) -> None:
        """End it; :attr:`answered` is then the last word."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # it has ended by itself
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
            told = json.loads(line)
            if "sent" in told:
                self.answered = answered_of(told["sent"])
            self._begun = True
            self._ready.set()
        self._ready.set()  # it has ended: nobody is to wait for more

    def _words(self) -> str:
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            text = ""
        return f"It said: {text[-_SHOWN:]}" if text else f"It said nothing. See {str(self._log)!r}"
