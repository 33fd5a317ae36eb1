"""Starting a supervisor, under a shim that keeps it running, and having it look at what changed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.state.observed import is_supervised
from scanflow.errors import UnavailableError
from scanflow.private import private_folder
from scanflow.processes import restarter, seqpacket

_PATIENCE_S = 20.0
_AGAIN_S = 1.0
_POLL_S = 0.02


def start_supervisor(folder: ServiceFolder, *, inherit: Sequence[int] = ()) -> None:
    """Start a shim with a supervisor, which ends at once if there is one already.

    ``inherit``: open sockets that all processes of the service are to have, under these numbers.

    Raises:
        UnavailableError: no process can be started.
    """
    supervisor = [sys.executable, "-m", "scanflow.backends.local.services.supervisor", str(folder.path)]
    command = [sys.executable, "-IS", restarter.__file__, str(folder.shim), str(folder.log), *supervisor]
    try:
        private_folder(folder.path)
        subprocess.run(
            command,
            cwd="/",
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=inherit,
            umask=0o077,
            check=True,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"The supervisor of {folder.path.name!r} cannot be started: {error}.") from error


def ensure_supervisor(folder: ServiceFolder) -> bool:
    """Make sure that a supervisor watches a service; say whether none did.

    Raises:
        UnavailableError: no supervisor came to life; the message says where its log is.
    """
    if is_supervised(folder):
        return False
    give_up, again = time.monotonic() + _PATIENCE_S, 0.0
    while not poke(folder):
        now = time.monotonic()
        if now > give_up:
            raise UnavailableError(
                f"The supervisor of {folder.path.name!r} did not start within {_PATIENCE_S:.0f} s. See its log: "
                f"{str(folder.log)!r}"
            )
        if now >= again and not is_supervised(folder):  # an earlier shim may have been about to end
            start_supervisor(folder)
            again = now + _AGAIN_S
        time.sleep(_POLL_S)
    return True


def poke(folder: ServiceFolder) -> bool:
    """Have the supervisor look at once, and say whether there is one; otherwise it looks within a second."""
    try:
        seqpacket.connect(folder.socket).close()
    except OSError:
        return False
    return True
