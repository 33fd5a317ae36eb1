"""One message a packet between a service's supervisor and its instances: Unix sockets of the kind ``SOCK_SEQPACKET``.

A packet is a :class:`scanflow.wire.Exchange` in JSON, and open files travel with it. The kernel keeps packets whole and
in order and tells when the other side is gone, so that there is no framing and no handshake. Standard library only: an
instance imports this.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from scanflow.errors import InvalidError
from scanflow.wire import Exchange, decode, encode

__all__ = ["MAX_BYTES", "MAX_FILES", "connect", "listen", "receive", "send"]

MAX_BYTES = 160 * 1024
"""Largest packet. The kernel's default send buffer is about 208 KiB, and it counts its own overhead too."""

MAX_FILES = 16
"""Most open files in one packet."""

_LONGEST = 100
"""Bytes of a path that fit a Unix address everywhere (108 on Linux, 104 on macOS, the terminating zero included)."""


def listen(path: Path) -> socket.socket:
    """Return a listening socket at that path; what lay there before is replaced. It does not block.

    Raises:
        OSError: the folder is missing or may not be written.
    """
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _at(path, made.bind)
        made.listen(256)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def connect(path: Path) -> socket.socket:
    """Return a socket connected to who listens at that path. It blocks until told otherwise.

    Raises:
        OSError: nobody listens there.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _at(path, made.connect)
    except OSError:
        made.close()
        raise
    return made


def send(sock: socket.socket, message: Exchange, fds: Sequence[int] = ()) -> None:
    """Send one message and the open files, which stay open here too.

    Raises:
        InvalidError: the message is larger than a packet, or there are too many files.
        BlockingIOError: the socket does not block and the other side is behind; nothing was sent.
        OSError: the other side is gone.
    """
    packet = encode(message)
    if len(packet) > MAX_BYTES or len(fds) > MAX_FILES:
        raise InvalidError(
            f"A {message.kind!r} of {len(packet)} bytes and {len(fds)} files does not fit a packet: at most "
            f"{MAX_BYTES} bytes and {MAX_FILES} files. Larger contents travel as a file (memfd)."
        )
    socket.send_fds(sock, [packet], list(fds))


def receive(sock: socket.socket) -> tuple[Exchange, list[int]] | None:
    """Return the next message and its open files, which are the caller's to close; None: the other side is gone.

    Raises:
        BlockingIOError: the socket does not block and there is no message yet.
        InvalidError: what came is no message; its files are closed.
    """
    try:
        packet, fds, flags, _ = _receive(sock)
    except ConnectionResetError:
        # The other side ended with messages unread. Linux tells that once, and only then what it had sent:
        # the last of that may be connections it gave away.
        packet, fds, flags, _ = _receive(sock)
    except ConnectionError:
        return None
    if not packet:
        _close(fds)
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise InvalidError("A packet came cut short: it was larger than agreed, or this process may open no more.")
        return decode(Exchange, packet), list(fds)
    except InvalidError:
        _close(fds)
        raise


def _receive(sock: socket.socket) -> tuple[bytes, list[int], int, object]:
    return socket.recv_fds(sock, MAX_BYTES + 1, MAX_FILES, getattr(socket, "MSG_CMSG_CLOEXEC", 0))


def _at(path: Path, do: Callable[[str], None]) -> None:
    """Call ``bind`` or ``connect`` with an address for that path, however long it is."""
    if len(os.fsencode(path)) <= _LONGEST:
        do(str(path))
        return
    # A folder's descriptor names it in a few bytes: /proc/self/fd/9/control.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        do(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
