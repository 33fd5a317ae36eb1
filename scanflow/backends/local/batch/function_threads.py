"""Steps as threads of the runner's process, each with its output in its own log."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeAlias

from scanflow.app.steps import call_function, check_parameters, check_result
from scanflow.backends.task_parameters import Resolved
from scanflow.backends.values import write_result
from scanflow.files.private import create_private_folder, open_private
from scanflow.outputs import use_output_dir

LogTo: TypeAlias = Callable[[Path], AbstractContextManager[None]]
"""A context that redirects the calling thread's output to ``stdout.log`` and ``stderr.log`` of a folder."""


@dataclass(frozen=True, slots=True)
class FunctionOutcome:
    seconds: float
    error: str | None = None
    """The traceback, if the function raised."""


class _PerThread(io.TextIOBase):
    """A stream that writes to the log of the calling thread's step, and elsewhere to the original stream."""

    def __init__(self, name: str, usual: TextIO) -> None:
        self.name, self.usual = name, usual
        self._step = threading.local()

    def open_log(self, folder: Path) -> None:
        """Have what the calling thread writes go to a log in ``folder``, which is created when it writes first."""
        self._step.folder, self._step.file = folder, None

    def close_log(self) -> None:
        file = self._step.file
        del self._step.folder, self._step.file
        if file is not None:
            file.close()

    @property
    def _now(self) -> TextIO:
        folder = getattr(self._step, "folder", None)
        if folder is not None and self._step.file is None:
            raw = open_private(create_private_folder(folder) / self.name, "ab", buffering=0)
            self._step.file = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
        return self.usual if folder is None else self._step.file

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
_thread_streams: list[_PerThread] = []
_runs = 0


@contextmanager
def capture_streams() -> Iterator[LogTo]:
    """Make ``sys.stdout`` and ``sys.stderr`` thread-local; yield a function that opens the calling thread's logs.

    Several runs of one process share them: they are restored when the last run has ended.
    """
    global _runs  # noqa: PLW0603  as sys.stdout is
    with _lock:
        if not _runs:
            _thread_streams[:] = _PerThread("stdout.log", sys.stdout), _PerThread("stderr.log", sys.stderr)
            sys.stdout, sys.stderr = _thread_streams
        _runs += 1
        streams = list(_thread_streams)

    @contextmanager
    def log_to(folder: Path) -> Iterator[None]:
        with ExitStack() as stack:
            for stream in streams:
                stream.open_log(folder)
                stack.callback(stream.close_log)
            yield

    try:
        yield log_to
    finally:
        with _lock:
            _runs -= 1
            if not _runs:
                sys.stdout, sys.stderr = (stream.usual for stream in streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnvironment:
    """What a function in a thread has of its own, as one in a process has it."""

    output_dir: Path
    cwd: Path
    env: Mapping[str, str]
    log_folder: Path
    log_to: LogTo
    turn: threading.Lock
    """Folder and variables are the whole process's, so that steps take turns."""


_turn = threading.Lock()
_is_in_step: ContextVar[bool] = ContextVar("scanflow_in_a_step", default=False)


def choose_turn() -> threading.Lock:
    """Return the lock of the steps that this thread's run has in this process; a run that a step starts has its own,
    since the step has its turn until that run has ended."""
    return threading.Lock() if _is_in_step.get() else _turn


@contextmanager
def _enter(environment: StepEnvironment) -> Iterator[None]:
    with (
        environment.turn,
        environment.log_to(environment.log_folder),
        use_output_dir(environment.output_dir),
        _change_folder(str(environment.cwd)),
    ):
        before = dict(os.environ)
        token = _is_in_step.set(True)
        try:
            os.environ.update(environment.env)
            yield
        finally:
            _is_in_step.reset(token)
            _restore_variables(before)


@contextmanager
def _change_folder(folder: str) -> Iterator[None]:
    """Run the context in a folder, and go back, also where that one was deleted since."""
    # Mostly it is there already, and to open a folder costs as much as all else of a small step.
    here = None if _find_folder() == folder else os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        if here is not None:
            os.chdir(folder)
        yield
    finally:
        if here is not None:
            os.fchdir(here)
            os.close(here)
        elif _find_folder() != folder:
            with suppress(FileNotFoundError):  # the step deleted it
                os.chdir(folder)


def _find_folder() -> str | None:
    """Return the working folder; None: it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109  text is compared, for each task
    except FileNotFoundError:
        return None


def _restore_variables(before: Mapping[str, str]) -> None:
    now = dict(os.environ)
    for name in now.keys() - before.keys():
        del os.environ[name]
    os.environ.update(dict(before.items() - now.items()))


def run_function(
    function: Callable[..., Any], parameters: Resolved, environment: StepEnvironment, *, who: str, key: bytes
) -> FunctionOutcome:
    """Call a step's function in this thread; write its result, its logs, and its traceback if it raised."""
    began = time.monotonic()
    error: str | None = None
    try:
        with _enter(environment):
            began = time.monotonic()
            try:
                checked = check_parameters(function, parameters.value, who=who, exact=parameters.exact)
                result = call_function(function, checked)
                write_result(check_result(function, result, who=who), environment.output_dir, key)
            except BaseException:  # noqa: BLE001  any exception, SystemExit included, is its step's failure
                error = traceback.format_exc()
                sys.stderr.write(error)
    except OSError:  # its logs cannot be opened or written, or there is no folder
        error = error or traceback.format_exc()
    return FunctionOutcome(time.monotonic() - began, error)
