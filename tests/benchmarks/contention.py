"""What many callers, and one who writes ten thousand labels at once, leave to others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.agents_lag import percentiles
from tests.benchmarks.bodies import send_body
from tests.benchmarks.clients import callers
from tests.benchmarks.control_server import API, TOKEN, fill, run_scanflow
from tests.benchmarks.measure import Benchmark, Metric, NotMeasuredError, Places, Section
from tests.http_requests import http_client
from tests.server import bearer

_EVENT = [{"at": 1.0, "type": "sample", "app": "bench", "subject": "agent/quick", "data": {"value": 3}}]
_FEW, _MANY = 10, 1000
_ALONE_S = 3.0


def label_writes(places: Places, section: Section, *, count: int) -> Benchmark:
    """``count``: how many samples are queued, and then labelled, by one request each."""

    def sample(folder: Path) -> Mapping[str, float]:
        queued = {"app": "bench", "items": [{"id": f"{number}", "score": 0.5, "guess": 3} for number in range(count)]}
        fields = {"app": "bench", "labels": [{"id": f"{number}", "label": 3} for number in range(count)]}
        metrics: dict[str, float] = {}
        with run_scanflow(places.python, folder) as url:
            metrics |= _describe("alone", _measure_writes(url, partial(threading.Event().wait, _ALONE_S)))
            for key, method, body in (("queue", "POST", queued), ("label", "PATCH", fields)):
                metrics |= _describe(key, _measure_writes(url, partial(_send_labels, url, method, body)))
        return metrics

    metrics = [
        Metric("alone_worst", "a write with nothing else to do: the longest", "ms"),
        Metric("alone_p50", "the same: median", "ms"),
    ]
    for key, what in (("queue", "`POST /labels`"), ("label", "`PATCH /labels`")):
        metrics += [
            Metric(f"{key}_worst", f"another write behind {what} of {count:,}: the longest", "ms", bar=100),
            Metric(f"{key}_p50", "the same: median", "ms"),
        ]
    return Benchmark(
        name="labels",
        section=section,
        metrics=metrics,
        contenders={"Scanflow": sample},
        how=(
            f"one request queues {count:,} samples, and one labels them all; meanwhile another connection records an "
            "event again and again, without a pause"
        ),
        rounds=5,
        warm_up=False,
    )


def _describe(key: str, waits_ms: list[float]) -> dict[str, float]:
    return {f"{key}_worst": max(waits_ms), f"{key}_p50": percentiles(waits_ms)["p50"]}


def _send_labels(url: str, method: str, body: Any) -> None:
    status = send_body(url, json.dumps(body).encode(), TOKEN, method=method, path="/labels")
    if status not in {200, 201}:
        raise NotMeasuredError(f"{method} /labels was answered {status}.")


def _measure_writes(url: str, meanwhile: Callable[[], object]) -> list[float]:
    """Return how long each write of another connection took while that lasted, in milliseconds."""
    waits_ms = list[float]()
    with ThreadPoolExecutor(1) as senders, http_client(base_url=url, headers=bearer(TOKEN), timeout=60) as client:
        client.post(f"{API}/events", json=_EVENT)  # so that the connection is open
        sent = senders.submit(meanwhile)
        while not sent.done():
            began = time.perf_counter()
            client.post(f"{API}/events", json=_EVENT).raise_for_status()
            waits_ms.append(1000 * (time.perf_counter() - began))
        sent.result()
    return waits_ms


def many_callers(places: Places, section: Section, *, runs: int, seconds: float) -> Benchmark:
    """``seconds``: of each of the two loads."""

    def sample(folder: Path) -> Mapping[str, float]:
        fill(folder / "scanflow", runs)
        with run_scanflow(places.python, folder) as url:

            def load(connections: int) -> tuple[float, float]:
                address = f"{url}{API}/runs"
                result = callers(address, None, connections=connections, seconds=seconds, headers=bearer(TOKEN))
                return result.metrics().rate, result.failed

            load(_FEW)  # so that it is warm
            few, few_failed = load(_FEW)
            many, many_failed = load(_MANY)
        return {"few": few, "many": many, "ratio": many / few, "callers_failed": few_failed + many_failed}

    return Benchmark(
        name="callers",
        section=section,
        metrics=[
            Metric("ratio", f"`GET /runs` at {_MANY:,} callers: rate over that at {_FEW}", "×", bar=0.8, at_least=True),
            Metric("few", f"rate at {_FEW} callers", "requests/s"),
            Metric("many", f"rate at {_MANY:,} callers", "requests/s"),
            Metric("callers_failed", "requests that failed", "", bar=0),
        ],
        contenders={"Scanflow": sample},
        how=f"{runs:,} runs; connections of one token that ask for the newest 20 again and again, {seconds:g} s each",
        rounds=3,
        warm_up=False,
    )
