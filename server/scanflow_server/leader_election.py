"""Leader election: of several servers the one that holds the lease acts, and exits at once if it cannot renew it."""

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
from scanflow_server.server_settings import ServerSettings

if TYPE_CHECKING:
    from scanflow.backends.backend_port import Lease

DURATION_S: Final = 15.0
"""How long a lease is valid after its last renewal, in seconds."""

DEADLINE_S: Final = 10.0
"""After how long without renewal the holder exits, in seconds: well before another may take the lease."""

PERIOD_S: Final = 2.0
KEEP_ALIVE_S: Final = 75
"""How long an idle connection is kept alive, in seconds: longer than agents keep theirs."""


_log = logging.getLogger(__name__)
_WAITING = {"/healthz": (200, b'{"status": "alive"}'), "/readyz": (200, b'{"status": "standby"}')}
_NOT_LEADER_BODY = (
    b'{"type": "urn:scanflow:error:UnavailableError", "status": 503, "title": "Standing by", '
    b'"detail": "This server stands by: another one acts. Ask again in a moment."}'
)


class EndedError(Exception):
    """The server was stopped while it waited for the lease."""


@contextmanager
def hold_lease(settings: ServerSettings, listener: socket.socket) -> Iterator[None]:
    """Wait for the lease, and renew it inside; until then serve only health checks at ``listener``."""
    if settings.lease is None:
        yield
        return
    from scanflow.deployer.embedded import open_backend

    lease = open_backend(settings.library, None).lease(settings.lease, holder=settings.name, duration_s=DURATION_S)
    with _serve_while_waiting(settings, listener) as ended:
        if not acquire(lease, ended):
            raise EndedError
    _log.info("%s is the leader: it holds the lease %s", settings.name, settings.lease)
    renewal = LeaseRenewal(lease)
    renewal.start()
    try:
        yield
    finally:
        renewal.stop()


def acquire(lease: Lease, ended: threading.Event, *, period_s: float = PERIOD_S) -> bool:
    """Acquire a lease as soon as it is free; return whether it was acquired before ``ended`` was set."""
    warned = ""
    while not ended.is_set():
        try:
            if lease.take():
                return True
        except ScanflowError as error:  # the backend does not answer, or does not permit it yet
            if str(error) != warned:
                _log.warning("The lease could not be acquired: %s", error)
            warned = str(error)
        ended.wait(period_s)
    return False


class LeaseRenewal:
    """Renews a lease in a thread of its own, and calls ``lost`` when another server holds it or it was not renewed."""

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
        self.renewed_at = clock()
        """When it was last renewed."""

        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._renew, self._watch)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop renewing the lease, and release it."""
        self._over.set()
        for thread in self._threads:
            thread.join(self._period_s)
        try:
            self._lease.release()
        except ScanflowError as error:
            _log.warning("The lease could not be released; it will expire: %s", error)

    def _renew(self) -> None:
        while not self._over.wait(self._period_s):
            asked_at = self._clock()
            try:
                renewed = self._lease.take()
            except ScanflowError as error:
                _log.warning("The lease could not be renewed: %s", error)
                continue
            if renewed:
                self.renewed_at = asked_at
            elif not self._over.is_set():
                _log.error("Another server holds the lease: this server exits")
                self._lost()
                return

    def _watch(self) -> None:
        # In a thread of its own: a hanging request must not block it.
        while not self._over.wait(self._period_s / 4):
            if self._clock() - self.renewed_at > DEADLINE_S:
                _log.error(
                    "The lease was not renewed for %.0f s: this server exits, as another one may be the leader now",
                    DEADLINE_S,
                )
                self._lost()
                return


def build_http_options(settings: ServerSettings) -> dict[str, Any]:
    """Return the uvicorn options that all servers here share."""
    from scanflow.http.connections import LimitedConnection

    return {
        "http": LimitedConnection,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "ssl_certfile": settings.tls_cert and settings.tls_cert.expanduser(),
        "ssl_keyfile": settings.tls_key and settings.tls_key.expanduser(),
    }


@contextmanager
def _serve_while_waiting(settings: ServerSettings, listener: socket.socket) -> Iterator[threading.Event]:
    """Serve health checks inside; the event is set when a signal stops the server."""
    import uvicorn

    from scanflow.http.tls_server import TlsServer

    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    server = TlsServer(
        uvicorn.Config(
            _respond_while_waiting, lifespan="off", timeout_graceful_shutdown=1, **build_http_options(settings)
        )
    )
    own = listener.dup()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [own]}, name="standby", daemon=True)
    thread.start()  # not the main thread, so it handles no signals
    try:
        yield ended
    finally:
        server.should_exit = True
        thread.join(5.0)
        for number, handler in before.items():
            signal.signal(number, handler)


async def _respond_while_waiting(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    status, body = _WAITING.get(scope["path"], (503, _NOT_LEADER_BODY))
    kind = b"application/json" if status == 200 else b"application/problem+json"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"retry-after", b"2")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _end_at_once() -> None:
    os._exit(1)
