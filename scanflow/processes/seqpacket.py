"""Control messages over ``SOCK_SEQPACKET`` Unix sockets: one message a packet, with open files attached.

The kernel keeps packets whole and in order and reports when the peer is gone, so there is no framing and no
handshake. A message larger than a packet travels in a memfd. Both ends check that the peer is the same user.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from scanflow.errors import InvalidError
from scanflow.instance_messages import ControlMessage, decode, encode
from scanflow.processes.unix_address import open_unix_address

MAX_FILES = 16
"""Maximum number of open files in one message."""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_PACKET_BYTES = 64 * 1024
_IN_MEMFD = b"@"  # no JSON begins so


def listen(path: Path) -> socket.socket:
    """Return a non-blocking listening socket at the path, of mode 0600; an existing file is replaced.

    Raises:
        OSError: the folder is missing or may not be written.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with open_unix_address(path) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.listen(256)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket) -> socket.socket | None:
    """Accept the next connection, non-blocking; None: there is none, or it is another user's.

    Raises:
        OSError: this process may open no more files.
    """
    try:
        peer, _ = listener.accept()
    except (BlockingIOError, InterruptedError, ConnectionAbortedError):
        return None
    if not _is_same_user(peer):
        peer.close()
        return None
    peer.setblocking(False)
    return peer


def connect(path: Path) -> socket.socket:
    """Return a blocking socket connected to the listener at the path.

    Raises:
        OSError: nothing listens there, or another user's process does.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with open_unix_address(path) as address:
            peer.connect(address)
        if not _is_same_user(peer):
            raise PermissionError(f"{path} belongs to another user's process.")
    except OSError:
        peer.close()
        raise
    return peer


def send(sock: socket.socket, message: ControlMessage, fds: Sequence[int] = ()) -> None:
    """Send one message with open files, which stay open here too.

    Raises:
        InvalidError: there are too many files, or the message is too large.
        BlockingIOError: the socket is non-blocking and the peer is behind; nothing was sent.
        OSError: the peer is gone.
    """
    packet = encode(message)
    if len(fds) > MAX_FILES or len(packet) > MAX_MESSAGE_BYTES:
        raise InvalidError(f"A {message.kind!r} of {len(packet)} bytes and {len(fds)} files is too large.")
    if len(packet) <= _PACKET_BYTES:
        socket.send_fds(sock, [packet], list(fds))
        return
    memory = os.memfd_create("scanflow-message")
    with os.fdopen(memory, "wb") as file:
        file.write(packet)
        file.flush()
        socket.send_fds(sock, [_IN_MEMFD], [memory, *fds])


def receive(sock: socket.socket) -> tuple[ControlMessage, list[int]] | None:
    """Receive the next message and its open files, which the caller closes; None: the peer is gone.

    Raises:
        BlockingIOError: the socket is non-blocking and there is no message yet.
        InvalidError: what came is no message; its files are closed.
    """
    try:
        packet, fds, flags, _ = _receive(sock)
    except ConnectionResetError:  # it left messages unread, which Linux reports once, before what it had sent
        packet, fds, flags, _ = _receive(sock)
    except ConnectionError:
        return None
    if not packet:
        close_all(fds)
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise InvalidError("A message arrived truncated: it is too large, or this process cannot open more files.")
        if packet == _IN_MEMFD and fds:
            memory = fds.pop(0)
            try:
                packet = os.pread(memory, min(os.fstat(memory).st_size, MAX_MESSAGE_BYTES), 0)
            finally:
                os.close(memory)
        return decode(ControlMessage, packet), list(fds)
    except InvalidError:
        close_all(fds)
        raise


def _receive(sock: socket.socket) -> tuple[bytes, list[int], int, object]:
    return socket.recv_fds(sock, _PACKET_BYTES + 1, MAX_FILES + 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0))


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _is_same_user(sock: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):  # pragma: no cover - not on Linux
        return True
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.geteuid())
