"""Which waits between tries Argo keeps, and which the step's own program has to. Pure."""

from __future__ import annotations

from scanflow.app.executor import Executor


def waits_itself(node: Executor) -> bool:
    """Say whether a step's program keeps the waits between tries, because Argo cannot.

    Argo multiplies a wait by a whole number, without an upper end.
    """
    retry = node.retry
    if not (retry.limit and retry.delay):
        return False
    last = float(retry.delay) * float(retry.factor) ** (retry.limit - 1)
    return not float(retry.factor).is_integer() or last > retry.wait_s(retry.limit)
