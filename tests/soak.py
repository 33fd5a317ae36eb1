"""What a soak test is made of: traffic that goes on over kills, and how processes grow meanwhile."""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psutil

from tests.http_requests import HTTP, http_client
from tests.server import bearer
from tests.waiting import PATIENCE_S, patient, wait_until

MIB = 1024 * 1024


class Api:
    """Asks the server until it is answered: it may be gone for a while."""

    def __init__(self, url: str, token: str) -> None:
        self._client = http_client(base_url=f"{url}/api/v1", headers=bearer(token), timeout=patient(60))

    def ask(self, method: str, path: str, *, key: str | None = None, **options: Any) -> httpx2.Response:
        give_up = time.monotonic() + PATIENCE_S
        headers = {} if key is None else {"Idempotency-Key": key}
        while True:
            try:
                reply = self._client.request(method, path, headers=headers, **options)
            except httpx2.TransportError:
                if time.monotonic() > give_up:
                    raise
                threading.Event().wait(0.2)
                continue
            assert reply.status_code < 400, f"{method} {path}: {reply.status_code} {reply.text}"
            return reply

    def get(self, path: str, **query: Any) -> Any:
        return self.ask("GET", path, params=query).json()

    def operation(self, method: str, path: str, *, key: str, **options: Any) -> dict[str, Any]:
        id = self.ask(method, path, key=key, **options).json()["operation"]
        operation: dict[str, Any] = {}

        def has_ended() -> bool:
            operation.update(self.get(f"/operations/{id}"))
            return str(operation["state"]) != "running"

        wait_until(has_ended, f"the operation {id} ends")
        return operation

    def close(self) -> None:
        self._client.close()


class Follower:
    def __init__(self, api: Api) -> None:
        self._api, self._last = api, 0
        self.heard: list[dict[str, Any]] = []
        self.skipped: list[int] = []
        """Up to which numbers events were gone before they were heard."""

    def pull(self) -> bool:
        reply = self._api.ask("GET", "/events", params={"after": self._last, "limit": 2000})
        if (gone := reply.headers.get("scanflow-events-gone")) is not None:
            self.skipped.append(int(gone))
        fresh: list[dict[str, Any]] = reply.json()
        self.heard += fresh
        self._last = fresh[-1]["id"] if fresh else self._last
        return bool(fresh)

    def close(self) -> None:
        self._api.close()

    def list_events(self, type: str) -> list[dict[str, Any]]:
        return [event for event in self.heard if event["type"].startswith(type)]

    def outcomes(self) -> dict[str, list[str]]:
        outcomes: dict[str, list[str]] = {}
        for event in self.list_events("run."):
            outcomes.setdefault(event["subject"].removeprefix("run/"), []).append(event["type"])
        return outcomes


@dataclass
class Predictor:
    url: Callable[[], str | None]
    model: str
    by: int
    answers: Counter[str] = field(default_factory=Counter)

    def ask(self, number: int) -> None:
        url = self.url()
        if url is None:
            return
        body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [float(number), 1.0]}]}
        try:
            reply = HTTP.post(f"{url}/v2/models/{self.model}/infer", json=body, timeout=patient(60))
        except httpx2.TransportError:
            self.answers["none"] += 1
            return
        if reply.status_code == 200:
            assert reply.json()["outputs"][0]["data"] == [number * self.by, self.by], reply.text
        self.answers[str(reply.status_code)] += 1


class Look(NamedTuple):
    at: float
    mib: float
    """Its memory, pages that are shared counted in proportion."""

    files: int
    threads: int


class Watch:
    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids
        self.looks: dict[tuple[str, int], list[Look]] = {}

    def look(self) -> None:
        for name, pid in self._pids().items():
            weight = weigh(pid)
            if weight is not None:
                self.looks.setdefault((name, pid), []).append(weight)

    def forget(self) -> None:
        self.looks.clear()


def weigh(pid: int) -> Look | None:
    try:
        process = psutil.Process(pid)
        memory = process.memory_full_info()
        return Look(time.monotonic(), memory.pss / MIB, process.num_fds(), process.num_threads())
    except psutil.Error:
        return None


class Growth(NamedTuple):
    mib: float
    files: float
    threads: float


def compute_growth(looks: Sequence[Look]) -> Growth:
    """Return the growth between the medians of the first and the last quarter: one look at a bad moment is nothing."""
    part = max(1, len(looks) // 4)

    def grew(values: Sequence[float]) -> float:
        return statistics.median(values[-part:]) - statistics.median(values[:part])

    return Growth(*(grew([float(look[field]) for look in looks]) for field in (1, 2, 3)))


def of_home(home: Path) -> list[psutil.Process]:
    return [
        process for process in psutil.process_iter() if process.pid != os.getpid() and _belongs_to(process, str(home))
    ]


def end_home(going_on: Any, cli: Callable[..., Any], home: Path) -> None:
    """End what a test does again and again (``over``, ``close``), and all processes of its home."""
    going_on.over.set()
    cli("down")
    going_on.close()
    for process in of_home(home):
        with suppress(psutil.NoSuchProcess):  # some end with another
            process.kill()


def _belongs_to(process: psutil.Process, home: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.environ().get("SCANFLOW_HOME") == home or any(home in word for word in process.cmdline())
    except (psutil.Error, OSError):
        return False


def kill(pids: Sequence[int], rng: random.Random) -> bool:
    if not pids:
        return False
    try:
        os.kill(rng.choice(pids), signal.SIGKILL)
    except ProcessLookupError:  # it has just ended by itself
        return False
    return True
