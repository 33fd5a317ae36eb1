"""The failover of a service to its backup, and back. Pure; used by supervisors and controllers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Failover:
    """Which service answers now, and the number of successful health checks in a row."""

    active: Literal["primary", "backup"] = "primary"
    healthy: int = 0


def update_failover(previous: Failover, *, ready: int, wanted: int, backup: bool, hand_back_after: int) -> Failover:
    """Return the failover state after one more health check. Pure.

    Failover is immediate; failing back waits for ``hand_back_after`` successful checks in a row, so that callers do not
    follow a service that flaps. ``backup``: whether there is one that can answer. With no instances ``wanted`` the
    service is scaled to zero, and its backup is not used.
    """
    healthy = previous.healthy + 1 if ready else 0
    if previous.active == "primary":
        takes_over = backup and wanted > 0 and ready == 0
        return Failover("backup" if takes_over else "primary", 0 if takes_over else healthy)
    hands_back = healthy >= hand_back_after or not backup or wanted == 0
    return Failover("primary" if hands_back else "backup", healthy)
