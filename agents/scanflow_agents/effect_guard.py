"""Refuse what code would do to the world outside its process, for the rest of the process: for replays."""

from __future__ import annotations

import os
import sys
from typing import Any

from scanflow.errors import ForbiddenError

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = (
    *("os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link", "os.mkdir"),
    *("os.posix_spawn", "os.putenv", "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.symlink", "os.system"),
    *("os.truncate", "os.unsetenv", "os.utime", "pty.spawn", "shutil.", "smtplib.", "socket.bind", "socket.connect"),
    *("socket.sendmsg", "socket.sendto", "sqlite3.connect", "subprocess.Popen", "urllib.Request", "webbrowser.open"),
)
"""Audit events of effects, as their beginnings."""


def refuse_effects() -> None:
    """Have each attempt to write a file, reach the network or start a process raise ``ForbiddenError``, from now on."""
    sys.dont_write_bytecode = True  # a module that is imported late would be written
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        if not isinstance(flags, int) or not flags & _WRITES or path in {os.devnull, 1, 2}:
            return
        what = f"writes {path!r:.200}"
    elif event.startswith(_EVENTS):
        what = f"calls {event}({', '.join(f'{argument!r:.80}' for argument in arguments[:2])})"
    else:
        return
    raise ForbiddenError(f"A replay does nothing, and this code {what}. Do that in a sensor, or in 'then'.")
