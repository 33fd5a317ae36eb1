"""Decide whether Argo or the step's own program waits between retries. Pure."""

from __future__ import annotations

from scanflow.app.executor import Executor


def has_own_backoff(node: Executor) -> bool:
    """Return whether a step's program waits between its retries, because Argo cannot.

    Argo multiplies waits by a whole number, without an upper bound.
    """
    retry = node.retry
    if not (retry.limit and retry.delay):
        return False
    last = float(retry.delay) * float(retry.factor) ** (retry.limit - 1)
    return not float(retry.factor).is_integer() or last > retry.wait_s(retry.limit)
