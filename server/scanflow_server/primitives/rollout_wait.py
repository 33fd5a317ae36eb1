"""Waiting for a change of a service that was asked for already: by a try that was cut off, or by somebody else."""

from __future__ import annotations

import time
from collections.abc import Callable

from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import Deployer
from scanflow.errors import UnavailableError, UsageError

PATIENCE_S = 120.0
"""Longest that a change is waited for; it goes on after that, and is waited for again."""

_POLL_S = 0.05


def in_effect(
    deployer: Deployer, asked: ServiceRecord, still: Callable[[ServiceRecord], bool], *, patience_s: float = PATIENCE_S
) -> ServiceRecord:
    """Return the service once what was wanted of it is wholly in effect.

    Args:
        deployer: Who serves.
        asked: The service as it was found, with the change asked for.
        still: Whether the change is still wanted of the service: one that cannot be is undone.
        patience_s: Longest that it is waited for, in seconds.

    Raises:
        UsageError: it could not be, or was changed back; what served before serves on.
        UnavailableError: it takes too long.
    """
    give_up, record = time.monotonic() + patience_s, asked
    # A service of which nothing was in effect yet is being deployed; whoever does that waits for it.
    while asked.settled and record.settled < asked.generation and still(record):
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"The change of {asked.name!r} is not in effect after {patience_s:.0f} s; it goes on. Watch it: "
                f"scanflow services {asked.name}"
            )
        time.sleep(_POLL_S)
        record = deployer.service(asked.name)
    if not still(record):
        why = record.error or "another client has changed it since"
        raise UsageError(f"The change of {asked.name!r} was undone, and what served before serves on: {why}")
    return record
