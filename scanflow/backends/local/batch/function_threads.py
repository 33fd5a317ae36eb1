"""Steps inside the runner's process: cheap, in threads, with what each prints going to its own log."""

from __future__ import annotations

import io
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeAlias

from scanflow.app.steps import check_parameters, check_result
from scanflow.backends.values import write_result
from scanflow.outputs import use_output_dir
from scanflow.private import open_private

LogTo: TypeAlias = Callable[[Path], AbstractContextManager[None]]
"""What sends what the calling thread prints to ``stdout.log`` and ``stderr.log`` of a folder while inside."""


@dataclass(frozen=True, slots=True)
class FunctionOutcome:
    seconds: float
    error: str | None = None
    """The traceback, if it raised."""


class _PerThread(io.TextIOBase):
    """Standard output or error that is the log of the step whose thread writes, and elsewhere what it was."""

    def __init__(self, usual: TextIO) -> None:
        self.usual = usual
        self.logs = threading.local()

    @property
    def _now(self) -> TextIO:
        return getattr(self.logs, "file", None) or self.usual

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._now.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._now.errors

    @property
    def buffer(self) -> BinaryIO:
        return self._now.buffer

    def write(self, text: str) -> int:
        return self._now.write(text)

    def flush(self) -> None:
        self._now.flush()

    def isatty(self) -> bool:
        return self._now.isatty()

    def fileno(self) -> int:
        return self._now.fileno()


_lock = threading.Lock()
_followed: dict[str, _PerThread] = {}
_runs = 0


@contextmanager
def captured_streams() -> Iterator[LogTo]:
    """Make ``sys.stdout`` and ``sys.stderr`` follow threads; gives what opens the calling thread's logs in a folder.

    Several runs of one process share them: they are what they were once the last run has left.
    """
    global _runs  # noqa: PLW0603  as sys.stdout is
    with _lock:
        if not _runs:
            _followed.update({"stdout.log": _PerThread(sys.stdout), "stderr.log": _PerThread(sys.stderr)})
            sys.stdout, sys.stderr = _followed.values()
        _runs += 1
        streams = dict(_followed)

    @contextmanager
    def log_to(folder: Path) -> Iterator[None]:
        with ExitStack() as stack:
            for name, stream in streams.items():
                raw = open_private(folder / name, "ab", buffering=0)
                text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
                stream.logs.file = stack.enter_context(text)
                stack.callback(delattr, stream.logs, "file")
            yield

    try:
        yield log_to
    finally:
        with _lock:
            _runs -= 1
            if not _runs:
                sys.stdout, sys.stderr = (stream.usual for stream in streams.values())


def run_function(
    function: Callable[..., Any],
    parameters: Mapping[str, Any],
    *,
    who: str,
    output_dir: Path,
    log_folder: Path,
    log_to: LogTo,
    key: bytes,
) -> FunctionOutcome:
    """Call a step's function in this thread; keep its result, what it printed, and its traceback if it raised."""
    began = time.monotonic()
    error: str | None = None
    try:
        with log_to(log_folder), use_output_dir(output_dir):
            try:
                result = function(**check_parameters(function, parameters, who=who))
                write_result(check_result(function, result, who=who), output_dir, key)
            except BaseException:  # noqa: BLE001  whatever it raises, SystemExit included, is how its step ended
                error = traceback.format_exc()
                sys.stderr.write(error)
    except OSError:  # its logs cannot be opened or written
        error = error or traceback.format_exc()
    return FunctionOutcome(time.monotonic() - began, error)
