"""Connections without an instance: handed over by one that goes, or by the keeper of one that is gone.

Each is held until somebody can take it, and is never held for longer than its client may be made to wait.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scanflow.backends.local.services.orphans import Ending, Fate, Orphan, Phase, decide
from scanflow.wire import Exchange

__all__ = ["Held", "Holding"]

MOST = 4096
"""Connections held at once; what comes then is closed."""

DOUBT_S = 0.5
LINGER_S = 2.0
"""How long what a client still sends is read and thrown away, so that it gets to read its answer."""

_PROBLEMS = {
    502: ("Bad Gateway", "The instance that answered this request ended. The request may be what ended it."),
    503: ("Service Unavailable", "No instance could answer this request in time."),
}


@dataclass(slots=True)
class Held:
    """One connection. Its files are closed by whoever lets go of it."""

    sock: socket.socket
    memory: int | None
    """A memory file with the bytes read of a request that was not answered."""

    phase: Phase
    whole: bool
    replays: int
    instance: str
    """Which instance it came from."""

    gave: bool
    """Whether that one handed it over itself, alive."""

    since: float = field(default_factory=time.monotonic)
    ending: Ending | None = None
    ended: float | None = None
    doubtful_until: float = 0.0
    """Until then it may still turn out that the instance which ended had taken it: its keeper then brings it."""

    @property
    def identity(self) -> int:
        """The same for every copy of this connection, in whatever process."""
        return os.fstat(self.sock.fileno()).st_ino

    def close(self) -> None:
        """Close it: the client sees the end."""
        self.sock.close()
        if self.memory is not None:
            os.close(self.memory)
            self.memory = None


@dataclass(slots=True)
class _Lingering:
    sock: socket.socket
    until: float


Take = Callable[[Held, float | None], bool]
"""Hand a connection to an instance (one that began after that moment, if one is given); say whether any took it."""


class Holding:
    """The connections that are held now."""

    def __init__(self) -> None:
        self.all: list[Held] = []
        self._passed: dict[tuple[str, str], Held] = {}
        self._lingering: list[_Lingering] = []

    def add(self, message: Exchange, fds: list[int], *, gave: bool, instance: str = "") -> None:
        """Hold a connection that came with a ``give``, ``take`` or ``orphan``."""
        if not fds:
            return
        body = message.body
        memory = fds[1] if len(fds) > 1 else None
        for more in fds[2:]:
            os.close(more)
        phase: Any = body.get("phase") or ("idle" if memory is None else "waiting")
        held = Held(
            sock=socket.socket(fileno=fds[0]),
            memory=memory,
            phase=phase if phase in {"idle", "waiting", "running", "answering"} else "answering",
            whole=bool(body.get("whole", True)),
            replays=int(body.get("replays") or 0),
            instance=str(body.get("instance") or instance),
            gave=gave,
        )
        held.sock.setblocking(False)
        self._drop_copies(held.identity)
        if len(self.all) >= MOST:
            held.close()
        else:
            self.all.append(held)

    def passed(self, held: Held, instance: str, key: str) -> None:
        """Keep a copy of a connection that was handed over, until the instance has answered the message ``key``."""
        self._passed[instance, key] = held

    def arrived(self, instance: str, key: str) -> None:
        """Note that an instance has what it was handed."""
        held = self._passed.pop((instance, key), None)
        if held is not None:
            held.close()

    def ended(self, instance: str) -> None:
        """Hold again what an instance that is gone was handed and did not answer for."""
        for where in [where for where in self._passed if where[0] == instance]:
            held = self._passed.pop(where)
            held.doubtful_until = time.monotonic() + DOUBT_S
            self.all.append(held)

    def _drop_copies(self, identity: int) -> None:
        """The keeper of an instance brought a connection: what is kept here of the same one is a copy."""
        for where, held in list(self._passed.items()):
            if held.identity == identity:
                self._passed.pop(where).close()
        for held in [held for held in self.all if held.identity == identity]:
            self.all.remove(held)
            held.close()

    def settle(
        self,
        *,
        limit_s: float,
        ready: bool,
        hope: bool,
        asleep: bool,
        fresh: Callable[[float], bool],
        take: Take,
    ) -> None:
        """Decide about each connection, and act.

        Args:
            limit_s: longest that one is held.
            ready: whether any instance, or the backup, could take one.
            hope: whether one will be ready soon.
            asleep: whether the service sleeps: idle connections then wait with it, for as long as they are quiet.
            fresh: whether an instance that began after that moment is ready.
            take: hands one over.
        """
        now = time.monotonic()
        kept: list[Held] = []
        for held in self.all:
            if (asleep and held.phase == "idle") or now < held.doubtful_until:
                kept.append(held)
                continue
            fate = decide(
                Orphan(
                    phase=held.phase,
                    ending="drained" if held.gave else held.ending,
                    whole=held.whole,
                    replays=held.replays,
                    held_s=now - held.since,
                ),
                limit_s=limit_s,
                ready=ready,
                fresh=held.ended is not None and fresh(held.ended),
                hope=hope,
            )

            if not self._act(held, fate, take):
                kept.append(held)
        self.all = kept
        self._linger(now)

    def _act(self, held: Held, fate: Fate, take: Take) -> bool:
        """Do it; say whether the connection is held no more."""
        match fate:
            case "wait":
                return False
            case "take":
                return take(held, None)
            case "take fresh":
                held.replays += 1
                done = take(held, held.ended)
                held.replays -= not done
                return done
            case "close":
                held.close()
            case "answer 502" | "answer 503":
                self._answer(held, int(fate[-3:]))
        return True

    def _answer(self, held: Held, status: int) -> None:
        """Answer in the instance's place, and end the connection so that the answer arrives."""
        try:
            held.sock.send(_problem(status))
            held.sock.shutdown(socket.SHUT_WR)
        except OSError:
            held.close()
            return
        if held.memory is not None:
            os.close(held.memory)
        self._lingering.append(_Lingering(held.sock, time.monotonic() + LINGER_S))

    def _linger(self, now: float) -> None:
        still: list[_Lingering] = []
        for one in self._lingering:
            if now < one.until and _drained(one.sock):
                still.append(one)
            else:
                one.sock.close()
        self._lingering = still

    def wakers(self) -> list[Held]:
        """Return idle connections on which a request has come; those whose client went away are closed."""
        if not self.all:
            return []
        poller = select.poll()
        by_fd = {held.sock.fileno(): held for held in self.all if held.phase == "idle"}
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        woken = []
        for fd, _ in poller.poll(0):
            held = by_fd[fd]
            if _has_ended(held.sock):
                held.close()
                self.all.remove(held)
            else:
                woken.append(held)
        return woken

    @property
    def busy(self) -> bool:
        """Whether anything here changes with time."""
        return bool(self._lingering) or any(held.phase != "idle" for held in self.all)

    def close(self) -> None:
        """Close all of them."""
        for held in (*self.all, *self._passed.values()):
            held.close()
        for one in self._lingering:
            one.sock.close()
        self.all, self._passed, self._lingering = [], {}, []


def _has_ended(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _drained(sock: socket.socket) -> bool:
    """Read what has come and throw it away; say whether the client may send more."""
    try:
        while sock.recv(65_536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _problem(status: int) -> bytes:
    title, detail = _PROBLEMS[status]
    body = f'{{"type":"about:blank","title":"{title}","status":{status},"detail":"{detail}"}}'.encode()
    head = [
        f"HTTP/1.1 {status} {title}",
        "Content-Type: application/problem+json",
        f"Content-Length: {len(body)}",
        *(["Retry-After: 1"] if status == 503 else []),
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
