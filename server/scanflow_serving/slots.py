"""Where an instance notes how far each of its connections has come, so that its keeper can tell when it is gone.

A *slot* is a small header and the area into which the kernel writes what a connection sends. All slots lie in memory
that the instance shares with its keeper. Nothing is copied for the keeper's sake, and little is noted: how much was
read and written the kernel itself counts for every connection, so that a process that is killed between two
instructions has still left an exact account.

Positions are counted in bytes since the connection was opened, as :func:`counters` reads them back.
"""

from __future__ import annotations

import fcntl
import mmap
import socket
import struct
import sys
from typing import Final, NamedTuple

__all__ = ["ANSWERING", "IDLE", "LEAVING", "REGION_BYTES", "RUNNING", "WAITING", "Found", "Slot", "Table", "counters"]

IDLE: Final = 0
WAITING: Final = 1
RUNNING: Final = 2
ANSWERING: Final = 3
LEAVING: Final = 4
"""It is given to another process just now, or about to be closed: nobody is to take it."""

REGION_BYTES: Final = 256 * 1024
"""Most that is kept of what was read and not yet answered."""

SLOTS: Final = 1024
NOWHERE: Final = 1 << 63
"""The position of an area that holds nothing of use."""

_HEADER = struct.Struct("<iBBxxQQQQQQ")  # fd + 1, phase, replays, start, origin, next, before, target, cookie
_HEADER_BYTES = 64
_PHASE_AT = 4
_REPLAYS_AT = 5
_START_AT = 8
_NEXT_AT = 24
_TWO = struct.Struct("<QQ")
_THREE = struct.Struct("<QQQ")
_FD = struct.Struct("<i")
_PORT = struct.Struct("<H")
_PORTS: Final = 64

_SIOCINQ, _SIOCOUTQ, _SO_COOKIE = 0x541B, 0x5411, 57
_INFO_BYTES, _ACKED_AT = 256, 120  # struct tcp_info: tcpi_bytes_acked and tcpi_bytes_received, since Linux 4.1
_PEER_CLOSED = frozenset({7, 8, 9, 11})  # TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING: its FIN counts as one byte received


def counters(sock: socket.socket) -> tuple[int, int]:
    """Return how many bytes were read from a TCP connection and how many were written to it, by whomever, until now.

    Raises:
        OSError: it is no TCP connection, or the kernel does not count.
    """
    before = _info(sock)
    while True:
        unread, unsent = _queued(sock, _SIOCINQ), _queued(sock, _SIOCOUTQ)
        after = _info(sock)
        if after == before:  # nothing came or was acknowledged in between
            state, acked, received = after
            return received - (state in _PEER_CLOSED) - unread, acked + unsent
        before = after


def _info(sock: socket.socket) -> tuple[int, int, int]:
    if sys.platform != "linux":
        raise OSError("Only Linux counts the bytes of a connection.")
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _ACKED_AT + _TWO.size:
        raise OSError("This kernel does not count the bytes of a connection.")
    acked, received = _TWO.unpack_from(info, _ACKED_AT)
    return info[0], acked, received


def _queued(sock: socket.socket, which: int) -> int:
    return int.from_bytes(fcntl.ioctl(sock.fileno(), which, b"\0\0\0\0"), sys.byteorder)


def cookie_of(sock: socket.socket) -> int:
    """Return the number by which the kernel tells this connection from every other."""
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8), sys.byteorder)


class Found(NamedTuple):
    """What a slot says of a connection whose process is gone."""

    phase: int
    replays: int
    unanswered: bytes | None
    """What was read and not answered; None: not all of it was kept."""


class Slot:
    """One connection's place. Numbers are written; nothing here is read back by the instance itself."""

    __slots__ = ("_header", "_index", "_memory", "_table", "area", "area_at", "high")

    def __init__(self, memory: mmap.mmap, header: int, area_at: int, table: Table | None, index: int) -> None:
        self._memory = memory
        self._header = header
        self._table = table
        self._index = index
        self.area_at = area_at
        """Where the area begins in :attr:`memory`."""
        self.area = memoryview(memory)[area_at : area_at + REGION_BYTES]
        self.high = 0
        """How much of the area was ever written since :meth:`trim`."""

    @property
    def memory(self) -> mmap.mmap:
        """What holds the area: it can be searched, as a view of it cannot."""
        return self._memory

    @property
    def phase(self) -> int:
        """How far the connection's request has come."""
        return self._memory[self._header + _PHASE_AT]

    @phase.setter
    def phase(self, value: int) -> None:
        self._memory[self._header + _PHASE_AT] = value

    @property
    def replays(self) -> int:
        """How often the request at hand was tried by instances that are no more."""
        return self._memory[self._header + _REPLAYS_AT]

    @replays.setter
    def replays(self, value: int) -> None:
        self._memory[self._header + _REPLAYS_AT] = min(value, 255)

    def open(self, sock: socket.socket, position: int, replays: int = 0) -> None:
        """Note a connection of which ``position`` bytes were answered. From here on it outlives the process."""
        _HEADER.pack_into(
            self._memory, self._header, 0, IDLE, min(replays, 255), position, position, 0, 0, 0, cookie_of(sock)
        )
        self.moved(sock.fileno())

    def moved(self, fd: int) -> None:
        """Note that the connection is that open file now."""
        _FD.pack_into(self._memory, self._header, fd + 1)

    def begins(self, start: int, origin: int) -> None:
        """Note where the first request without an answer begins, and which position the area's first byte has.

        An area that begins behind the request does not hold all of it.
        """
        _TWO.pack_into(self._memory, self._header + _START_AT, start, origin)

    def answering(self, next_at: int, before: int, target: int) -> None:
        """Note that an answer is written, from position ``before`` to ``target``, and where the next request is."""
        _THREE.pack_into(self._memory, self._header + _NEXT_AT, next_at, before, target)
        self._memory[self._header + _PHASE_AT] = ANSWERING

    def release(self) -> None:
        """Forget the connection. This comes before its file is closed, since the number will be another file's."""
        _FD.pack_into(self._memory, self._header, 0)
        self.trim()
        if self._table is not None:
            self._table.put_back(self._index)

    def trim(self) -> None:
        """Give memory back to the system that only a large request needed; the area must hold nothing of use."""
        if self.high > _KEPT_BYTES and self._table is not None and sys.platform == "linux":
            self._memory.madvise(mmap.MADV_REMOVE, self.area_at + _KEPT_BYTES, REGION_BYTES - _KEPT_BYTES)
        self.high = 0


class Table:
    """All slots of an instance. Made before the keeper, which shares it; of no use after a plain ``fork``."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._ports_at = slots * _HEADER_BYTES
        self._headers = -(-(self._ports_at + _PORTS * _PORT.size) // mmap.PAGESIZE) * mmap.PAGESIZE
        # Pages that were never touched are not there: this reserves addresses, not memory.
        size = self._headers + slots * REGION_BYTES
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        self._slots = slots
        self._free = list(range(slots - 1, -1, -1))  # the last one put back is taken first: its pages are warm

    def serves(self, port: int) -> None:
        """Note a port whose connections are ours."""
        known = self.ports()
        if port not in known and len(known) < _PORTS:
            _PORT.pack_into(self._memory, self._ports_at + len(known) * _PORT.size, port)

    def ports(self) -> list[int]:
        """Return the ports whose connections are ours."""
        noted = (_PORT.unpack_from(self._memory, self._ports_at + place * _PORT.size)[0] for place in range(_PORTS))
        return [port for port in noted if port]

    def take(self) -> Slot:
        """Return a free slot; when there is none, one of its own, which no keeper knows."""
        if not self._free:
            alone = mmap.mmap(-1, _HEADER_BYTES + REGION_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return Slot(alone, 0, _HEADER_BYTES, None, 0)
        index = self._free.pop()
        return Slot(self._memory, index * _HEADER_BYTES, self._area(index), self, index)

    def put_back(self, index: int) -> None:
        """Take a slot back."""
        self._free.append(index)

    def files(self) -> list[tuple[int, int, int]]:
        """Return what is open: the slot, the file's number, and the connection's cookie."""
        found = []
        for index in range(self._slots):
            number, *_, cookie = self._header(index)
            if number > 0:
                found.append((index, number - 1, cookie))
        return found

    def found(self, index: int, sock: socket.socket) -> Found | None:
        """Return how the connection of a slot was left; None: nobody is to take it.

        Raises:
            OSError: it is no TCP connection any more.
        """
        _, phase, replays, start, origin, next_at, before, target, _ = self._header(index)
        read, written = counters(sock)
        if phase == LEAVING:
            return None
        if phase == ANSWERING:
            if written >= target:  # the whole answer is on its way: the connection is as good as idle
                start, phase, replays = next_at, IDLE, 0
            elif written <= before:  # none of it is
                phase = RUNNING
        if read <= start:
            return Found(phase if phase == ANSWERING else IDLE, 0, b"")
        kept = origin <= start and read - origin <= REGION_BYTES
        at = self._area(index) - origin
        unanswered = self._memory[at + start : at + read] if kept else None
        return Found(phase or WAITING, replays, unanswered)

    def _header(self, index: int) -> tuple[int, int, int, int, int, int, int, int, int]:
        return _HEADER.unpack_from(self._memory, index * _HEADER_BYTES)

    def _area(self, index: int) -> int:
        return self._headers + index * REGION_BYTES


_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE: Python names it from 3.13 on
_KEPT_BYTES = 16 * 1024
