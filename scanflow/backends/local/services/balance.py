"""Which instance has too many connections. Pure.

The kernel deals connections out by a hash of their addresses: of two callers, each with one connection, both sit on the
same of two instances half of the time. Connections are moved between two requests, which their callers do not notice.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["surplus"]

_TOLERATED = 0.1
"""How much more than its share an instance may have, where there are many."""


def surplus(connections: Mapping[str, int]) -> dict[str, int]:
    """Return how many connections each instance should give away, so that none has two more than another.

    Where there are many, a tenth more than the share is left alone: the hash is even enough then.
    """
    if len(connections) < 2:
        return {}
    total, count = sum(connections.values()), len(connections)
    least, rest = divmod(total, count)
    slack = int(least * _TOLERATED)
    if max(connections.values()) - min(connections.values()) < 2 + slack:
        return {}
    # Who has most keeps one of the rest, so that as few as possible move.
    ranked = sorted(connections, key=lambda name: (-connections[name], name))
    shares = {name: least + (place < rest) for place, name in enumerate(ranked)}
    return {name: own - shares[name] for name, own in connections.items() if own > shares[name]}
