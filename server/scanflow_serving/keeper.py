"""What outlives an instance: a child that shares its open files, and gives its connections away when it is gone.

Made by ``clone(CLONE_FILES)``: unlike a fork it has no copies of the files but the very same table, so that a
connection accepted later is open in both. Killing the instance, however that is done, then closes nothing. The child
waits for that moment and does nothing else; in particular it opens and closes next to nothing before, since each
descriptor it touched would be the instance's too.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final

from scanflow.backends.local import seqpacket
from scanflow.turns import take_short_turns
from scanflow.wire import Exchange
from scanflow_serving.slots import ANSWERING, IDLE, RUNNING, WAITING, Found, Table, cookie_of

__all__ = ["give_away", "start"]

PATIENCE_S: Final = 10.0
"""How long a supervisor that is being replaced itself is waited for."""

_PAUSE_S: Final = 0.05
_SEND_S: Final = 5.0
_CLONE_FILES: Final = 0x400
_PR_SET_NAME: Final = 15
_CLONE: Final = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
_FRESH: Final = -1
_WORDS: Final = {IDLE: "idle", WAITING: "waiting", RUNNING: "running", ANSWERING: "answering"}


def start(table: Table, *, supervisor: str, instance: str) -> int | None:
    """Make the keeper of this process and return its id; None where the system has no such thing.

    Called before there is a second thread, which a copy of a process would not have.
    """
    number = _CLONE.get(platform.machine())
    if sys.platform != "linux" or number is None or not hasattr(os, "pidfd_open"):
        return None
    gc.collect()
    gc.freeze()  # a collection in the child would copy the pages that both share
    parent = os.getpid()
    watched = os.pidfd_open(parent)
    # PyDLL, unlike CDLL, keeps the interpreter's lock meanwhile, and the same calls surround a fork in Python itself.
    python, library = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    sys.stdout.flush()
    sys.stderr.flush()
    python.PyOS_BeforeFork()
    # No signal at its end: it is nobody's business, and a component that waits for any child of its own finds none.
    pid = library.syscall(number, _CLONE_FILES, 0, 0, 0, 0)
    if pid:
        code = ctypes.get_errno()
        python.PyOS_AfterFork_Parent()
        if pid < 0:
            os.close(watched)
            raise OSError(code, f"No keeper could be made: {os.strerror(code)}")
        return int(pid)
    try:
        python.PyOS_AfterFork_Child()
        library.prctl(_PR_SET_NAME, b"scanflow-keeper", 0, 0, 0)
        _keep(table, watched, supervisor, instance)
    except BaseException as error:  # noqa: BLE001 - this copy of the program must never return into the program
        os.write(2, f"The keeper of {instance} failed: {type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def _keep(table: Table, watched: int, supervisor: str, instance: str) -> None:
    os.setsid()  # the instance's group is ended with it
    take_short_turns(inherited=False)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    give_away(table, supervisor=Path(supervisor), instance=instance)


def give_away(table: Table, *, supervisor: Path, instance: str, patience_s: float = PATIENCE_S) -> int:
    """Give every connection in the table to the supervisor, and return how many were given.

    Those that nobody takes are closed with this process: their callers see that at once, rather than wait.
    """
    files = table.files()
    files += [(_FRESH, fd, cookie) for fd, cookie in _not_noted(table, {cookie for _, _, cookie in files})]
    if not files:
        return 0
    channel = _reach(supervisor, time.monotonic() + patience_s)
    if channel is None:
        return 0
    given = 0
    with channel:
        channel.settimeout(_SEND_S)
        for index, fd, cookie in files:
            given += _give(channel, table, index, fd, cookie, instance)
    return given


def _give(channel: socket.socket, table: Table, index: int, fd: int, cookie: int, instance: str) -> bool:
    try:
        # A copy, so that closing it here takes nothing from whoever else counts on the number.
        with socket.socket(fileno=os.dup(fd)) as sock:
            if cookie_of(sock) != cookie:
                return False
            found = Found(IDLE, 0, b"") if index == _FRESH else table.found(index, sock)
            if found is not None:
                _send(channel, sock, found, instance)
            return found is not None
    except OSError:  # the caller is gone, or it was no connection any more
        return False


def _not_noted(table: Table, noted: set[int]) -> list[tuple[int, int]]:
    """Return the connections that were accepted a moment before the end: open file and cookie. Nothing was read yet."""
    found: dict[int, int] = {}
    ports = set(table.ports())
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - only the names are of use
        try:
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.family not in {socket.AF_INET, socket.AF_INET6} or sock.type != socket.SOCK_STREAM:
                    continue
                if sock.getsockname()[1] in ports and sock.getpeername() and cookie_of(sock) not in noted:
                    found[cookie_of(sock)] = int(name)
        except OSError:  # no socket, or not connected
            continue
    return [(fd, cookie) for cookie, fd in found.items()]


def _send(channel: socket.socket, sock: socket.socket, found: Found, instance: str) -> None:
    whole = found.unanswered is not None
    body: dict[str, Any] = {
        "instance": instance,
        "phase": _WORDS[found.phase],
        "replays": found.replays,
        "whole": whole,
    }
    fds = [sock.fileno()]
    if found.unanswered:
        fds.append(memory_of(found.unanswered))
    try:
        seqpacket.send(channel, Exchange(kind="orphan", body=body), fds)
    finally:
        for fd in fds[1:]:
            os.close(fd)


def memory_of(content: bytes) -> int:
    """Return an open file, of no folder, that holds these bytes."""
    fd = os.memfd_create("scanflow-request")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    return fd


def _reach(supervisor: Path, give_up: float) -> socket.socket | None:
    while True:
        try:
            return seqpacket.connect(supervisor)
        except OSError:
            if time.monotonic() > give_up:
                return None
            select.select((), (), (), _PAUSE_S)
