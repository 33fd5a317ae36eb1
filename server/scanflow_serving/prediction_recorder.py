"""Records samples of predictions for agents, in the background and within a size limit.

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

from scanflow.files.private import create_private_folder, open_private
from scanflow.instance_messages import Recording, Revision
from scanflow.processes.shared_files import try_lock
from scanflow_serving.messages import Tensor

CLOSE_S = 5.0
_MAX_QUEUED_BYTES = 64 * 1024 * 1024


class Sampler:
    """Selects a ``fraction`` of the predictions evenly: of 1,000, exactly 100 at 0.1."""

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
        """The key of the file: predictions of the same kind can share one."""
        return (
            self.revision.id,
            *((name, array.dtype.str, array.shape[1:]) for name, array in sorted(self.arrays.items())),
        )


class Recorder:
    """Records predictions of one instance: from any thread, within microseconds, even if the disk is full."""

    def __init__(
        self,
        recording: Recording,
        *,
        count: Callable[[str, int], None] = lambda _name, _rows: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``count`` gets the number of predictions recorded or dropped, by the metric's name."""
        self._recording = recording
        self._folder = Path(recording.folder)
        self._count, self._clock = count, clock
        self._sampler = Sampler(recording.fraction)
        self._waiting: deque[_Prediction] = deque()
        self._rows = 0
        self._bytes = 0
        self._lock = threading.Lock()
        self._full = threading.Event()
        self._over = False
        self._numbers = itertools.count()
        self._folder_lock = self._lock_folder()
        self._thread = threading.Thread(target=self._write_loop, name="recorder", daemon=True)
        self._thread.start()

    def should_keep(self, inputs: Sequence[Tensor]) -> bool:
        """Whether to record these predictions; to be called once per request."""
        with self._lock:
            return self._sampler(_count_rows(inputs))

    def keep(self, revision: Revision, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Queue predictions to record. The arrays must not be changed afterwards."""
        rows = _count_rows(inputs)
        size = sum(tensor.data.nbytes for tensor in (*inputs, *outputs))
        with self._lock:
            late = bool(self._waiting) and (
                self._rows + rows > 2 * self._recording.rows or self._bytes + size > _MAX_QUEUED_BYTES
            )
            if not late:
                named = itertools.chain(
                    (("input", tensor) for tensor in inputs), (("output", tensor) for tensor in outputs)
                )
                arrays = {f"{side}:{tensor.name}": tensor.data for side, tensor in named}
                self._waiting.append(_Prediction(revision, self._clock(), rows, arrays))
                self._rows += rows
                self._bytes += size
            enough = self._rows >= self._recording.rows or self._bytes >= _MAX_QUEUED_BYTES // 2
        if late:
            self._count("scanflow_dropped", rows)
        if enough:
            self._full.set()

    def flush(self) -> None:
        with self._lock:
            taken, self._waiting, self._rows, self._bytes = self._waiting, deque(), 0, 0
            self._full.clear()
        kinds: dict[tuple[object, ...], list[_Prediction]] = defaultdict(list)
        for prediction in taken:
            kinds[prediction.kind].append(prediction)
        for batch in kinds.values():
            self._write(batch)

    def close(self) -> None:
        """Write the queued predictions and stop, within ``CLOSE_S``."""
        self._over = True
        self._full.set()
        self._thread.join(CLOSE_S)
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None

    def _lock_folder(self) -> int | None:
        """Lock the folder while this process may write files, so that their collector knows; the kernel releases it."""
        try:
            opened = os.open(create_private_folder(self._folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # it cannot be written to either, which is counted
            return None
        try_lock(opened, fcntl.LOCK_SH)
        return opened

    def _write_loop(self) -> None:
        while not self._over:
            self._full.wait(self._recording.flush_s)
            self.flush()
        self.flush()

    def _write(self, batch: Sequence[_Prediction]) -> None:
        rows = sum(prediction.rows for prediction in batch)
        try:
            self._folder.mkdir(0o700, exist_ok=True)  # and not what it lies in: a home that was moved is not made again
            if _count_folder_bytes(self._folder) + _count_bytes(batch) > self._recording.max_bytes:
                self._count("scanflow_dropped", rows)
                return
            name = f"{int(self._clock() * 1000)}-{os.getpid()}-{next(self._numbers)}"
            draft = self._folder / f"{name}.part"
            with open_private(draft, "wb") as file:
                np.savez(file, **_build_columns(batch))  # type: ignore[arg-type]  # its own keyword is no array
            draft.rename(self._folder / f"{name}.npz")
        except (OSError, ValueError):  # a full disk must not fail the request, which was answered
            self._count("scanflow_dropped", rows)
        else:
            self._count("scanflow_recorded", rows)


def _count_rows(inputs: Sequence[Tensor]) -> int:
    """Return the number of predictions of a request: the length of its first input's first axis."""
    return int(inputs[0].data.shape[0]) if inputs and inputs[0].data.ndim else 1


def _build_columns(batch: Sequence[_Prediction]) -> dict[str, NDArray[Any]]:
    """Return the arrays of one file. A request has one row of ``time`` for each of its predictions."""
    columns: dict[str, NDArray[Any]] = {
        "time": np.repeat([prediction.at for prediction in batch], [prediction.rows for prediction in batch]),
        "revision": np.asarray(batch[0].revision.id),
        "models": np.asarray(sorted(batch[0].revision.models.values()), str),
    }
    for name in batch[0].arrays:
        joined = np.concatenate([np.atleast_1d(prediction.arrays[name]) for prediction in batch])
        columns |= _encode_texts(name, joined) if joined.dtype == object else {name: joined}
    return columns


def _encode_texts(name: str, values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    parts = [value if isinstance(value, bytes) else str(value).encode() for value in values.ravel()]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64).reshape(values.shape)
    return {name: np.frombuffer(b"".join(parts), np.uint8), f"{name}:ends": ends}


def _count_bytes(batch: Iterable[_Prediction]) -> int:
    return sum(array.nbytes for prediction in batch for array in prediction.arrays.values())


def _count_folder_bytes(folder: Path) -> int:
    total = 0
    for entry in os.scandir(folder):
        try:
            total += entry.stat().st_size
        except FileNotFoundError:  # collected in the meantime
            continue
    return total
