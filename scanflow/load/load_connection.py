"""What the load generator and its connections need of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scanflow.load.load_plan import LoadPlan


class LoadConnection(Protocol):
    """A connection that sends one request at a time; each ends in the sender's ``record_result`` and ``release``."""

    @property
    def closed_meanwhile(self) -> bool:
        """Whether the server has closed it while it was idle, which clients check before they send."""
        raise NotImplementedError

    def send(self, due: float, number: int) -> None:
        """Send a request that was due at a time, by ``time.monotonic``."""

    def expire(self, now: float) -> None:
        """Abort a request that has taken longer than the plan allows."""

    async def close(self) -> None:
        """Close the connection at the end of the load."""


class Sender(Protocol):
    """The sender of a load, as its connections and its clock see it."""

    plan: LoadPlan
    began: float
    """When it began, by ``time.monotonic``; 0 before."""

    reconnects: int
    expect: bytes | None
    """What each answer must contain."""

    tally: bytes | None
    """The header of answers, in lower case, whose values are counted."""

    def build_message(self, number: int, /) -> bytes: ...

    def send_due(self, requests: Sequence[tuple[float, int]], *, late: bool) -> None: ...

    def record_result(
        self, number: int, due: float, sent: float, status: int, reason: str | None, tally: str | None
    ) -> None: ...

    def release(self, connection: LoadConnection) -> None:
        """Take a connection that may send its next request."""

    def replace(self, connection: LoadConnection) -> None:
        """Open another connection in the place of one that was closed."""
