"""Starting a supervisor that outlives whoever starts it."""

from __future__ import annotations

import sys
import time

from scanflow.backends.local.detached import start_detached
from scanflow.backends.local.locks import is_held
from scanflow.backends.local.services.channel import Channel
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.errors import UnavailableError

__all__ = ["ensure_supervisor", "poke", "start_supervisor"]

_PATIENCE_S = 20.0
_POLL_S = 0.02


def start_supervisor(folder: ServiceFolder) -> None:
    """Start a supervisor, which ends at once if there is one already."""
    command = [sys.executable, "-m", "scanflow.backends.local.services.supervisor", str(folder.path)]
    folder.path.mkdir(parents=True, exist_ok=True)
    start_detached(command, log=folder.log)


def ensure_supervisor(folder: ServiceFolder) -> bool:
    """Make sure that somebody watches a service; say whether nobody did.

    Raises:
        UnavailableError: no supervisor came to life; the message says where its log is.
    """
    if is_held(folder.supervised):
        return False
    start_supervisor(folder)
    give_up = time.monotonic() + _PATIENCE_S
    while (channel := Channel.to(folder.socket)) is None:
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"The supervisor of {folder.path.name!r} did not start within {_PATIENCE_S:.0f} s. See its log: "
                f"{str(folder.log)!r}"
            )
        time.sleep(_POLL_S)
    channel.close()
    return True


def poke(folder: ServiceFolder) -> None:
    """Have the supervisor look at once, if there is one; otherwise it looks within a second."""
    channel = Channel.to(folder.socket)
    if channel is not None:
        channel.tell("state")
        channel.close()
