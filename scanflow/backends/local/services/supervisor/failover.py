"""Decide whether a service or its backup serves requests. Pure.

Failover is immediate, since nobody else would respond; failing back waits for consecutive successful health checks, so
that a service that comes and goes does not take its callers along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Failover:
    """Who answers now, and how many looks in a row found the service healthy."""

    active: Literal["primary", "backup"] = "primary"
    healthy: int = 0


def look(before: Failover, *, ready: int, wanted: int, backup: bool, hand_back_after: int) -> Failover:
    """Return who answers after one more look at the service.

    Args:
        before: who answered until now.
        ready: instances that could answer.
        wanted: instances that there should be; with none the service sleeps, and its backup is not asked.
        backup: whether it has a backup that could answer.
        hand_back_after: consecutive successful health checks before the service answers itself again.
    """
    healthy = before.healthy + 1 if ready else 0
    if before.active == "primary":
        takes_over = backup and wanted > 0 and ready == 0
        return Failover("backup" if takes_over else "primary", 0 if takes_over else healthy)
    hands_back = healthy >= hand_back_after or not backup or wanted == 0
    return Failover("primary" if hands_back else "backup", healthy)
