"""The listening sockets of a service: made once, dealt out to instances, got back from them, never closed meanwhile."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence

from scanflow.backends.local.services.deal import deal, how_many
from scanflow.backends.local.services.instance import Instance
from scanflow.errors import UnavailableError

__all__ = ["Doors", "listening_socket"]

_BACKLOG = 4096


def listening_socket(host: str, port: int, *, first: bool = False) -> socket.socket:
    """Return a socket that listens there, beside others of this service; the ``first`` makes sure that all are ours.

    Raises:
        UnavailableError: the port is somebody else's, or the address is not this machine's.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # With SO_REUSEPORT from the start it would join whatever else this user runs on the port, unnoticed.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0 if first else 1)
        made.bind((host, port))
        made.listen(_BACKLOG)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise UnavailableError(
            f"The port {port} of {host} cannot be listened on: {error.strerror}. Who has it: ss -ltnp 'sport = {port}'"
        ) from error
    return made


class Doors:
    """The sockets of one service, by key, and those of services whose backup it is (*guests*, ``<service>/<key>``)."""

    def __init__(self) -> None:
        self.own: dict[str, socket.socket] = {}
        self.guests: dict[str, socket.socket] = {}
        self.holders: dict[str, str] = {}
        """Which instance accepts on each."""

    def open(self, host: str, port: int, instances: int, *, alone: bool) -> None:
        """Make the sockets that are missing for so many instances; ``alone``: none can be in anybody's hands yet.

        Raises:
            UnavailableError: the port cannot be listened on.
        """
        number = max((int(key) for key in self.own), default=-1) + 1
        while len(self.own) < how_many(instances):
            self.own[str(number)] = listening_socket(host, port, first=alone and not self.own)
            number += 1

    def recover(self, key: str, fd: int, holder: str | None) -> None:
        """Take a socket that an instance, or the backup's supervisor, handed back."""
        whose = self.guests if "/" in key else self.own
        if key in whose:
            os.close(fd)
            return
        whose[key] = socket.socket(fileno=fd)
        whose[key].setblocking(False)
        if holder is not None:
            self.holders[key] = holder

    def welcome(self, key: str, fd: int) -> None:
        """Take the socket of a service whose backup this is."""
        self.recover(key, fd, None)

    def send_away(self, prefix: str, instances: dict[str, Instance]) -> None:
        """Give up the sockets of a service that answers itself again."""
        for key in [key for key in self.guests if key.startswith(prefix)]:
            holder = instances.get(self.holders.pop(key, ""))
            if holder is not None and holder.channel is not None:
                holder.channel.ask("ignore", {}, key=key)
            self.guests.pop(key).close()

    def forget(self, name: str) -> None:
        """Note that an instance accepts no more."""
        self.holders = {key: holder for key, holder in self.holders.items() if holder != name}

    def hand_out(self, ready: Sequence[Instance], others: dict[str, Instance], *, own: bool) -> bool:
        """Deal the sockets out to who is ready; say whether anything changed.

        The new one accepts before the old one stops: in between, both do. Without ``own``, only those of services
        whose backup this is are dealt out.
        """
        everyone = {one.name: one for one in ready}
        changed = False
        for sockets in (self.own, self.guests) if own else (self.guests,):
            dealt = deal(list(sockets), self.holders, list(everyone))
            for key, name in dealt.items():
                before = self.holders.get(key)
                if before == name:
                    continue
                channel = everyone[name].channel
                assert channel is not None
                channel.ask("listen", {}, key=key, fds=[sockets[key].fileno()])
                self.holders[key] = name
                changed = True
                old = others.get(before or "")
                if old is not None and old.channel is not None:
                    old.channel.ask("ignore", {}, key=key)
        return changed

    def take_back(self, keys: Iterable[str], instances: dict[str, Instance]) -> None:
        """Have nobody here accept on these, since somebody else does."""
        for key in keys:
            holder = instances.get(self.holders.pop(key, ""))
            if holder is not None and holder.channel is not None:
                holder.channel.ask("ignore", {}, key=key)

    def close(self) -> None:
        """Close all of them: who calls is refused from now on."""
        for one in (*self.own.values(), *self.guests.values()):
            one.close()
        self.own, self.guests, self.holders = {}, {}, {}
