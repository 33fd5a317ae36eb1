"""Every kind of process of a home is killed at random moments under load, and then the books have to balance.

``SCANFLOW_KILLS_S`` says for how long, 600 s where it does not; ``SCANFLOW_KILLS_SEED`` repeats the choices of a run.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.backends.local.services.state.observed import read_observed
from scanflow.deployer.remote_home import read_up_state
from scanflow.http.home_token import ensure_home_token
from tests.conftest import Cli
from tests.home_processes import ATTEMPTS, MPI_KINDS, HomeProcess, list_processes
from tests.http_requests import http_client
from tests.server import load_body
from tests.serving import hold_port
from tests.soak import Api, Follower, end_home, of_home
from tests.waiting import patient, wait_until

KILLS_S = float(os.environ.get("SCANFLOW_KILLS_S", "") or 600)
SEED = int(os.environ.get("SCANFLOW_KILLS_SEED", "") or random.SystemRandom().randrange(2**31))
HAS_MPI = any(map(shutil.which, ("mpirun.openmpi", "orterun", "mpiexec.hydra", "mpirun.mpich")))

COSTLY = {"server": 25, "MLflow": 20, "shim of server": 40, "shim of MLflow": 30, "agent": 6, "shim of agent": 10,
          "driver": 4, "shim of driver": 6, "instance": 6, "supervisor": 5, "shim of instance": 25, "operation": 6,
          "shim of operation": 6}  # fmt: skip
"""Kinds of which one more is killed only after so many seconds: what starts again and again waits for up to 30 s."""

KINDS = {"supervisor", *ATTEMPTS, *(f"shim of {kind}" for kind in ATTEMPTS), *(MPI_KINDS if HAS_MPI else ())}
LEAST = max(1, int(KILLS_S // 200))
"""How often each kind has to be killed."""

CALLERS, UNDER_WAY = 3, 8
ENDS_S = {"instance": patient(2.0), "shim of instance": patient(15.0)}
"""For how long after a kill connections may break, in seconds: what a shim leaves is ended by the next one."""

REFUSES_S = {"shim of instance": patient(30.0)}
"""And for how long a connection may be refused, or be answered 503: where the supervisor is killed after the shim, and
before it has started another, nobody holds the socket."""

APP = """
import fcntl, os, time
import scanflow as sf

def note(what):
    # One write of a short line to a file opened for appending is whole or not there.
    with open(os.environ["TEST_LEDGER"], "a") as ledger:
        ledger.write(f"{os.environ['SCANFLOW_RUN']} {os.environ['SCANFLOW_TASK']} {os.getpid()} {what}\\n")

def effect():
    alone = open(f"{os.environ['TEST_LEDGER']}.{os.environ['SCANFLOW_RUN']}.{os.environ['SCANFLOW_TASK']}", "a")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note("overlaps")
    note("begins")
    time.sleep(1.0)
    note("ends")

@sf.step(retries=sf.Retry(limit=3, delay=0.1))
def load(wish: str = "an agent's") -> list[int]:
    effect()
    return [1, 2]

@sf.step(retries=sf.Retry(limit=3, delay=0.1))
def work(item: int) -> int:
    effect()
    return item

first = load.bind()
models = [
    sf.Workflow(name="steady", type="online", nodes=[sf.Service(name="steady", implementation="model.py:Multiply")]),
    sf.Workflow(name="guarded", type="online", nodes=[sf.Service(name="guarded", implementation="model.py:Multiply")],
                serving=sf.Serving(backup="steady")),
    sf.Workflow(name="changed", type="online", nodes=[sf.Service(name="changed", implementation="model.py:Multiply")]),
]
job = sf.MPIWorkload(name="job", mainfile="rank.sh", n_tasks=2, oversubscribe=True)
mpi = [sf.Workflow(name="job", type="mpi", nodes=[job])] if os.environ["TEST_MPI"] else []
serve = sf.Workflow(name="serve", type="online", nodes=[sf.Service(name="m", model="models:/m@champion")])
training = sf.drift.retraining(model="m", fit="train.py:fit", data="train.py:data")
loop = [serve, sf.drift.detection(model="m", budget=200), training]
app = sf.Application(
    name="kills",
    team="tests",
    workflows=[
        sf.Workflow(name="work", nodes=[first, work.map(first)]),
        sf.Workflow(name="once", nodes=[sf.Executor(name="once", mainfile="once.py")]),
        *models,
        *mpi,
        *loop,
    ],
    agents=[
        *(sf.Agent(name=name, template=name) for name in ("tracker", "checker")),
        *(sf.Agent(name=name, template=name, parameters={"service": "serve"}) for name in ("planner", "executor")),
        sf.Agent(name="asker", modules=["asker.py"]),
    ],
    tracker=sf.Tracker(),
)
"""
FILES = {
    "app.py": APP,
    "once.py": "import app\napp.effect()\n",
    "rank.sh": "#!/bin/sh\nexec sleep 4\n",
    "train.py": "def fit(x, y): ...\n\n\ndef data(): ...\n",
    "model.py": "class Multiply:\n    def predict(self, X):\n        return X * 3\n",
    "asker.py": """
import scanflow as sf
from scanflow.agent import Strategy, sensor, primitives as do

@sensor(sf.every(seconds=1))
def tick():
    return 1

Strategy(name="again", when=tick, then=do.run_workflow("work"), cool_down=5)
""",
}
AGENTS = ("tracker", "checker", "planner", "executor", "asker")
WORKFLOWS = ("work", "once", "work", "job") if HAS_MPI else ("work", "once")
BY_A_KILL = re.compile(
    r"killed by SIGKILL|lost: its shim was killed|was started \d+ times, and its process died each time"
    r"|mpirun|exit code (1|137|143)"
)


@dataclass(frozen=True)
class Failed:
    """A request without an answer, or with 503."""

    service: str
    began: float
    ended: float
    what: str


@dataclass
class Predictions:
    """A caller of one service; each keeps its connection."""

    service: str
    url: Callable[[], str]
    answered: int = 0
    failed: list[Failed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._client = http_client(timeout=patient(60))

    def ask(self, number: int) -> None:
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [float(number)]}]}
        began = time.monotonic()
        try:
            reply = self._client.post(f"{self.url()}/v2/models/{self.service}/infer", json=body)
        except httpx2.TransportError as error:
            self.failed.append(Failed(self.service, began, time.monotonic(), type(error).__name__))
            return
        if reply.status_code == 200:
            assert reply.json()["outputs"][0]["data"] == [number * 3.0], reply.text
            self.answered += 1
        else:
            assert (reply.status_code, "retry-after" in reply.headers) == (503, True), reply.text
            self.failed.append(Failed(self.service, began, time.monotonic(), "503"))

    def close(self) -> None:
        self._client.close()


class Storm:
    def __init__(self, cli: Cli, home: Path, folder: Path) -> None:
        self.cli, self.home, self.folder = cli, home, folder
        self.rng, self.over = random.Random(SEED), threading.Event()
        self.held = hold_port()
        self.port: int = self.held.getsockname()[1]
        url, token = f"http://127.0.0.1:{self.port}", ensure_home_token(home)
        self.api, self.follower = Api(url, token), Follower(Api(url, token))
        self.body: dict[str, Any] = {}
        self.runs: dict[str, str] = {}
        self.operations: list[str] = []
        self.kills: list[tuple[float, HomeProcess]] = []
        self.urls: dict[str, str] = {}
        self.callers = [
            Predictions(name, partial(self.urls.__getitem__, name))
            for name in ("steady", "guarded")
            for _ in range(CALLERS)
        ]

    def close(self) -> None:
        for caller in self.callers:
            caller.close()
        self.api.close()
        self.follower.close()
        self.held.close()

    # What is done, each again and again in a thread of its own

    def ask_for_runs(self, number: int) -> None:
        if self.api.get("/status")["counts"]["runs_active"] >= UNDER_WAY:
            return
        wish = f"wish-{number}"
        body = {**self.body, "workflow": WORKFLOWS[number % len(WORKFLOWS)]}
        self.runs[wish] = self.api.ask("POST", "/runs", json=body, key=wish).json()["name"]

    def change_a_service(self, number: int) -> None:
        count = 1 + number % 2
        begun = self.api.ask("PATCH", "/services/changed", json={"instances": count}, key=f"change-{number}")
        self.operations.append(begun.json()["operation"])
        self._wait_for_operation(self.operations[-1])

    def _wait_for_operation(self, id: str) -> None:
        wait_until(
            lambda: self.api.get(f"/operations/{id}")["state"] != "running",
            f"the operation {id} ends",
            patience_s=patient(300),
        )

    def follow(self, _number: int) -> None:
        self.follower.pull()

    def keep_up(self, _number: int) -> None:
        """Do what the machine's service manager would: start what is down."""
        up = read_up_state(self.home)
        if up is None or up.tracker is None or not (up.server.is_alive() and up.tracker.is_alive()):
            self.cli("up", "--port", str(self.port))  # what it starts may be killed before it is ready

    def start_control_plane(self) -> None:
        done = self.cli("up", "--port", str(self.port))
        assert done.returncode == 0, done.stderr

    def harm(self, _number: int) -> None:
        count, now = Counter(process.kind for _, process in self.kills), time.monotonic()
        last = {process.kind: at for at, process in self.kills}
        by_kind = defaultdict[str, list[HomeProcess]](list)
        for process in list_processes(self.home):
            if now - last.get(process.kind, 0.0) >= COSTLY.get(process.kind, 0.0) and self._may_be_killed(process):
                by_kind[process.kind].append(process)
        if not by_kind:
            return
        kinds = sorted(by_kind)
        (kind,) = self.rng.choices(kinds, [1.0 / (1 + count[kind]) for kind in kinds])
        process = self.rng.choice(sorted(by_kind[kind]))
        if process.kill():
            self.kills.append((time.monotonic(), process))

    def _may_be_killed(self, process: HomeProcess) -> bool:
        """Whether it may be killed: of the instances only one beside which another answers."""
        if process.kind != "instance":
            return True
        services = ServicesHome(self.home / "services")
        ready = {name: _count_ready(services, name) for name in services.list_names()}
        name = process.place.parts[-4]
        return ready[name] > 1 or (name == "guarded" and ready["steady"] > 0) or name == "changed"

    def again(self, do: Callable[[int], None], pause: Callable[[], float]) -> None:
        number = 0
        try:
            while not self.over.wait(pause()):
                number += 1
                do(number)
        finally:
            self.over.set()

    def rage(self) -> None:
        pauses = random.Random(SEED + 1)
        traffic: list[tuple[Callable[[int], None], Callable[[], float]]] = [
            (self.ask_for_runs, lambda: 1.5),
            (self.change_a_service, lambda: 2.0),
            (self.follow, lambda: 0.3),
            (self.keep_up, lambda: 1.0),
            (self.harm, lambda: pauses.uniform(0.2, 1.2)),
            *((caller.ask, lambda: 0.03) for caller in self.callers),
        ]
        with ThreadPoolExecutor(len(traffic)) as pool:
            working = [pool.submit(self.again, do, pause) for do, pause in traffic]
            self.over.wait(KILLS_S)
            self.over.set()
            for future in working:
                future.result()

    def settle(self) -> None:
        """Start what is down for the last time, and wait for all that was begun."""
        self.start_control_plane()
        wait_until(
            lambda: {listed_agent["state"] for listed_agent in self.api.get("/agents")} == {"running"},
            "all agents are back",
            patience_s=patient(180),
        )
        for agent in AGENTS:
            self.api.ask("DELETE", f"/agents/kills/{agent}")
        wait_until(
            lambda: {listed_agent["state"] for listed_agent in self.api.get("/agents")} == {"stopped"},
            "the agents have ended",
        )
        counts = ("runs_active", "operations_running")
        wait_until(
            lambda: not any(self.api.get("/status")["counts"][count] for count in counts),
            "no run is stuck, and no operation",
            patience_s=patient(600),
        )
        wait_until(lambda: not self._list_open_intents(), "what agents wanted is over", patience_s=patient(240))
        wait_until(self._are_services_whole, "all services are whole", patience_s=patient(180))
        wait_until(lambda: not self.follower.pull(), "all is heard of")

    def _list_open_intents(self) -> list[Any]:
        return [
            intent for state in ("pending", "running") for intent in self.api.get("/intents", state=state, limit=1000)
        ]

    def _are_services_whole(self) -> bool:
        return {service["state"] for service in self.api.get("/services")} == {"ready"}


def _count_ready(services: ServicesHome, name: str) -> int:
    state = read_observed(services.service(name))
    return 0 if state is None else sum(instance.state == "ready" for instance in state.record.instances)


@pytest.fixture
def storm(cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storm]:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "rank.sh").chmod(0o700)
    monkeypatch.setenv("TEST_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("TEST_MPI", "1" if HAS_MPI else "")
    monkeypatch.setenv("SCANFLOW_SLOTS", "2")
    monkeypatch.setenv("SCANFLOW_MAX_RUNS", "3")
    storm = Storm(cli, home, tmp_path)
    yield storm
    end_home(storm, cli, home)


@pytest.mark.endurance
@pytest.mark.timeout(KILLS_S + 1800)
def test_kills_of_every_kind_of_process_lose_double_and_strand_nothing(storm: Storm, cli: Cli, home: Path) -> None:
    print(f"SCANFLOW_KILLS_SEED={SEED} SCANFLOW_KILLS_S={KILLS_S:g}")
    storm.start_control_plane()
    storm.body = load_body(storm.folder / "app.py")
    for name, count in (("steady", 2), ("guarded", 1), ("changed", 1)):
        body = {**storm.body, "workflow": name, "sizing": {"instances": count}}
        begun = storm.api.operation("POST", "/services", key=name, json=body)
        assert begun["state"] == "succeeded", begun["problem"]
        storm.urls[name] = storm.api.get(f"/services/{name}")["url"]
    for agent in AGENTS:
        storm.api.ask("PUT", f"/agents/kills/{agent}", json=storm.body)
    wait_until(
        lambda: {listed_agent["state"] for listed_agent in storm.api.get("/agents")} == {"running"}, "all agents run"
    )
    storm.rage()
    storm.settle()
    runs = storm.api.get("/runs", limit=10_000)
    records = {run["name"]: storm.api.get(f"/runs/{run['name']}") for run in runs}
    for name in ("guarded", "steady", "changed"):
        assert storm.api.operation("DELETE", f"/services/{name}", key=f"end-{name}")["state"] == "succeeded"
    assert cli("doctor").returncode == 0
    assert cli("down").returncode == 0
    _print_counts(storm, records)
    wait_until(lambda: of_home(home) == [], "nothing is left over")
    check_kinds(storm)
    check_runs(storm, records)
    check_effects(storm, records)
    check_predictions(storm)
    check_databases(home)


def _print_counts(storm: Storm, records: dict[str, Any]) -> None:
    print("killed:", dict(Counter(process.kind for _, process in storm.kills).most_common()))
    print("runs:", dict(Counter((record["workflow"], record["state"]) for record in records.values())))
    print("answered:", sum(client.answered for client in storm.callers), end=" ")
    print("failed:", dict(Counter(failure.what for caller in storm.callers for failure in caller.failed)))
    print("operations:", len(storm.operations), "events:", len(storm.follower.heard))


def check_kinds(storm: Storm) -> None:
    count = Counter(process.kind for _, process in storm.kills)
    assert {kind: count[kind] for kind in KINDS if count[kind] < LEAST} == {}, "each kind was killed while it worked"


def check_runs(storm: Storm, records: dict[str, Any]) -> None:
    """No run is lost or doubled, and each is in a final state that its tasks and events bear out."""
    acted = storm.follower.list_events("action.")
    by_agents = [event["data"]["result"]["run"] for event in acted if event["data"]["primitive"] == "run_workflow"]
    assert len(by_agents) > 0
    assert sorted([*by_agents, *storm.runs.values()]) == sorted(records)
    outcomes = storm.follower.outcomes()
    for name, record in records.items():
        assert outcomes[name] == ["run.started", f"run.{record['state']}"], name
        states = Counter(task["state"] for task in record["tasks"])
        if record["state"] == "succeeded":
            assert set(states) == {"succeeded"}, record
            continue
        assert record["state"] == "failed", record
        why = [str(task["failure"]) for task in record["tasks"] if task["failure"]] or [str(record["error"])]
        assert all(map(BY_A_KILL.search, why)), record


def check_effects(storm: Storm, records: dict[str, Any]) -> None:
    """No attempt's effect is there twice: a step began no more often than its record says, and never beside itself."""
    lines = [line.split() for line in (storm.folder / "ledger").read_text().splitlines()]
    assert [line for line in lines if line[3] == "overlaps"] == []
    notes = Counter((run, task, what) for run, task, _, what in lines)
    whole = {(run, task) for run, task, pid, what in lines if what == "ends" and [run, task, pid, "begins"] in lines}
    tasks = {(name, task["task"]): task for name, record in records.items() for task in record["tasks"]}
    for (run, task, what), count in notes.items():
        if what == "begins":
            assert count <= tasks[run, task]["attempts"], tasks[run, task]
    own = {place for place in tasks if records[place[0]]["workflow"] in {"work", "once"}}
    assert {place for place in own if tasks[place]["state"] == "succeeded"} <= whole
    print("repeated by a retry:", sum(count > 1 for (_, _, what), count in notes.items() if what == "begins"))


def check_predictions(storm: Storm) -> None:
    """Only what a killed instance may have read is without an answer; none is refused while a service's shim lives."""
    for caller in storm.callers:
        assert caller.answered > 0
        for failed in caller.failed:
            ends_s = REFUSES_S if failed.what in {"503", "ConnectError"} else ENDS_S
            near = [
                process
                for at, process in storm.kills
                if failed.began - ends_s.get(process.kind, -KILLS_S) <= at <= failed.ended
            ]
            assert near, failed


def check_databases(home: Path) -> None:
    for path in (home / "journal.db", home / "server" / "scanflow.db"):
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)], path
