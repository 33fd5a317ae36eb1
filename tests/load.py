"""A load with the patience of tests, whose body and rate are said in a line."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Mapping, Sequence

from scanflow.load.arrivals import build_constant_rate
from scanflow.load.load_process import LoadError, LoadGenerator, LoadMetrics, LoadPlan, LoadResult
from tests.waiting import patient

__all__ = ["LoadError", "LoadGenerator", "LoadMetrics", "LoadResult", "steady_load", "wait_for"]


def wait_for(load: LoadGenerator, requests: int, *, timeout_s: float = 300.0) -> None:
    """Wait until this many requests have finished since the load began.

    Raises:
        LoadError: they were not within ``timeout_s``, or the load ended before.
    """
    until, pause = time.monotonic() + timeout_s, threading.Event()
    while load.progress[0] < requests:
        is_over = load.over or time.monotonic() > until
        if is_over and load.progress[0] < requests:
            raise LoadError(f"{load.progress[0]} of {requests} requests finished.")
        pause.wait(0.01)


def steady_load(
    url: str,
    body: bytes | str | None = None,
    *,
    connections: int = 8,
    requests: int | None = None,
    duration_s: float | None = None,
    rate: float | None = None,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = patient(60),
    expect: str | None = None,
    tally: str | None = None,
    cpus: Sequence[int] = (),
) -> LoadGenerator:
    """Return a load of ``requests`` requests, or of ``duration_s`` seconds, whichever ends first; for ``with``.

    ``rate``: requests a second, all connections together; None: as fast as they are answered. ``cpus`` are the only
    ones that it may run on. See :class:`LoadPlan` for the rest.
    """
    content = body.encode() if isinstance(body, str) else body or b""
    plan = LoadPlan(
        url=url,
        method=method or ("GET" if body is None else "POST"),
        bodies=(base64.b64encode(content).decode(),),
        headers={**({} if body is None else {"content-type": "application/json"}), **(headers or {})},
        connections=connections,
        requests=requests,
        duration_s=duration_s,
        timeout_s=timeout_s,
        queue_s=timeout_s,
        expect=expect,
        tally=tally,
        cpus=tuple(cpus),
    )
    if rate is None:
        return LoadGenerator(plan, start_s=patient(120))
    seconds = min(requests / rate if requests else float("inf"), duration_s or float("inf"))
    return LoadGenerator(plan, build_constant_rate(rate, seconds).generate_arrivals()[:requests], start_s=patient(120))
