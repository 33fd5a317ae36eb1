"""The programs of the container experiments (Wang et al.): one that moves data between sockets with several threads, as
their agent SOS does, and one that needs its memory, as Kaldi does.

Usage: ``transfer.py move MEBIBYTES`` or ``transfer.py recognize MEBIBYTES``.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import threading

CHUNK = 1 << 20
STREAMS = 4


def move(mebibytes: int) -> None:
    """Send and receive data over four local connections, and check each."""
    data = bytes(CHUNK)

    def send(end: socket.socket) -> None:
        for _ in range(mebibytes // STREAMS):
            end.sendall(data)
        end.shutdown(socket.SHUT_WR)

    def receive(end: socket.socket) -> None:
        digest = hashlib.sha256()
        while part := end.recv(CHUNK):
            digest.update(part)

    threads, ends = [], []
    for _ in range(STREAMS):
        near, far = socket.socketpair()
        ends += [near, far]
        threads += [threading.Thread(target=send, args=[near]), threading.Thread(target=receive, args=[far])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for end in ends:
        end.close()


def recognize(mebibytes: int) -> None:
    """Fill memory, as a model does, and read it repeatedly."""
    model = bytearray(mebibytes << 20)
    for place in range(0, len(model), 4096):
        model[place] = place & 255
    for _ in range(3):
        hashlib.sha256(model).digest()


if __name__ == "__main__":
    {"move": move, "recognize": recognize}[sys.argv[1]](int(sys.argv[2]))
