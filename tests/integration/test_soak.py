"""A soak: everything at once for minutes, with kills, and then the books have to balance.

In its first part the server, agents and instances are killed now and then; in the second only instances are, so that
what the server and the agents keep can be watched. ``SCANFLOW_SOAK_S`` says how long it takes; 300 s where it does not.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from scanflow.deployer.remote_home import read_up_state
from scanflow.http.home_token import ensure_home_token
from scanflow_agents.host.agent_state import SENSOR_STATES
from scanflow_agents.host.trigger_times import count_between
from tests.conftest import Cli
from tests.server import load_body
from tests.serving import hold_port
from tests.soak import Api, Follower, Growth, Predictor, Watch, compute_growth, end_home, kill, of_home
from tests.waiting import patient, wait_until

SOAK_S = float(os.environ.get("SCANFLOW_SOAK_S", "") or 300)
STORM = 0.4
"""The share of the time in which the server and agents are killed."""

WARM_UP = 0.3
"""The share of the calm after which a process should have all that it needs."""

SERVER_MIB, AGENT_MIB = 10.0, 5.0
"""The most that the server and an agent may grow in the calm. Caches of compiled statements, the allocator's slack and
SQLite's pages come and go by 1 to 3 MiB in the server and by a third of one in an agent. In the two minutes that are
looked at where nothing else is said, that is seen which leaks 5 KiB for each of some 2,000 events, or 2 KiB for each
firing of the agent with the most; SCANFLOW_SOAK_S=3600 sees a tenth of that."""

FILES, THREADS = 12, 12
"""The most open files and threads that may be there more: connections and workers come and go with the traffic."""

KEPT_EVENTS = 250
KEPT_S = 40.0
"""So much, and for so long, is kept, that much is forgotten within the test. A pass begins every 2 s."""

APP = """
import scanflow as sf

@sf.step
def load(wish: str = "an agent's") -> str:
    return wish

@sf.step
def work(wish: str) -> int:
    return len(wish)

first = load.bind("an agent's")
app = sf.Application(
    name="soak",
    team="tests",
    workflows=[
        sf.Workflow(name="work", nodes=[first, work.bind(first)]),
        *(
            sf.Workflow(name=name, type="online", nodes=[sf.Service(name=name, implementation="model.py:Multiply")])
            for name in ("steady", "fleeting")
        ),
    ],
    agents=[sf.Agent(name=name, modules=[f"{name}.py"]) for name in ("watcher", "caller", "scaler")],
)
"""
MODEL = """
class Multiply:
    def predict(self, X):
        return X * 3
"""
AGENTS = {
    "watcher": """
import scanflow as sf
from scanflow.agent import Strategy, sensor, primitives as do

def make(index, seconds):
    @sensor(sf.every(seconds=seconds), name=f"look_{index}")
    def look():
        return index
    Strategy(name=f"decide_{index}", when=look, if_=lambda n: n < 0, then=do.run_workflow("work"))

for index in range(16):
    make(index, 1 if index < 12 else 0.25)

@sensor(sf.every(seconds=1))
def tick():
    return 1

Strategy(name="again", when=tick, then=do.run_workflow("work"), cool_down=8, budget=20, budget_window=60)
Strategy(name="noticed", when=sf.on_event("run.succeeded"), then=do.run_workflow("work"), autonomy="observe")
Strategy(name="idle", when=tick, then=do.run_workflow("work"), autonomy="observe")

@sensor(sf.on_call())
def check(n):
    return n

Strategy(name="never", when=check, if_=lambda n: n < 0, then=do.run_workflow("work"))
""",
    "caller": """
import scanflow as sf
from scanflow.agent import Strategy, call, sensor

@sensor(sf.every(seconds=0.5))
def count():
    return 1

Strategy(name="pass_on", when=count, then=call("watcher", "check", 7))
""",
    "scaler": """
import time
import scanflow as sf
from scanflow.agent import Strategy, sensor, primitives as do

@sensor(sf.every(seconds=1))
def breath():
    return 1 + int(time.time() / 10) % 2

Strategy(
    name="breathe", when=breath,
    then=lambda count: do.update_workflow_replica("steady", instances=count), cool_down=6,
)
""",
}
SERVICES = ("steady", "fleeting")


class Soak:
    def __init__(self, cli: Cli, home: Path, folder: Path) -> None:
        self.cli, self.home, self.folder = cli, home, folder
        self.rng = random.Random(4)
        self.held = hold_port()
        self.port: int = self.held.getsockname()[1]
        token = ensure_home_token(home)
        self.api = Api(f"http://127.0.0.1:{self.port}", token)
        self.follower = Follower(Api(f"http://127.0.0.1:{self.port}", token))
        self.body: dict[str, Any] = {}
        self.asked: dict[str, str] = {}
        self.changes: list[dict[str, Any]] = []
        self.urls: dict[str, str | None] = dict.fromkeys(SERVICES)
        self.predictors = [Predictor(partial(self.urls.get, name), name, 3) for name in SERVICES]
        self.kills: Counter[str] = Counter()
        self.watch = Watch(self.pids)
        self.over, self.calm = threading.Event(), threading.Event()

    def start_control_plane(self) -> None:
        done = self.cli("up", "--port", str(self.port))
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        self.api.close()
        self.follower.close()
        self.held.close()

    def server_pid(self) -> int:
        state = read_up_state(self.home)
        assert state is not None
        return state.server.pid

    def pids(self) -> dict[str, int]:
        agents = {agent["name"]: agent["pid"] for agent in self.api.get("/agents") if agent["pid"] is not None}
        return {"server": self.server_pid(), **agents}

    # What is done, each again and again in a thread of its own

    def ask_for_runs(self, number: int) -> None:
        wish = f"wish-{number}"
        body = {**self.body, "workflow": "work", "parameters": {"load.wish": wish}}
        self.asked[wish] = self.api.ask("POST", "/runs", json=body, key=wish).json()["name"]

    def change_services(self, number: int) -> None:
        key, deploy = f"change-{number}", {**self.body, "workflow": "fleeting", "sizing": {"instances": 1}}
        self._change("POST", "/services", key=f"{key}-deploy", json=deploy)
        self.urls["fleeting"] = self.api.get("/services/fleeting")["url"]
        self._change("PATCH", "/services/fleeting", key=f"{key}-more", json={"instances": 2})
        self.over.wait(2)
        self._change("PATCH", "/services/fleeting", key=f"{key}-less", json={"instances": 1})
        self.urls["fleeting"] = None
        self._change("DELETE", "/services/fleeting", key=f"{key}-delete")

    def _change(self, method: str, path: str, *, key: str, **options: Any) -> None:
        self.changes.append(self.api.operation(method, path, key=key, **options))

    def predict(self, number: int) -> None:
        for predictor in self.predictors:
            predictor.ask(number)

    def follow(self, _number: int) -> None:
        self.follower.pull()

    def look(self, _number: int) -> None:
        self.watch.look()

    def label(self, number: int) -> None:
        items = [{"id": f"label-{number}", "score": 0.5}]
        self.api.ask("POST", "/labels", json={"app": "soak", "items": items})
        self.api.ask("POST", f"/labels/label-{number}", json={"label": 3})

    def harm(self, _number: int) -> None:
        """Kill something: in the storm anything, in the calm an instance."""
        what = "instance" if self.calm.is_set() else self.rng.choice(["server", "agent", "instance"])
        if what == "server":
            self.kills[what] += kill([self.server_pid()], self.rng)
            self.over.wait(self.rng.uniform(0, 1.5))
            self.start_control_plane()
        elif what == "agent":
            alive = [pid for name, pid in self.pids().items() if name != "server"]
            self.kills[what] += kill(alive, self.rng)
        else:
            # One that serves: a change whose new instances end three times before they do is undone, as it should be.
            instances = [
                instance for instance in self.api.get("/services/steady")["instances"] if instance["state"] == "ready"
            ]
            self.kills[what] += kill([instance["pid"] for instance in instances], self.rng)

    def again(self, do: Callable[[int], None], every_s: float) -> None:
        number = 0
        try:
            while not self.over.wait(every_s):
                number += 1
                do(number)
        finally:
            self.over.set()

    def soak(self, seconds: float) -> None:
        traffic = {
            self.ask_for_runs: 4.0,
            self.change_services: 1.0,
            self.predict: 0.1,
            self.follow: 0.3,
            self.label: 2.0,
            self.harm: 6.0,
        }
        with ThreadPoolExecutor(len(traffic) + 1) as pool:
            working = [pool.submit(self.again, do, every_s) for do, every_s in traffic.items()]
            self.over.wait(seconds * STORM)
            self.calm.set()
            self.over.wait(seconds * (1 - STORM) * WARM_UP)
            working.append(pool.submit(self.again, self.look, seconds / 200))
            self.over.wait(seconds * (1 - STORM) * (1 - WARM_UP))
            self.over.set()
            for future in working:
                future.result()

    def settle(self) -> None:
        for agent in AGENTS:
            self.api.ask("DELETE", f"/agents/soak/{agent}")
        wait_until(
            lambda: {listed_agent["state"] for listed_agent in self.api.get("/agents")} == {"stopped"},
            "the agents have ended",
        )
        counts = ("runs_active", "operations_running")
        wait_until(
            lambda: not any(self.api.get("/status")["counts"][count] for count in counts),
            "what was begun has ended",
            patience_s=patient(240),
        )
        wait_until(lambda: not self.open_intents(), "what agents wanted is over", patience_s=patient(240))
        wait_until(lambda: not self.follower.pull(), "all is heard of")

    def open_intents(self) -> list[str]:
        among = [
            intent for state in ("pending", "running") for intent in self.api.get("/intents", state=state, limit=1000)
        ]
        return [run["id"] for run in among]


@pytest.fixture
def soak(cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Soak]:
    for name, text in {"app": APP, "model": MODEL, **AGENTS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("SCANFLOW_SLOTS", "2")
    monkeypatch.setenv("SCANFLOW_MAX_RUNS", "2")
    monkeypatch.setenv("SCANFLOW_KEEP_EVENTS", str(KEPT_EVENTS))
    for what in ("ENDED", "KEYS"):
        monkeypatch.setenv(f"SCANFLOW_KEEP_{what}_DAYS", str(KEPT_S / 86_400))
    soak = Soak(cli, home, tmp_path)
    yield soak
    end_home(soak, cli, home)


@pytest.mark.endurance
@pytest.mark.timeout(SOAK_S + 600)
def test_after_minutes_of_traffic_and_kills_the_books_balance(soak: Soak, cli: Cli, home: Path, tmp_path: Path) -> None:
    soak.start_control_plane()
    soak.body = load_body(tmp_path / "app.py")
    begun = soak.api.operation("POST", "/services", key="steady", json={**soak.body, "workflow": "steady"})
    assert begun["state"] == "succeeded", begun
    soak.urls["steady"] = soak.api.get("/services/steady")["url"]
    for agent in AGENTS:
        soak.api.ask("PUT", f"/agents/soak/{agent}", json=soak.body)
    soak.soak(SOAK_S)
    soak.settle()
    ended = time.time()
    wait_until(lambda: json.loads(cli("status", "--json").stdout)["tracker"]["ready"], "MLflow's server answers too")
    runs = soak.api.get("/runs", limit=10_000)
    labels = soak.api.get("/labels", app="soak", limit=10_000)
    deleted = soak.api.operation("DELETE", "/services/steady", key="end")
    assert deleted["state"] == "succeeded"
    assert cli("down").returncode == 0

    totals = {"runs": len(runs), "changes": len(soak.changes), "events": len(soak.follower.heard), "killed": soak.kills}
    print(f"{SOAK_S:g} s: {totals}")
    assert set(soak.kills.elements()) == {"server", "agent", "instance"}, "each was killed while it worked"
    wait_until(lambda: of_home(home) == [], f"nothing is left over: {format_processes(of_home(home))}")
    processes_kept_to_their_size(soak)
    check_everything_is_done_once(soak, runs)
    every_firing_is_accounted_for(soak, ended)
    the_store_is_whole_and_small(soak, ended)
    assert {label["state"] for label in labels} == {"given"}, "labels are never forgotten"


def format_processes(processes: list[psutil.Process]) -> list[str]:
    return [" ".join(process.cmdline())[:200] for process in processes if process.is_running()]


def processes_kept_to_their_size(soak: Soak) -> None:
    names = {name for name, _ in soak.watch.looks}
    assert names == {"server", *AGENTS}
    growths: dict[str, Growth] = {}
    for (name, pid), looks in soak.watch.looks.items():
        assert len(looks) >= 8, f"{name} (process {pid}) was replaced in the calm: it died by itself"
        growths[name] = compute_growth(looks)
        print(
            f"{name}: {looks[0].mib:.1f} to {looks[-1].mib:.1f} MiB, {looks[-1].files} files; grew by {growths[name]}"
        )
    for name, grew in growths.items():
        assert grew.mib <= (SERVER_MIB if name == "server" else AGENT_MIB), (name, grew)
        assert grew.files <= FILES, (name, grew)
        assert grew.threads <= THREADS, (name, grew)


def check_everything_is_done_once(soak: Soak, runs: list[dict[str, Any]]) -> None:
    heard = soak.follower
    ids = [event["id"] for event in heard.heard]
    assert ids == sorted(set(ids)), "every event is heard once, in its order"
    assert heard.skipped == [], "nothing was forgotten before it was heard"
    assert {run["name"]: run["state"] for run in runs} == dict.fromkeys([run["name"] for run in runs], "succeeded")
    once = ["run.started", "run.succeeded"]
    assert heard.outcomes() == dict.fromkeys([run["name"] for run in runs], once)
    acted = heard.list_events("action.")
    assert [event for event in acted if event["type"] != "action.succeeded"] == []
    assert len({event["data"]["id"] for event in acted}) == len(acted), "no action is done twice"
    by_agents = [event["data"]["result"]["run"] for event in acted if event["data"]["primitive"] == "run_workflow"]
    assert sorted([*by_agents, *soak.asked.values()]) == sorted(run["name"] for run in runs)
    assert [change["problem"] for change in soak.changes if change["state"] != "succeeded"] == []
    for predictor in soak.predictors:
        print(predictor.model, dict(predictor.answers))
        assert predictor.answers["200"] > 0


def every_firing_is_accounted_for(soak: Soak, ended: float) -> None:
    """Fired and missed are all that was due; and what an agent wanted, the server has heard of, or it still waits."""
    ids = {event["data"]["id"] for event in soak.follower.list_events("intent")}
    for agent in AGENTS:
        with reading(soak.home / "server" / "agents" / "soak" / agent / "host" / "agent.db") as rows:
            for (text,) in rows("SELECT state FROM sensor_states"):
                sensor = SENSOR_STATES.validate_json(text)
                for leaf in sensor.leaves.values():
                    due = count_between(leaf.trigger, 0.0, leaf.accounted, anchor=leaf.anchor)
                    assert due == leaf.taken + leaf.late + leaf.down, sensor
                    assert leaf.taken == sensor.fired + sensor.running + sensor.full + sensor.interrupted, sensor
                    assert sensor.fired > 0, sensor
                    assert ended - leaf.accounted < patient(60), "it was kept up until the end"
            intents = [json.loads(body) for (body,) in rows("SELECT body FROM journal WHERE kind = 'intent'")]
            wanted = {intent["id"] for intent in intents}
            if agent == "watcher":
                every_event_is_noticed_once(soak, [intent for intent in intents if intent["strategy"] == "noticed"])
            waiting = {json.loads(body)["id"] for (body,) in rows("SELECT body FROM outbox WHERE kind = 'intent'")}
            answers = [
                json.loads(body)["answer"] for (body,) in rows("SELECT body FROM journal WHERE kind = 'decision'")
            ]
            # An intent whose decision repeats an earlier one is counted with that, and has no event.
            decisions = [answer for answer in answers if isinstance(answer, dict) and "verdict" in answer]
            repeats = {
                decision["intent"] for decision in decisions if "This repeats the decision on" in decision["reason"]
            }
            assert wanted - waiting - repeats <= ids, agent
            samples = [json.loads(body)["id"] for (body,) in rows("SELECT body FROM journal WHERE kind = 'sample'")]
            assert len(samples) == len(set(samples)), "a firing leaves one sample"


def every_event_is_noticed_once(soak: Soak, intents: list[dict[str, Any]]) -> None:
    """From the first to the last that the agent heard: it began to listen, and ended, at some moment."""
    noticed = [int(intent["key"].rpartition("event:")[2]) for intent in intents]
    assert noticed != []
    happened = [event["id"] for event in soak.follower.list_events("run.succeeded")]
    assert sorted(noticed) == [id for id in happened if min(noticed) <= id <= max(noticed)]


def the_store_is_whole_and_small(soak: Soak, ended: float) -> None:
    server = soak.home / "server"
    # Of what was old a moment before the end, all is forgotten; a pass and its parts take a few seconds.
    old = ended - KEPT_S - patient(15)
    with reading(server / "scanflow.db") as rows:
        ((events,),) = rows("SELECT count(*) FROM events")
        assert events <= KEPT_EVENTS + 200
        ((heard,),) = rows("SELECT count(*) FROM events WHERE id <= " + str(soak.follower.heard[-1]["id"]))
        assert heard < len(soak.follower.heard), "some were forgotten, and had been heard"
        assert rows("SELECT name FROM runs WHERE active") == []
        changes = "request IS NOT NULL AND id NOT IN (SELECT intent FROM fields WHERE intent IS NOT NULL)"
        assert rows(f"SELECT id FROM intents WHERE {changes} AND json_extract(document, '$.ended') < {old}") == []
        assert rows(f"SELECT key FROM idempotency_keys WHERE at < {old}") == []
        assert rows("SELECT id FROM intents WHERE reverting IS NOT NULL OR state IN ('pending', 'running')") == []
        assert rows("SELECT intent FROM trail WHERE intent NOT IN (SELECT id FROM intents)") == []
    folders = [*(server / "operations").iterdir(), *(server / "runs").glob("*/*")]
    assert [folder for folder in folders if not (folder / "ended.json").exists()] == []
    assert [folder for folder in folders if (folder / "ended.json").stat().st_mtime < old] == []
    for path in soak.home.rglob("*.db"):
        with reading(path) as rows:
            assert rows("PRAGMA integrity_check") == [("ok",)], path


class reading:  # noqa: N801  used as a function is
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Callable[[str], list[tuple[Any, ...]]]:
        self._connection = sqlite3.connect(self._path)
        return lambda query: self._connection.execute(query).fetchall()

    def __exit__(self, *_: object) -> None:
        self._connection.close()
