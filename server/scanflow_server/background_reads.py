"""What pages read from elsewhere, as from MLflow: in the background, so that no page waits for it, and kept a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Final

from scanflow.errors import InternalError, ScanflowError

LEAST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 300.0
COST_FACTOR: Final = 200.0
"""A reading is repeated after so many times what it took: a page that stays open costs a two-hundredth of a core."""

OPENED_PAUSE_S: Final = 5.0
"""What is older is read again when somebody opens a page."""

MAX_READINGS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read last."""

    value: Any = None
    """None: nothing was read yet, or the last reading failed."""

    problem: ScanflowError | None = None
    is_loading: bool = True
    at: float | None = None
    """When its reading began, in seconds since the epoch."""

    began: float = 0.0
    """The same, by the clock of this process."""

    due: float = 0.0
    """When it is read again, by that clock."""


class BackgroundReads:
    """Thread-safe: one thing is read at a time. ``notify`` is called when something was read."""

    def __init__(self, notify: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._notify, self._clock = notify, clock
        self._readings: OrderedDict[Hashable, Reading] = OrderedDict()
        self._queue: deque[tuple[Hashable, Callable[[], Any]]] = deque()
        self._is_working = False
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], Any], *, is_opened: bool = False) -> Reading:
        """Return what was read last under a key, and have it read again in another thread if that is due: for a page
        that somebody opens sooner than for one that stays open.

        Whoever asks for a key may see what is under it: it names the caller's team, where that matters.
        """
        with self._lock:
            before = self._readings.get(key)
            now = self._clock()
            if before is not None and (before.due == 0.0 or now < _choose_due(before, is_opened=is_opened)):
                self._readings.move_to_end(key)
                return before
            reading = replace(before or Reading(), due=0.0, is_loading=True)
            self._readings[key] = reading
            while len(self._readings) > MAX_READINGS:
                self._readings.popitem(last=False)
            self._queue.append((key, read))
            if not self._is_working:
                self._is_working = True
                threading.Thread(target=self._work, name="background-reads", daemon=True).start()
        return reading

    def forget(self, key: Hashable) -> None:
        """Have a key read again by whoever asks for it next, unless it is being read."""
        with self._lock:
            if (before := self._readings.get(key)) is not None and not before.is_loading:
                self._readings[key] = replace(before, due=-1.0)

    def _work(self) -> None:
        """Read one after the other what nobody has forgotten."""
        while True:
            with self._lock:
                self._is_working = bool(self._queue)
                if not self._is_working:
                    return
                key, read = self._queue.popleft()
                if key not in self._readings:
                    continue
            reading = self._read(read)
            with self._lock:
                if key in self._readings:
                    self._readings[key] = reading
            self._notify()

    def _read(self, read: Callable[[], Any]) -> Reading:
        began, at, value, problem = self._clock(), time.time(), None, None
        try:
            value = read()
        except ScanflowError as error:
            problem = error
        except Exception as error:  # noqa: BLE001  the edge of a thread: the page says what happened
            problem = InternalError(f"It could not be read: {type(error).__name__}: {error}")
        now = self._clock()
        pause_s = min(max(LEAST_PAUSE_S, (now - began) * COST_FACTOR), LONGEST_PAUSE_S)
        due = now + (pause_s if problem is None else LEAST_PAUSE_S)
        return Reading(value=value, problem=problem, is_loading=False, at=at, began=began, due=due)


def _choose_due(reading: Reading, *, is_opened: bool) -> float:
    return min(reading.due, reading.began + OPENED_PAUSE_S) if is_opened else reading.due
