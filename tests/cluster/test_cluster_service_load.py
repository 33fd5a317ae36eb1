"""A service behind a real Gateway that is swapped again and again under load: none of 20,000 requests fails.

``SCANFLOW_TEST_REQUESTS`` says how many instead.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter

import pytest

from scanflow.errors import ScanflowError
from tests.cluster.echoes import seconds_until
from tests.cluster.online import doubles
from tests.cluster.test_service_traffic import Shop, shop

__all__ = ["shop"]

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(1500)]

REQUESTS = int(os.environ.get("SCANFLOW_TEST_REQUESTS", "20000"))
CALLERS = 4
SWAPS = 2
"""At the least."""


class Callers:
    """Some callers, each of which asks all the time by a connection that it keeps."""

    def __init__(self, service: Shop) -> None:
        self._service, self._over, self._lock = service, threading.Event(), threading.Lock()
        self.answers: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CALLERS)]

    @property
    def request_count(self) -> int:
        with self._lock:
            return sum(self.answers.values())

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        with self._service.deployer.connect(self._service.name) as client:
            while not self._over.is_set():
                try:
                    (output,) = client.infer(self._service.name, [1]).outputs.values()
                    what = str(output.tolist())
                except ScanflowError as error:
                    what = repr(error)
                with self._lock:
                    self.answers[what] += 1


def test_no_request_fails_while_a_service_is_swapped_again_and_again(shop: Shop) -> None:
    shop.deploy(shop.spare, 2)
    shop.deploy(shop.name, 2)
    seconds_until(lambda: doubles(shop.answer), "the Gateway has heard of it", patience_s=60)
    swaps, began = 0, time.monotonic()
    with Callers(shop) as callers:
        while callers.request_count < REQUESTS or swaps < SWAPS:
            swaps += 1
            shop.deploy(shop.name, 3 if swaps % 2 else 2)
    took = time.monotonic() - began
    print(f"\n{swaps} swaps in {took:.0f} s, {callers.request_count} requests: {dict(callers.answers)}")
    assert set(callers.answers) == {"[2]", "[3]"}
