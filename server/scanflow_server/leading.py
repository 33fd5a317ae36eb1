"""Of several servers, the one that acts: it holds a lease, and ends at once where it could not keep it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from scanflow.errors import ScanflowError
from scanflow_server.settings import ServerSettings

if TYPE_CHECKING:
    from scanflow.backends.port import Lease

DURATION_S: Final = 15.0
"""So long after the holder was last heard of, another takes the lease."""

DEADLINE_S: Final = 10.0
"""A holder that could not keep it for so long ends, well before another may take it."""

PERIOD_S: Final = 2.0
KEEP_ALIVE_S: Final = 75
"""So long an idle connection is kept, in seconds: longer than agents keep theirs."""


_log = logging.getLogger(__name__)
_WAITING = {"/healthz": (200, b'{"status": "alive"}'), "/readyz": (200, b'{"status": "standby"}')}
_ELSEWHERE = (
    b'{"type": "urn:scanflow:error:UnavailableError", "status": 503, "title": "Standing by", '
    b'"detail": "This server stands by: another one acts. Ask again in a moment."}'
)


class EndedError(Exception):
    """The server was asked to end while it stood by."""


@contextmanager
def leading(settings: ServerSettings, listener: socket.socket) -> Iterator[None]:
    """Wait until this server may act, and keep it so inside; until then only its health is told at ``listener``."""
    if settings.lease is None:
        yield
        return
    from scanflow.deployer.embedded import open_backend

    lease = open_backend(settings.library, None).lease(settings.lease, holder=settings.name, duration_s=DURATION_S)
    with _waiting_server(settings, listener) as ended:
        if not acquire(lease, ended):
            raise EndedError
    _log.info("%s acts: it holds the lease %s", settings.name, settings.lease)
    renewal = LeaseRenewal(lease)
    renewal.start()
    try:
        yield
    finally:
        renewal.stop()


def acquire(lease: Lease, ended: threading.Event, *, period_s: float = PERIOD_S) -> bool:
    """Take a lease as soon as nobody holds it; return whether it was taken before ``ended``."""
    told = ""
    while not ended.is_set():
        try:
            if lease.take():
                return True
        except ScanflowError as error:  # the place does not answer, or does not allow it yet
            if str(error) != told:
                _log.warning("The lease cannot be taken now: %s", error)
            told = str(error)
        ended.wait(period_s)
    return False


class LeaseRenewal:
    """Keeps a lease, in a thread of its own, and calls ``lost`` when it is another's or could not be kept."""

    def __init__(
        self,
        lease: Lease,
        *,
        lost: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
    ) -> None:
        self._lease, self._lost, self._clock, self._period_s = lease, lost or _end_at_once, clock, period_s
        self._over = threading.Event()
        self.kept_at = clock()
        """When it was last known to be kept."""

        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._keep, self._watch)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop keeping it, and let another have it."""
        self._over.set()
        for thread in self._threads:
            thread.join(self._period_s)
        try:
            self._lease.release()
        except ScanflowError as error:
            _log.warning("The lease could not be released; it ends by itself: %s", error)

    def _keep(self) -> None:
        while not self._over.wait(self._period_s):
            asked = self._clock()
            try:
                held = self._lease.take()
            except ScanflowError as error:
                _log.warning("The lease could not be kept now: %s", error)
                continue
            if held:
                self.kept_at = asked
            elif not self._over.is_set():
                _log.error("The lease is another server's: this one ends")
                self._lost()
                return

    def _watch(self) -> None:
        # In a thread of its own: a request that hangs must not keep it.
        while not self._over.wait(self._period_s / 4):
            if self._clock() - self.kept_at > DEADLINE_S:
                _log.error(
                    "The lease was not kept for %.0f s: another server may act now, so this one ends", DEADLINE_S
                )
                self._lost()
                return


def http_options(settings: ServerSettings) -> dict[str, Any]:
    """Return what uvicorn is told about every server here."""
    return {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "ssl_certfile": settings.tls_cert and settings.tls_cert.expanduser(),
        "ssl_keyfile": settings.tls_key and settings.tls_key.expanduser(),
    }


@contextmanager
def _waiting_server(settings: ServerSettings, listener: socket.socket) -> Iterator[threading.Event]:
    """Tell inside that this server is alive and stands by; the event is set when it is asked to end."""
    import uvicorn

    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    server = uvicorn.Server(
        uvicorn.Config(_answer_waiting, lifespan="off", timeout_graceful_shutdown=1, **http_options(settings))
    )
    own = listener.dup()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [own]}, name="standby", daemon=True)
    thread.start()  # not the main thread: it leaves signals alone
    try:
        yield ended
    finally:
        server.should_exit = True
        thread.join(5.0)
        for number, handler in before.items():
            signal.signal(number, handler)


async def _answer_waiting(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    status, body = _WAITING.get(scope["path"], (503, _ELSEWHERE))
    kind = b"application/json" if status == 200 else b"application/problem+json"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"retry-after", b"2")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _end_at_once() -> None:
    os._exit(1)
