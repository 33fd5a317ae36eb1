"""Uploads recorded predictions to the tracker, one run per file, and deletes uploaded files.

``python -m scanflow.backends.recorder FOLDER MODULE:FUNCTION JSON``: the function is called as ``function(**json,
file=…, metrics=…, tags=…)`` and returns once the predictions are stored; ``FOLDER`` is where finished files appear. A
file that is not uploaded stays. It ends when no more files appear or an upload fails, and its supervisor restarts it.
With ``--beside`` it is the sidecar of one instance, without a supervisor: it retries until SIGTERM, and then until the
instance has ended and all its files are uploaded.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from scanflow.processes.shared_files import try_lock

LOG_PREDICTIONS: Final = "scanflow.deployer.recording:log_predictions"
"""The upload function, loaded by name in a process of its own."""

IDLE_S = 10.0
POLL_S = 0.5
MAX_PAUSE_S = 30.0

Log = Callable[..., object]


def upload_files(
    folder: Path, log: Log, *, ended: threading.Event, idle_s: float = IDLE_S, poll_s: float = POLL_S
) -> int:
    """Upload files until none has appeared for ``idle_s`` seconds; return their number.

    ``log(file=…, metrics=…, tags=…)`` returns once a file is stored in the tracker; if it raises, the file stays.
    """
    total, quiet = 0, 0.0
    while not ended.is_set() and quiet < idle_s:
        uploaded = _upload_all(folder, log, ended)
        total += uploaded
        quiet = 0.0 if uploaded else quiet + poll_s
        ended.wait(poll_s)
    return total


def upload_until_exit(
    folder: Path,
    log: Log,
    *,
    ended: threading.Event,
    tell: Callable[[str], None],
    poll_s: float = POLL_S,
    longest_s: float = MAX_PAUSE_S,
) -> None:
    """Upload files until ``ended`` is set and no file is left or will appear.

    Failures are reported to ``tell`` and retried, with pauses that grow to ``longest_s``.
    """
    failures = 0
    clock = threading.Event()
    while True:
        last = ended.is_set() and not _is_written(folder)
        try:
            _upload_all(folder, log, threading.Event())
            failures = 0
        except Exception as error:  # noqa: BLE001 - whatever it is: if this ended, its pod would count as not ready
            failures += 1
            tell(f"Predictions are queued until the tracker is available: {type(error).__name__}: {error}")
        if last and not failures:
            return
        pause = min(longest_s, poll_s * 2**failures)
        (clock if ended.is_set() else ended).wait(pause)


def _upload_all(folder: Path, log: Log, ended: threading.Event) -> int:
    uploaded = 0
    for file in sorted(folder.glob("*.npz")):
        if ended.is_set():
            break
        metrics, tags = _describe_file(file)
        log(file=file, metrics=metrics, tags=tags)
        file.unlink(missing_ok=True)
        uploaded += 1
    return uploaded


def _is_written(folder: Path) -> bool:
    """Return whether an instance still writes into the folder, that is, holds a lock on it."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(opened, fcntl.LOCK_EX)
    finally:
        os.close(opened)


def _describe_file(file: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Return a file's metrics (its number of predictions) and tags (its revisions and model versions)."""
    import numpy as np

    def names(array: str) -> str:
        return ",".join(sorted({str(value) for value in np.atleast_1d(arrays[array])})) if array in arrays else ""

    with np.load(file, allow_pickle=False) as arrays:
        times = arrays["time"] if "time" in arrays else np.zeros(0)
        tags = {"scanflow.revision": names("revision")}
        if models := names("models"):
            tags["scanflow.model_version"] = models
    metrics = {"predictions": float(times.size)}
    if times.size:
        metrics |= {"first": float(times.min()), "last": float(times.max())}
    return metrics, tags


def main(arguments: list[str]) -> None:
    beside = arguments[0] == "--beside"
    folder, locator, options = arguments[beside:]
    module, _, name = locator.partition(":")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    function: Log = getattr(importlib.import_module(module), name)
    log = partial(function, **json.loads(options))
    if beside:
        report = partial(print, file=sys.stderr, flush=True)
        upload_until_exit(Path(folder), log, ended=ended, tell=report)
    else:
        upload_files(Path(folder), log, ended=ended)


if __name__ == "__main__":
    main(sys.argv[1:])
