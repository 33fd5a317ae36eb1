"""The loop that lets controllers look, each in a thread of its own, until the server ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from scanflow_server.change_notifier import ChangeNotifier
from scanflow_server.control.error_isolation import ErrorIsolation

_BREATH_S = 0.01
"""Between two looks, however many changes there are."""

PAUSE_S = 1.0
"""Until a controller looks again that cannot say when."""


class Controller(Protocol):
    """Something that is to be brought about again and again."""

    @property
    def period_s(self) -> float:
        """How long until it looks again when nothing changes."""
        ...

    def tick(self) -> None:
        """Look, and do what is to be done now; what cannot be done now is done at a later look."""
        ...


class Loop:
    """Controllers at work."""

    def __init__(self, controllers: Sequence[Controller], notifier: ChangeNotifier) -> None:
        self._controllers, self._notifier = controllers, notifier
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin."""
        for one in self._controllers:
            thread = threading.Thread(target=self._look, args=(one,), name=type(one).__name__, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End after the looks that are under way."""
        self._over.set()
        self._notifier.notify()
        for thread in self._threads:
            thread.join(timeout_s)

    def _look(self, controller: Controller) -> None:
        isolation, name = ErrorIsolation(), type(controller).__name__
        while not self._over.is_set():
            since, pause_s = self._notifier.changes, PAUSE_S
            with isolation.of(f"What the {name} does"):  # what does not answer now may answer at the next look
                controller.tick()
            with isolation.of(f"The pause of the {name}"):
                pause_s = controller.period_s
            self._over.wait(_BREATH_S)
            self._notifier.wait(since, pause_s)
