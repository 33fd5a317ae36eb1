"""Which instance accepts on which of a service's listening sockets. Pure.

The kernel spreads new connections evenly over all sockets that listen on the port. A service therefore has a fixed
number of them, more than instances, and deals them out: so the load is even for any number of instances, and a socket,
whose queue may hold connections, need never be closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["LISTENERS", "deal", "how_many"]

LISTENERS = 12
"""Divisible by 1, 2, 3, 4, 6 and 12."""


def how_many(instances: int) -> int:
    """Return how many listening sockets a service of so many instances should have."""
    return max(LISTENERS, instances)


def deal(keys: Sequence[str], holders: Mapping[str, str], ready: Sequence[str]) -> dict[str, str]:
    """Return, for each socket, the instance that should accept on it; nothing where none is ready.

    Each gets as many as the others, or one more, and keeps those it has as far as that allows.
    """
    if not ready:
        return {}
    base, extra = divmod(len(keys), len(ready))
    held = {name: [key for key in keys if holders.get(key) == name] for name in ready}
    # Who holds most gets the larger shares, so that as few as possible move.
    ranked = sorted(ready, key=lambda name: (-len(held[name]), ready.index(name)))
    share = {name: base + (place < extra) for place, name in enumerate(ranked)}
    dealt = {key: name for name in ready for key in held[name][: share[name]]}
    loose = [key for key in keys if key not in dealt]
    for name in ready:
        missing = share[name] - min(len(held[name]), share[name])
        dealt |= dict.fromkeys(loose[:missing], name)
        loose = loose[missing:]
    return dealt
