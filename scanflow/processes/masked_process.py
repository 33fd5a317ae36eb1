"""Runs a program with secrets: what it prints reaches its logs masked. Standard library and ``text`` only.

The program is a child of the process that masks, which reads its output from pipes; a thread of the program's own could
not: a library that prints while it holds the interpreter would wait for it forever. The child gets the secrets as
variables, or from an inherited pipe, never in its arguments, which every user of a machine can read.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from scanflow.text.masking import MaskedStream, Masker

SECRETS_FD = "SCANFLOW_SECRETS_FD"
"""The variable with the number of the pipe that secrets are read from, as JSON."""

_BLOCK = 65_536
_PIPE_BYTES = 1_048_576
"""The most that a pipe holds."""

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_masked(
    argv: Sequence[str],
    env: Mapping[str, str],
    secrets: Collection[str],
    *,
    sent: Any = None,
    outputs: tuple[int, int] = (1, 2),
) -> int:
    """Run a program to its end, and return its exit code; negative: the signal that ended it.

    Args:
        argv: The program and its arguments.
        env: All of its environment.
        secrets: What is masked in its standard output and error.
        sent: JSON that it reads by :func:`receive_secrets`. None: nothing.
        outputs: Where its standard output and error are written to.
    """
    # A handler, and not SIG_IGN, which the program would inherit: who stops a step signals its whole process group.
    for number in _FORWARDED:
        signal.signal(number, lambda *_: None)
    variables, ends = dict(env), None
    if sent is not None:
        ends = os.pipe()
        variables[SECRETS_FD] = str(ends[0])
    process = subprocess.Popen(
        argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=() if ends is None else ends[:1]
    )
    if ends is not None:
        os.close(ends[0])
        # A pipe holds less than a secret may have, and the program may end without reading it.
        threading.Thread(target=_send, args=(ends[1], json.dumps(sent).encode()), daemon=True).start()
    masker = Masker.from_values(secrets)
    assert process.stdout is not None
    assert process.stderr is not None
    streams = {
        process.stdout.fileno(): (MaskedStream(masker), outputs[0]),
        process.stderr.fileno(): (MaskedStream(masker), outputs[1]),
    }
    with process.stdout, process.stderr:
        _forward(process.pid, streams, wait=process.wait)
    return process.wait()


def mask_from_here(secrets: Collection[str], check: Callable[[], int]) -> None:
    """Mask what this process prints from now on: go on in a fork of it, and mask in the process that was there before.

    That one checks, and ends as the fork ended, or with what ``check`` returns if that was without a failure. To be
    called before there are threads. A fork takes milliseconds, where another interpreter takes a hundred.
    """
    masker, sources, targets = Masker.from_values(secrets), [os.pipe(), os.pipe()], (1, 2)
    pid = os.fork()
    if pid == 0:
        for (read, write), target in zip(sources, targets, strict=True):
            os.dup2(write, target)
            os.close(read)
            os.close(write)
        return
    for number in _FORWARDED:
        signal.signal(number, lambda *_: None)
    for _, write in sources:
        os.close(write)
    status = 0

    def wait() -> None:
        nonlocal status
        _, status = os.waitpid(pid, 0)

    streams = {read: (MaskedStream(masker), target) for (read, _), target in zip(sources, targets, strict=True)}
    _forward(pid, streams, wait=wait)
    refused = check()
    end_as(os.waitstatus_to_exitcode(status) or refused)


def end_as(code: int) -> None:
    """End this process as the program ended: with its exit code, or by its signal."""
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has written its own
    number = -code
    if number not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _send(write_end: int, content: bytes) -> None:
    try:
        with os.fdopen(write_end, "wb") as file:
            file.write(content)
    except BrokenPipeError:
        pass  # it has ended


def _forward(pid: int, streams: dict[int, tuple[MaskedStream, int]], *, wait: Callable[[], object]) -> None:
    """Forward what a process prints until it has ended, though another process may hold its streams open."""
    ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    with selectors.DefaultSelector() as selector:
        for source in streams:
            selector.register(source, selectors.EVENT_READ)
        if ended is not None:
            selector.register(ended, selectors.EVENT_READ)
        is_running = True
        while is_running and len(selector.get_map()) > (ended is not None):
            for key, _ in selector.select():
                if key.fd == ended:
                    is_running = False
                elif not _copy(key.fd, *streams[key.fd]):
                    selector.unregister(key.fd)
    wait()
    for source, (stream, target) in streams.items():
        os.set_blocking(source, False)
        for _ in range(_PIPE_BYTES // _BLOCK):
            if not _copy(source, stream, target):
                break
        write_all(target, stream.feed(b"", last=True))
    if ended is not None:
        os.close(ended)


def _copy(source: int, stream: MaskedStream, target: int) -> bool:
    """Copy what is there by now; return whether there may be more."""
    try:
        block = os.read(source, _BLOCK)
    except BlockingIOError:
        return False
    write_all(target, stream.feed(block))
    return bool(block)


def write_all(target: int, content: bytes) -> None:
    """Write to a file descriptor, as often as it takes."""
    while content:
        content = content[os.write(target, content) :]
