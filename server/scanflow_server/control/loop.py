"""The loop that lets controllers look, each in a thread of its own, until the server ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from scanflow_server.bell import Bell
from scanflow_server.control.apart import Apart

__all__ = ["Controller", "Loop"]

_BREATH_S = 0.01
"""Between two looks, however often somebody rings."""

PAUSE_S = 1.0
"""Until a controller looks again that cannot say when."""


class Controller(Protocol):
    """Something that is to be brought about again and again."""

    @property
    def period_s(self) -> float:
        """How long until it looks again when nobody rings."""
        ...

    def tick(self) -> None:
        """Look, and do what is to be done now; what cannot be done now is done at a later look."""
        ...


class Loop:
    """Controllers at work."""

    def __init__(self, controllers: Sequence[Controller], bell: Bell) -> None:
        self._controllers, self._bell = controllers, bell
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
        self._bell.ring()
        for thread in self._threads:
            thread.join(timeout_s)

    def _look(self, controller: Controller) -> None:
        apart, name = Apart(), type(controller).__name__
        while not self._over.is_set():
            rang, pause_s = self._bell.rang, PAUSE_S
            with apart.of(f"What the {name} does"):  # what does not answer now may answer at the next look
                controller.tick()
            with apart.of(f"The pause of the {name}"):
                pause_s = controller.period_s
            self._over.wait(_BREATH_S)
            self._bell.wait(rang, pause_s)
