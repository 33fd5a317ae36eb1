"""A server that is killed at any moment, while runs are asked for and driven: each ends, and each step is done once."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scanflow.processes.background_jobs import Job
from tests.server import ServerProcess, load_body
from tests.waiting import wait_until

KILLS = 100
SHARES = 10  # so that test runners may spread them
IN_FLIGHT = 4

_APP = """
import os, time
import scanflow as sf

def note(what):
    # One write of a short line to a file opened for appending is whole or not there.
    with open(os.environ["TEST_LEDGER"], "a") as ledger:
        ledger.write(os.environ["SCANFLOW_RUN"] + " " + what + "\\n")

@sf.step
def load(wish: str) -> str:
    note(wish + " load")
    time.sleep(0.05)
    return wish

@sf.step
def work(wish: str) -> str:
    note(wish + " work")
    time.sleep(0.1)
    return wish

first = load.bind("none")
app = sf.Application(name="killed", team="t", workflows=[sf.Workflow(name="w", nodes=[first, work.bind(first)])])
"""


@pytest.fixture
def server(home: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(home, environ={"TEST_LEDGER": str(tmp_path / "ledger"), "SCANFLOW_MAX_RUNS": "2"})
    yield process
    process.close()


class RunRequests:
    def __init__(self, server: ServerProcess, body: dict[str, Any]) -> None:
        self._server, self._body = server, body
        self.names: dict[str, str] = {}
        self._open: list[str] = []
        self._count = 0

    def ask(self) -> None:
        if not self._open:
            self._count += 1
            self._open.append(f"wish-{self._count}")
        wish = self._open[0]
        try:
            reply = self._server.api.post(
                "/runs", json={**self._body, "parameters": {"load.wish": wish}}, headers={"Idempotency-Key": wish}
            )
        except httpx2.TransportError:
            return
        assert reply.status_code == 201, reply.text
        self.names[wish] = reply.json()["name"]
        self._open.remove(wish)

    def is_under_way(self) -> bool:
        """Ask for another run where few are under way, and say whether one is."""
        try:
            active = len(self.names) - sum(len(types) > 1 for types in self._server.outcomes().values())
        except httpx2.TransportError:
            return False
        if active < IN_FLIGHT:
            self.ask()
        return active > 0


def kill_a_driver(home: Path, rng: random.Random) -> None:
    jobs = [Job(path.parent) for path in sorted((home / "server").glob("runs/*/*/job.json"))]
    alive = [pid for job in jobs if (pid := job.pid) is not None]
    if alive:
        try:
            os.kill(rng.choice(alive), signal.SIGKILL)
        except ProcessLookupError:  # it has just ended by itself
            return


@pytest.mark.endurance
@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", range(SHARES))
def test_a_server_killed_at_random_moments_loses_no_run_and_repeats_no_step(
    share: int, server: ServerProcess, tmp_path: Path
) -> None:
    rng = random.Random(share)
    (tmp_path / "app.py").write_text(_APP)
    asking = RunRequests(server, load_body(tmp_path / "app.py"))
    for _ in range(KILLS // SHARES):
        server.start()
        wait_until(asking.is_under_way, "a run is under way")  # a server that is killed while it imports proves nothing
        killer = threading.Timer(rng.uniform(0.0, 1.0), server.kill)
        killer.start()
        while killer.is_alive():
            asking.is_under_way()
        if rng.random() < 0.3:
            kill_a_driver(tmp_path / "home", rng)
    server.start()
    asking.ask()  # what was asked for last may not have been answered
    wait_until(lambda: server.api.get("/status").json()["counts"]["runs_active"] == 0, "every run has ended")
    runs = server.api.get("/runs", params={"limit": 1000}).json()
    assert Counter(run["state"] for run in runs) == {"succeeded": len(asking.names)}
    assert {run["name"] for run in runs} == set(asking.names.values())
    once = ["run.started", "run.succeeded"]
    assert server.outcomes() == dict.fromkeys(asking.names.values(), once)
    expected = Counter(f"{name} {wish} {step}" for wish, name in asking.names.items() for step in ("load", "work"))
    assert Counter((tmp_path / "ledger").read_text().splitlines()) == expected
