"""The small process that keeps one service as it is wanted: ``python -m …services.supervisor FOLDER``.

One loop, no threads: it waits for sockets, pipes and the clock, looks at everything, asks
:func:`~scanflow.backends.local.services.reconcile.reconcile` what to do, and does it. Nothing it knows is lost with it:
what is wanted is in ``service.json``, what runs is in the shims' folders, and instances tell the rest when asked.
"""

from __future__ import annotations

import fcntl
import logging
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scanflow.backends.local import seqpacket
from scanflow.backends.local.locks import try_lock
from scanflow.backends.local.open_files import open_many
from scanflow.backends.local.services.channel import Channel
from scanflow.backends.local.services.grants import release
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.service import Service
from scanflow.backends.local.services.stored import read_stored
from scanflow.errors import ScanflowError
from scanflow.turns import take_short_turns

__all__ = ["Supervisor", "main"]

_log = logging.getLogger(__name__)

PATIENCE_S = 0.5
IDLE_S = 1.0
"""Longest that the loop sleeps."""


class Supervisor:
    """The loop around one :class:`Service`: who speaks to it, and when it looks again."""

    def __init__(self, folder: ServiceFolder) -> None:
        stored = read_stored(folder)
        assert stored is not None
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._front = seqpacket.listen(folder.socket)
        self._selector.register(self._front, selectors.EVENT_READ, self._accept)
        self._peers: list[Channel] = []
        self.service = Service(folder, stored, watch=self._watch, unwatch=self._unwatch)
        self._selector.register(self.service.shims, selectors.EVENT_READ, _nothing)
        self._stopping = False

    def run(self) -> None:
        """Watch the service until it is deleted, could not be deployed, or this process is asked to end."""
        self.service.adopt()
        while not self._stopping:
            if self.service.tick():
                return
            self._wait(self.service.pause_s())

    def stop(self) -> None:
        """End the loop; instances run on."""
        self._stopping = True

    def close(self) -> None:
        """Let go of everything."""
        for peer in self._peers:
            peer.close()
        self.service.close()
        self._front.close()
        self._selector.close()

    def _wait(self, pause_s: float) -> None:
        sleepers = self.service.sleepers()
        watched = []
        for one in sleepers:
            try:
                self._selector.register(one, selectors.EVENT_READ, self.service.wake)
                watched.append(one)
            except (ValueError, KeyError):
                continue
        for key, _ in self._selector.select(min(pause_s, IDLE_S)):
            key.data()
        for one in watched:
            self._selector.unregister(one)

    def _watch(self, channel: Channel, read: Callable[[], object]) -> None:
        self._selector.register(channel, selectors.EVENT_READ, read)

    def _unwatch(self, channel: Channel) -> None:
        try:
            self._selector.unregister(channel)
        except (KeyError, ValueError):
            pass

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._front.accept()
            except OSError:
                return
            peer = Channel(sock)
            self._peers.append(peer)
            self._watch(peer, partial(self._hear, peer))

    def _hear(self, peer: Channel) -> None:
        messages, there = peer.read()
        for message, fds in messages:
            self.service.told(peer, message, fds)
        if not there:
            self._unwatch(peer)
            peer.close()
            self._peers.remove(peer)


def _nothing() -> None:
    """Be woken: the loop looks at everything anyway."""


def main(arguments: list[str]) -> int:
    """Supervise the service of that folder, unless somebody does already."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    folder = ServiceFolder(Path(arguments[0]))
    try:
        # A bare descriptor, which only the end of the process closes: who sees the lock free knows that nobody is left.
        lock = os.open(folder.supervised, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        return 0  # deleted meanwhile
    if not _taken(lock) or read_stored(folder) is None:
        return 0
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    _limit_log(folder.log)
    open_many()  # for a moment it may have all of an instance's connections
    take_short_turns(inherited=False)  # callers of an instance that was killed wait for this process
    supervisor = Supervisor(folder)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        supervisor.run()
    except ScanflowError as error:
        _log.error("%s", error)
        return 1
    finally:
        supervisor.close()
    stored = read_stored(folder)
    if stored is None or stored.deleted or stored.hopeless:
        release(folder)
        folder.socket.unlink(missing_ok=True)
    return 0


def _taken(lock: int) -> bool:
    """Take the lock, unless another supervisor has it; somebody who only looks holds it for an instant."""
    give_up = time.monotonic() + PATIENCE_S
    while not try_lock(lock, fcntl.LOCK_EX):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


def _limit_log(path: Path, at_most: int = 1_000_000) -> None:
    """Begin the supervisor's own log anew where it has grown large."""
    try:
        if path.stat().st_size > at_most:
            os.truncate(path, 0)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
