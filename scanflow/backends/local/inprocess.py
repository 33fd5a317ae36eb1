"""Steps inside the runner's process: cheap, in threads, with what each prints going to its own log."""

from __future__ import annotations

import io
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from scanflow.app.steps import check_parameters, check_result
from scanflow.backends.local.values import write_result
from scanflow.outputs import use_output_dir

__all__ = ["Outcome", "captured_streams", "run_function"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a function went."""

    seconds: float
    error: str | None = None
    """The traceback, if it raised."""


class _PerThread(io.TextIOBase):
    """Standard output or error that goes to the log of the step whose thread writes, and elsewhere to where it went."""

    encoding = "utf-8"

    def __init__(self, usual: TextIO) -> None:
        self.usual = usual
        self.logs = threading.local()

    def write(self, text: str) -> int:
        path: Path | None = getattr(self.logs, "path", None)
        if path is None:
            return self.usual.write(text)
        with path.open("a", encoding="utf-8") as file:
            return file.write(text)

    def flush(self) -> None:
        if getattr(self.logs, "path", None) is None:
            self.usual.flush()

    def isatty(self) -> bool:
        return getattr(self.logs, "path", None) is None and self.usual.isatty()

    def fileno(self) -> int:
        return self.usual.fileno()


@contextmanager
def captured_streams() -> Iterator[Callable[[Path | None], None]]:
    """Make ``sys.stdout`` and ``sys.stderr`` follow threads; gives a function that names the calling thread's log
    folder."""
    out, err = _PerThread(sys.stdout), _PerThread(sys.stderr)

    def log_to(folder: Path | None) -> None:
        out.logs.path = folder / "stdout.log" if folder else None
        err.logs.path = folder / "stderr.log" if folder else None

    sys.stdout, sys.stderr = out, err
    try:
        yield log_to
    finally:
        sys.stdout, sys.stderr = out.usual, err.usual


def run_function(
    function: Callable[..., Any],
    parameters: Mapping[str, Any],
    *,
    who: str,
    output_dir: Path,
    log_folder: Path,
    log_to: Callable[[Path | None], None],
) -> Outcome:
    """Call a step's function in this thread; keep its result, what it printed, and its traceback if it raised."""
    began = time.monotonic()
    log_to(log_folder)
    try:
        with use_output_dir(output_dir):
            result = function(**check_parameters(function, parameters, who=who))
            write_result(check_result(function, result, who=who), output_dir)
    except BaseException:  # noqa: BLE001  whatever a user's function raises, SystemExit included, is how its step ended
        text = traceback.format_exc()
        sys.stderr.write(text)
        return Outcome(time.monotonic() - began, text)
    finally:
        log_to(None)
    return Outcome(time.monotonic() - began)
