"""Masks secrets in this process's own standard output and error, by a process beside it.

For long-running programs of ours, which learn of secrets while they run. A thread could not do it: a library that
prints while it holds the interpreter would wait for it forever. Standard library and ``text`` only.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterable

from scanflow.processes.masked_process import write_all
from scanflow.text.masking import MaskedStream, Masker

_BLOCK = 65_536


class OutputMask:
    """What this process prints, with the secrets masked that it has been told of; it starts with the first one."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._control: int | None = None
        self.masker = Masker()

    def add(self, secrets: Iterable[str]) -> None:
        """Mask these too, in all that is printed from now on."""
        new = set(secrets) - self._secrets
        if not new:
            return
        self._secrets |= new
        self.masker = Masker.from_values(self._secrets)
        if self._control is None:
            self._control = _start()
        write_all(self._control, f"{json.dumps(sorted(new))}\n".encode())


def _start() -> int:
    """Start the process that masks, have it get what this one prints, and return the pipe that tells it of secrets."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    sources = [os.pipe() for _ in range(3)]
    ends = [read for read, _ in sources]
    # In a session of its own, as what it was given must reach the log also where this process is killed with its group.
    subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, *map(str, ends)],
        stdin=subprocess.DEVNULL,
        pass_fds=ends,
        start_new_session=True,
    )
    for read in ends:
        os.close(read)
    (_, out), (_, err), (_, control) = sources
    for source, target in ((out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    return control


def main(out: int, err: int, control: int) -> None:
    """Copy ``out`` and ``err`` to this process's own output, until no process has them open any more."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    secrets: list[str] = []
    rest = b""
    streams = {out: (MaskedStream(Masker()), 1), err: (MaskedStream(Masker()), 2)}
    with selectors.DefaultSelector() as selector:
        for source in (out, err, control):
            selector.register(source, selectors.EVENT_READ)
        while any(source in selector.get_map() for source in streams):
            ready = {key.fd for key, _ in selector.select()}
            if control in ready:  # first: the secrets of what was printed after them
                block = os.read(control, _BLOCK)
                if not block:
                    selector.unregister(control)
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    secrets += json.loads(line)
                if lines:
                    masker = Masker.from_values(secrets)
                    for stream, _ in streams.values():
                        stream.set_masker(masker)
                continue
            for source in ready:
                stream, target = streams[source]
                block = os.read(source, _BLOCK)
                write_all(target, stream.feed(block, last=not block))
                if not block:
                    selector.unregister(source)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
