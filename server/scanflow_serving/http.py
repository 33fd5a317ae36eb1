"""The HTTP face of an instance: one :class:`Connection` for each, from its first byte to its last.

HTTP/1.1 with everything that callers of a model server use: connections that stay, requests sent ahead of their
answers, chunked bodies, ``Expect: 100-continue``. For the usual request, one that came in one piece and whose answer
fits the socket's buffer, no task, no future and no timer is made, and each byte is copied once each way.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from scanflow_serving.answers import CONTINUE, head_of
from scanflow_serving.inbox import Inbox
from scanflow_serving.messages import Reply, Request, Response
from scanflow_serving.problems import Problem
from scanflow_serving.slots import IDLE, LEAVING, Slot

__all__ = ["Connection", "Hub", "Parcel"]

WRITE_S: Final = 30.0
"""Longest that a receiver may take none of an answer."""

LINGER_S: Final = 2.0
"""How long a refused request is read on, so that its sender gets to read why rather than a reset."""

_JOINED_BYTES: Final = 64 * 1024  # up to here a copy is cheaper than a second buffer for the kernel to walk
_PIECE_BYTES: Final = 256 * 1024
_MOST_BUFFERS: Final = 512  # IOV_MAX is 1024
_IN_A_ROW: Final = 32  # requests sent ahead that are answered before other connections get their turn

_Buffer = bytes | memoryview


class Hub(Protocol):
    """What a connection asks of the set of all of them."""

    loop: asyncio.AbstractEventLoop
    now: float
    """The monotonic clock, as of the last second or so."""

    date: bytes
    scratch: memoryview
    """Where bytes go that nobody wants."""

    most: int
    """Bytes of a body."""

    handle: Callable[[Request, Reply], None]

    def made(self, connection: Connection) -> None:
        """Note a connection that is served from now on."""

    def lost(self, connection: Connection) -> None:
        """Forget a connection, which is closed."""

    def between(self, connection: Connection) -> None:
        """Do what is to be done with a connection that is to go, between two requests."""


class Parcel:
    """A connection on its way to another process."""

    __slots__ = ("_slot", "fd", "replays", "unanswered")

    def __init__(self, fd: int, unanswered: bytes, replays: int, slot: Slot) -> None:
        self.fd = fd
        self.unanswered = unanswered
        self.replays = replays
        self._slot = slot

    def leaving(self) -> None:
        """Say that it is being sent: from now on nobody else is to take it."""
        self._slot.phase = LEAVING

    def stays(self) -> None:
        """Say that it was not sent."""
        self._slot.phase = IDLE

    def close(self) -> None:
        """Close it here, sent or not."""
        self._slot.release()
        os.close(self.fd)


class Connection(asyncio.BufferedProtocol):
    """One connection to one caller."""

    __slots__ = (
        "_advancing",
        "_answering",
        "_at_end",
        "_detached",
        "_fd",
        "_hub",
        "_inbox",
        "_keep",
        "_later",
        "_paused",
        "_request",
        "_sent",
        "_slot",
        "_transport",
        "_unsent",
        "going",
        "last",
        "lingering",
        "opened",
        "since",
    )
    _transport: asyncio.Transport

    def __init__(self, hub: Hub, sock: socket.socket, slot: Slot, inbox: Inbox, sent: int) -> None:
        """``sent``: how many bytes were written to it, by whomever, until now."""
        self.opened = hub.now
        self.since = hub.now
        """When it last did something, on the hub's clock."""

        self.going = False
        """Whether it is to go, between two requests."""

        self.last = False
        """Whether it ends with its next answer."""

        self.lingering = False
        self._hub = hub
        self._fd = sock.fileno()
        self._slot = slot
        self._inbox = inbox
        self._sent = sent
        self._request: Request | None = None
        self._unsent: list[_Buffer] = []
        self._keep = True
        self._paused = False
        self._at_end = False
        self._advancing = False
        self._answering = False
        self._later = False  # whether it yielded to others, with more to do
        self._detached = False

    # -- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, with what another process read already."""
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's has another class
        transport.set_write_buffer_limits(high=0)
        self._hub.made(self)
        if self._inbox.begun or self.going:
            self._advance()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's signature
        """Return where the kernel is to write."""
        return self._hub.scratch if self.lingering else self._inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came."""
        if self.lingering:
            return
        inbox = self._inbox
        inbox.filled(nbytes)
        if self._request is None and not self._later:
            self._advance()
        if inbox.full and not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Return whether there is still something to say to a caller that has said all."""
        self._at_end = True
        return (self._request is not None or self._later) and not self.lingering

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's signature
        """Forget everything; an answer that comes yet has nowhere to go."""
        self._request = None
        self._answering = False
        self._unsent = []
        if not self._detached:
            self._slot.release()
        self._hub.lost(self)

    def resume_writing(self) -> None:
        """Go on with an answer that did not fit the socket's buffer."""
        self.since = self._hub.now
        if self._answering and self._write(self._unsent):
            self._answered()

    # -- one request after the other

    def _advance(self) -> None:
        """Begin what came whole, in order; each only when the one before it is answered."""
        self._advancing = True
        try:
            for _ in range(_IN_A_ROW):
                if self.going:
                    self._hub.between(self)
                    if self._transport.is_closing():
                        return
                request = self._inbox.next()
                if request is None:
                    self._wait()
                    return
                self._request = request
                self._hub.handle(request, partial(self._reply, request))
                if self.busy or self.lingering or self._transport.is_closing():
                    return
            self._later = True
            self._hub.loop.call_soon(self._go_on)
        except Problem as problem:
            self._refuse(problem)
        finally:
            self._advancing = False

    def _go_on(self) -> None:
        self._later = False
        if not (self.busy or self.lingering or self._detached or self._transport.is_closing()):
            self._advance()

    def _wait(self) -> None:
        """Wait for the rest of a request, or for the next."""
        inbox = self._inbox
        self.since = self._hub.now
        if self._at_end:
            self._close()
        elif inbox.expects:
            inbox.expects = False
            self._sent += len(CONTINUE)
            self._write([CONTINUE])
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _reply(self, request: Request, response: Response) -> None:
        """Answer the request at hand. One that is no more at hand needs no answer."""
        if request is not self._request or self._answering:
            return
        self._answering = True
        request.slot = None  # what still runs for it says nothing of the connection any more
        hub, inbox = self._hub, self._inbox
        self._keep = keep = inbox.keep_alive and not self.last and not (self._at_end and inbox.empty)
        body = response.body
        length = len(body) if isinstance(body, bytes) else sum(map(_size, body))
        head = head_of(response, length, hub.date, keep_alive=keep, old=inbox.old)
        parts: list[_Buffer] = [head]
        if not length or request.method == "HEAD":
            length = 0
        elif not isinstance(body, bytes):
            parts += [_flat(part) for part in body if _size(part)]
        elif length <= _JOINED_BYTES:
            parts[0] = head + body
        else:
            parts.append(body)
        target = self._sent + len(head) + length
        self._slot.answering(inbox.next_at, self._sent, target)
        self._sent = target
        if self._write(parts):
            self._answered()
        else:
            self.since = hub.now

    def _answered(self) -> None:
        """Go on after an answer that the kernel has wholly."""
        self._request = None
        self._answering = False
        inbox = self._inbox
        if not self._keep:
            if inbox.keep_alive:
                self._linger()
            else:
                self._close()
            return
        more = not inbox.empty
        inbox.answered()
        if not self._advancing and (more or self.going or self._at_end or self._paused):
            self._advance()

    def _write(self, parts: list[_Buffer]) -> bool:
        """Write; return whether the kernel has all of it. Otherwise :meth:`resume_writing` goes on with it.

        It goes past the transport while that has nothing to write itself: a transport writes some time before the loop
        waits again, and until then a process that is killed has answered, and nobody knows.
        """
        self._unsent = parts
        transport = self._transport
        if transport.get_write_buffer_size():
            return False
        try:
            while parts:
                count = os.write(self._fd, parts[0]) if len(parts) == 1 else os.writev(self._fd, parts[:_MOST_BUFFERS])
                _drop(parts, count)
        except BlockingIOError:
            while parts and not transport.get_write_buffer_size():
                piece = memoryview(parts[0])[:_PIECE_BYTES]
                _drop(parts, len(piece))
                transport.write(piece)
            return not parts and not transport.get_write_buffer_size()
        except OSError:
            transport.abort()
            return False
        return True

    # -- the end

    def _refuse(self, problem: Problem) -> None:
        """Answer what is no request that is served; where the next one begins is not known."""
        response = problem.response()
        body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
        self._slot.phase = LEAVING
        answer: _Buffer = head_of(response, len(body), self._hub.date, keep_alive=False) + body
        self._write([answer])
        self._linger()

    def _linger(self) -> None:
        """Say that no more will be said, and read on for a while: a socket closed with bytes unread is reset."""
        self._slot.phase = LEAVING
        self.lingering = True
        self.since = self._hub.now
        transport = self._transport
        if transport.is_closing():
            return
        if self._at_end or not transport.can_write_eof():
            transport.close()
            return
        if self._paused:
            self._paused = False
            transport.resume_reading()
        transport.write_eof()

    def _close(self) -> None:
        self._slot.phase = LEAVING
        self._transport.close()

    @property
    def idle(self) -> bool:
        """Whether it is between two requests."""
        return self._request is None and not self._inbox.begun and not self.lingering

    @property
    def busy(self) -> bool:
        """Whether a request came whole and is not wholly answered."""
        return self._request is not None

    def part(self) -> None:
        """Close it, between two requests."""
        self._close()

    def expire(self, now: float) -> None:
        """Let go of a caller that is too slow."""
        if self.lingering:
            if now > self.since + LINGER_S:
                self._transport.abort()
        elif self._answering or self._transport.get_write_buffer_size():
            if now > self.since + WRITE_S:
                self._transport.abort()
        elif self._request is None and self._inbox.begun and now > self._inbox.due:
            self._refuse(Problem(408, "The request did not come in time."))

    def detach(self) -> Parcel | None:
        """Take the connection from the loop without closing it; None: that cannot be done just now."""
        if self._request is not None or self.lingering or self._transport.is_closing():
            return None
        unanswered = self._inbox.unanswered()
        if unanswered is None or self._transport.get_write_buffer_size():
            return None
        self._transport.pause_reading()
        fd = os.dup(self._fd)
        self._slot.moved(fd)
        self._detached = True
        self._transport.abort()  # closes its own number for the file, and tells the caller nothing
        return Parcel(fd, unanswered, self._slot.replays, self._slot)


def _size(part: bytes | memoryview) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)


def _flat(part: bytes | memoryview) -> _Buffer:
    """Return the part as bytes, without a copy."""
    return part.cast("B") if isinstance(part, memoryview) and part.format != "B" else part


def _drop(parts: list[_Buffer], count: int) -> None:
    """Take so many bytes from the beginning, without a copy."""
    while count:
        first = len(parts[0])
        if count < first:
            parts[0] = memoryview(parts[0])[count:]
            return
        count -= first
        del parts[0]
