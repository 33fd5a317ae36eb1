"""Takes recorded predictions to the tracker, one run a file, and deletes what arrived.

``python -m scanflow.backends.recorder FOLDER MODULE:FUNCTION JSON``: the function is called as ``function(**json,
file=…, metrics=…, tags=…)`` and returns once the predictions are safe; ``FOLDER`` is where finished files appear. A
file that the tracker does not take stays. As such it ends when no more come, or the tracker takes none: whoever started
it starts another. With ``--beside`` it is the neighbour of one instance, with nobody to start it again: it tries until
it is told to end, and then until the instance has ended and all that it recorded is taken.
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

from scanflow.processes.files import try_lock

LOG_PREDICTIONS: Final = "scanflow.deployer.recording:log_predictions"
"""What takes recorded predictions to the tracker, loaded by name in a process of its own."""

IDLE_S = 10.0
POLL_S = 0.5
LONGEST_PAUSE_S = 30.0

Log = Callable[..., object]


def take(folder: Path, log: Log, *, ended: threading.Event, idle_s: float = IDLE_S, poll_s: float = POLL_S) -> int:
    """Take all files there are, and those that come, until none came for ``idle_s`` seconds; return how many.

    ``log(file=…, metrics=…, tags=…)`` returns once a file is safe with the tracker; where it raises, the file stays.
    """
    taken, quiet = 0, 0.0
    while not ended.is_set() and quiet < idle_s:
        found = _take_all(folder, log, ended)
        taken += found
        quiet = 0.0 if found else quiet + poll_s
        ended.wait(poll_s)
    return taken


def take_beside(
    folder: Path,
    log: Log,
    *,
    ended: threading.Event,
    tell: Callable[[str], None],
    poll_s: float = POLL_S,
    longest_s: float = LONGEST_PAUSE_S,
) -> None:
    """Take files until it has ``ended`` and nothing is left or will come.

    What the tracker does not take is tried again, with pauses that grow to ``longest_s``, and told.
    """
    failures = 0
    clock = threading.Event()
    while True:
        last = ended.is_set() and not _is_written(folder)
        try:
            _take_all(folder, log, threading.Event())
            failures = 0
        except Exception as error:  # noqa: BLE001 - whatever it is: if this ended, its pod would count as not ready
            failures += 1
            tell(f"Predictions wait for the tracker: {type(error).__name__}: {error}")
        if last and not failures:
            return
        pause = min(longest_s, poll_s * 2**failures)
        (clock if ended.is_set() else ended).wait(pause)


def _take_all(folder: Path, log: Log, ended: threading.Event) -> int:
    taken = 0
    for file in sorted(folder.glob("*.npz")):
        if ended.is_set():
            break
        metrics, tags = _described(file)
        log(file=file, metrics=metrics, tags=tags)
        file.unlink(missing_ok=True)
        taken += 1
    return taken


def _is_written(folder: Path) -> bool:
    """Whether an instance lives that writes there: it holds a lock on the folder."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(opened, fcntl.LOCK_EX)
    finally:
        os.close(opened)


def _described(file: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Return how many predictions a file holds, and of which revisions and model versions."""
    import numpy as np

    def names(array: str) -> str:
        return ",".join(sorted({str(one) for one in np.atleast_1d(held[array])})) if array in held else ""

    with np.load(file, allow_pickle=False) as held:
        times = held["time"] if "time" in held else np.zeros(0)
        tags = {"scanflow.revision": names("revision")}
        if models := names("models"):
            tags["scanflow.model_version"] = models
    metrics = {"predictions": float(times.size)}
    if times.size:
        metrics |= {"first": float(times.min()), "last": float(times.max())}
    return metrics, tags


def main(arguments: list[str]) -> None:
    beside = arguments[0] == "--beside"
    folder, locator, given = arguments[beside:]
    module, _, name = locator.partition(":")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    function: Log = getattr(importlib.import_module(module), name)
    log = partial(function, **json.loads(given))
    if beside:
        take_beside(Path(folder), log, ended=ended, tell=lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201 - its log
    else:
        take(Path(folder), log, ended=ended)


if __name__ == "__main__":
    main(sys.argv[1:])
