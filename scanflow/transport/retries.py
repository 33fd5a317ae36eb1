"""When a request is sent again, and how long that goes on: by stamina, which is loaded at the first failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0


def retried(call: Callable[[], T], *, on: Callable[[Exception], bool | float], timeout_s: float) -> T:
    """Return what ``call`` returns; call it again, with growing waits, while it raises what may pass.

    Args:
        call: Sends a request.
        on: Whether an error may pass; a number is how many seconds to wait this time.
        timeout_s: Longest to go on, in seconds; then the last error is raised.
    """
    try:
        return call()
    except Exception as error:
        if not on(error):
            raise
        failed = error
    import stamina

    for attempt in stamina.retry_context(
        on=on, attempts=None, timeout=timeout_s, wait_initial=FIRST_WAIT_S, wait_max=LONGEST_WAIT_S, wait_jitter=0.1
    ):
        with attempt:
            if attempt.num == 1:
                raise failed
            return call()
    raise failed
