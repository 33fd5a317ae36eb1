"""Takes recorded predictions to the tracker, one run a file, and deletes what arrived; ends when no more come.

``python -m scanflow.backends.local.services.recorder FOLDER MODULE:FUNCTION JSON``: the function is called as
``function(**json, file=…, metrics=…, tags=…)`` and returns once the predictions are safe; ``FOLDER`` is where finished
files appear. A file that the tracker does not take stays, and is tried again by the next recorder.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

IDLE_S = 10.0
POLL_S = 0.5


def take(
    folder: Path, log: Callable[..., object], *, ended: threading.Event, idle_s: float = IDLE_S, poll_s: float = POLL_S
) -> int:
    """Take all files there are, and those that come, until none came for ``idle_s`` seconds; return how many.

    ``log(file=…, metrics=…, tags=…)`` returns once a file is safe with the tracker; where it raises, the file stays.
    """
    taken, quiet = 0, 0.0
    while not ended.is_set() and quiet < idle_s:
        files = sorted(folder.glob("*.npz"))
        for file in files:
            if ended.is_set():
                break
            metrics, tags = _described(file)
            tags |= _versions(folder.parent / "state.json", tags["scanflow.revision"].split(","))
            log(file=file, metrics=metrics, tags=tags)
            file.unlink(missing_ok=True)
            taken += 1
        quiet = 0.0 if files else quiet + poll_s
        ended.wait(poll_s)
    return taken


def _described(file: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Return how many predictions a file holds, and of which revisions."""
    import numpy as np

    with np.load(file, allow_pickle=False) as held:
        times = held["time"] if "time" in held else np.zeros(0)
        revisions = sorted({str(one) for one in np.atleast_1d(held["revision"])}) if "revision" in held else []
    metrics = {"predictions": float(times.size)}
    if times.size:
        metrics |= {"first": float(times.min()), "last": float(times.max())}
    return metrics, {"scanflow.revision": ",".join(revisions)}


def _versions(state: Path, revisions: Sequence[str]) -> dict[str, str]:
    """Return which model versions those revisions are, as far as the service still knows them."""
    try:
        known = json.loads(state.read_bytes())["record"]["revisions"]
    except (OSError, ValueError, KeyError):
        return {}
    models = {uri for one in known if one["id"] in revisions for uri in one["models"].values()}
    return {"scanflow.model_version": ",".join(sorted(models))} if models else {}


def main(arguments: list[str]) -> None:
    folder, locator, given = arguments
    module, _, name = locator.partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(module), name)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    take(Path(folder), partial(function, **json.loads(given)), ended=ended)


if __name__ == "__main__":
    main(sys.argv[1:])
