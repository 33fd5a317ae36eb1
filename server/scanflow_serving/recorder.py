"""Predictions written down for agents to count and check: sampled, in the background, and never more than was allowed.

A file holds predictions of one revision whose tensors have the same names, types and shapes: ``input:<name>`` and
``output:<name>`` with the predictions along the first axis, ``time`` (seconds since the epoch of each), ``revision``,
and the addresses of its ``models``. Tensors of bytes are two arrays: all of them in a row, and ``<name>:ends`` with
where each one ends.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.private import open_private, private_folder
from scanflow.processes.files import try_lock
from scanflow.wire import Recording, Revision
from scanflow_serving.messages import Tensor

CLOSE_S = 5.0
_MOST_WAITING_BYTES = 64 * 1024 * 1024


class Sampler:
    """Says of each prediction whether it is in the ``fraction`` to be kept, evenly: of 1,000, exactly 100 at 0.1."""

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        self._owed = 0.0

    def __call__(self, rows: int = 1) -> bool:
        self._owed += self._fraction * rows
        if self._owed + 1e-9 < rows:
            return False
        self._owed -= rows
        return True


@dataclass(frozen=True, slots=True)
class _Prediction:
    revision: Revision
    at: float
    rows: int
    arrays: Mapping[str, NDArray[Any]]

    @property
    def kind(self) -> tuple[object, ...]:
        """Predictions of the same kind can lie in one file."""
        return (self.revision.id, *((name, one.dtype.str, one.shape[1:]) for name, one in sorted(self.arrays.items())))


class Recorder:
    """Keeps predictions of one instance: from any thread, within microseconds, and whether or not the disk is full."""

    def __init__(
        self,
        recording: Recording,
        *,
        count: Callable[[str, int], None] = lambda _name, _rows: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``count`` is told how many predictions were written, or could not be kept, by the metric's name."""
        self._recording = recording
        self._folder = Path(recording.folder)
        self._count, self._clock = count, clock
        self._wanted = Sampler(recording.fraction)
        self._waiting: deque[_Prediction] = deque()
        self._rows = 0
        self._bytes = 0
        self._lock = threading.Lock()
        self._full = threading.Event()
        self._over = False
        self._numbers = itertools.count()
        self._held = self._hold()
        self._thread = threading.Thread(target=self._write_on, name="recorder", daemon=True)
        self._thread.start()

    def wants(self, inputs: Sequence[Tensor]) -> bool:
        """Whether it is these predictions' turn to be kept; each request asks once."""
        with self._lock:
            return self._wanted(_rows(inputs))

    def keep(self, revision: Revision, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Keep what was wanted. The arrays must not be changed afterwards."""
        rows = _rows(inputs)
        size = sum(one.data.nbytes for one in (*inputs, *outputs))
        with self._lock:
            late = bool(self._waiting) and (
                self._rows + rows > 2 * self._recording.rows or self._bytes + size > _MOST_WAITING_BYTES
            )
            if not late:
                named = itertools.chain((("input", one) for one in inputs), (("output", one) for one in outputs))
                arrays = {f"{side}:{one.name}": one.data for side, one in named}
                self._waiting.append(_Prediction(revision, self._clock(), rows, arrays))
                self._rows += rows
                self._bytes += size
            enough = self._rows >= self._recording.rows or self._bytes >= _MOST_WAITING_BYTES // 2
        if late:
            self._count("scanflow_dropped", rows)
        if enough:
            self._full.set()

    def flush(self) -> None:
        with self._lock:
            taken, self._waiting, self._rows, self._bytes = self._waiting, deque(), 0, 0
            self._full.clear()
        kinds: dict[tuple[object, ...], list[_Prediction]] = defaultdict(list)
        for one in taken:
            kinds[one.kind].append(one)
        for alike in kinds.values():
            self._write(alike)

    def close(self) -> None:
        """Write what waits, and end; after a bounded wait, without it."""
        self._over = True
        self._full.set()
        self._thread.join(CLOSE_S)
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _hold(self) -> int | None:
        """Lock the folder for as long as files may come, so that who takes them knows; the kernel ends that with us."""
        try:
            opened = os.open(private_folder(self._folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # it cannot be written to either, and that is counted
            return None
        try_lock(opened, fcntl.LOCK_SH)
        return opened

    def _write_on(self) -> None:
        while not self._over:
            self._full.wait(self._recording.flush_s)
            self.flush()
        self.flush()

    def _write(self, alike: Sequence[_Prediction]) -> None:
        rows = sum(one.rows for one in alike)
        try:
            private_folder(self._folder)
            if _bytes_in(self._folder) + _bytes_of(alike) > self._recording.max_bytes:
                self._count("scanflow_dropped", rows)
                return
            name = f"{int(self._clock() * 1000)}-{os.getpid()}-{next(self._numbers)}"
            draft = self._folder / f"{name}.part"
            with open_private(draft, "wb") as file:
                np.savez(file, **_columns(alike))  # type: ignore[arg-type]  # its own keyword is no array
            draft.rename(self._folder / f"{name}.npz")
        except (OSError, ValueError):  # a full disk: the prediction was answered, and that is what matters
            self._count("scanflow_dropped", rows)
        else:
            self._count("scanflow_recorded", rows)


def _rows(inputs: Sequence[Tensor]) -> int:
    """Return how many predictions a request asks for: the length of its first input's first axis."""
    return int(inputs[0].data.shape[0]) if inputs and inputs[0].data.ndim else 1


def _columns(alike: Sequence[_Prediction]) -> dict[str, NDArray[Any]]:
    """Return the arrays of one file. One request is one row of ``time`` for each of its predictions."""
    columns: dict[str, NDArray[Any]] = {
        "time": np.repeat([one.at for one in alike], [one.rows for one in alike]),
        "revision": np.asarray(alike[0].revision.id),
        "models": np.asarray(sorted(alike[0].revision.models.values()), str),
    }
    for name in alike[0].arrays:
        joined = np.concatenate([np.atleast_1d(one.arrays[name]) for one in alike])
        columns |= _of_bytes(name, joined) if joined.dtype == object else {name: joined}
    return columns


def _of_bytes(name: str, values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    parts = [one if isinstance(one, bytes) else str(one).encode() for one in values.ravel()]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64).reshape(values.shape)
    return {name: np.frombuffer(b"".join(parts), np.uint8), f"{name}:ends": ends}


def _bytes_of(alike: Iterable[_Prediction]) -> int:
    return sum(one.nbytes for prediction in alike for one in prediction.arrays.values())


def _bytes_in(folder: Path) -> int:
    found = 0
    for entry in os.scandir(folder):
        try:
            found += entry.stat().st_size
        except FileNotFoundError:  # taken to the tracker meanwhile
            continue
    return found
