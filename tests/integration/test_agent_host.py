"""A real agent's process before a server that comes and goes."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.app.application_files import dump_document
from scanflow.http.home_token import ensure_home_token
from scanflow.knowledge import open_knowledge
from scanflow_agents.host.agent_state import SENSOR_STATES
from scanflow_agents.host.sensor_state import SensorState
from scanflow_agents.host.trigger_times import count_between
from tests.server import ServerProcess, bearer
from tests.waiting import patient, wait_until

CODE = """
import time
import scanflow as sf
from scanflow.agent import Strategy, call, primitives as do
from scanflow.agent.sensors.sensor import sensor

@sensor(sf.every(seconds=0.2))
async def tick():
    return 1

Strategy(name="retrain", when=tick, if_=lambda n: n >= 1, then=do.run_workflow("training"))

@sensor(sf.on_call())
def check(n):
    return n

Strategy(name="passed_on", when=check, if_=lambda n: n < 1000, then=call("checker", "look", 5))
Strategy(name="alarm", when=sf.on_event("run.failed"), then=do.run_workflow("training"))

@sensor(sf.on_call())
def hang():
    time.sleep(600)
"""


class StandInServer:
    """Notes what agents ask for, and remembers keys as the real one does."""

    def __init__(self) -> None:
        self.intents: list[dict[str, Any]] = []
        self.times: dict[str, float] = {}
        self.acted: Counter[str] = Counter()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.here: dict[str, Any] = {}
        self.stored: list[list[dict[str, Any]]] = []
        self.lock = threading.Lock()
        self.down = False
        self.mute = False
        """Whether it takes what it is asked, and ends before it answers."""

        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer({"name": "checker", "url": f"http://127.0.0.1:{stand_in.port}/checker"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.close_connection = stand_in.down or stand_in.mute
                answer = None if stand_in.down else stand_in.take(self.path, body, self.headers.get("idempotency-key"))
                if not stand_in.mute and answer is not None:
                    self.answer(answer)

            def do_PUT(self) -> None:
                stand_in.stored.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.answer({})

            def answer(self, document: Any) -> None:
                text = json.dumps(document).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def take(self, path: str, body: Any, key: str | None) -> Any:
        with self.lock:
            if path == "/api/v1/intents":
                self.intents.append(body)
                self.times.setdefault(body["key"], time.monotonic())
                first = body["key"] not in self.acted
                self.acted[body["key"]] += first
                return {"intent": body["id"], "verdict": "act" if first else "duplicate", "reason": "", "at": 0.0}
            if path.startswith("/checker/sensors/"):
                self.calls.append((str(key), body))
            if path.endswith("/heartbeat"):
                self.here = body
            return {}

    def keys(self, strategy: str) -> list[str]:
        with self.lock:
            return [intent["key"] for intent in self.intents if intent["strategy"] == strategy]


class Hosted:
    """The agent's process."""

    def __init__(self, folder: Path, server: StandInServer | ServerProcess, code: str = CODE, **fields: Any) -> None:
        self.folder = folder
        self.token = server.token if isinstance(server, ServerProcess) else ensure_home_token(folder / "home")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "own.py").write_text(code)
        app = sf.Application(
            name="mnist",
            app_dir=str(folder),
            workflows=[sf.Workflow(name="training", nodes=[sf.Executor(name="train", mainfile="own.py")])],
            agents=[sf.Agent(name="tracker", modules=["own.py"]), sf.Agent(name="checker", modules=["own.py"])],
        )
        spec = {
            "application": dump_document(app),
            "agent": "tracker",
            "server": f"http://127.0.0.1:{server.port}",
            "home": str(folder / "home"),
            "heartbeat_s": 0.2,
            "token": self.token,
            **fields,
        }
        (folder / "agent.json").write_text(json.dumps(spec))
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def launch(self) -> subprocess.Popen[bytes]:
        (self.folder / "address.json").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scanflow_agents", str(self.folder)], stdout=log, stderr=log
            )
        return self.process

    def start(self) -> Hosted:
        process = self.launch()
        wait_until(lambda: (self.folder / "address.json").exists() or process.poll() is not None, "the agent is there")
        assert process.poll() is None, (self.folder / "log").read_text()
        self.url = json.loads((self.folder / "address.json").read_text())["url"]
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(patient(60))

    def end(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(patient(60))

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            self.url + path, data, {"content-type": "application/json", **bearer(self.token), **headers}, method=method
        )
        with urllib.request.urlopen(asked, timeout=patient(60)) as answer:
            return json.load(answer)

    def refusal(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        with pytest.raises(urllib.error.HTTPError) as error:
            self.ask(method, path, body)
        with error.value as answer:
            document: dict[str, Any] = json.load(answer)
        assert document["status"] == answer.status
        return document

    def read_states(self) -> dict[str, SensorState]:
        """Return the accounts as they are on disk, whatever the process does."""
        connection = sqlite3.connect(f"file:{self.folder / 'agent.db'}?mode=ro", uri=True)
        try:
            rows = connection.execute("SELECT name, state FROM sensor_states").fetchall()
        finally:
            connection.close()
        return {name: SENSOR_STATES.validate_json(state) for name, state in rows}

    def journal(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.ask("GET", f"/journal?kind={kind}&limit=10000")
        return entries


@contextmanager
def serve_stand_in() -> Iterator[StandInServer]:
    server = StandInServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[StandInServer]:
    with serve_stand_in() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[StandInServer]:
    with serve_stand_in() as server:
        yield server


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, server: StandInServer) -> Iterator[Hosted]:
    agent = Hosted(tmp_path_factory.mktemp("tracker"), server).start()
    yield agent
    agent.kill()


def test_it_tells_the_server_where_it_is_and_proposes_what_its_strategies_want(
    agent: Hosted, server: StandInServer
) -> None:
    wait_until(lambda: server.here, "it said where it is")
    assert agent.process is not None
    assert (server.here["url"], server.here["pid"]) == (agent.url, agent.process.pid)
    assert {sensor["name"] for sensor in server.here["sensors"]} == {
        sensor["name"] for sensor in agent.ask("GET", "/sensors")
    }
    wait_until(lambda: len(server.keys("retrain")) >= 3, "three intents came")
    intent = server.intents[0]
    assert (intent["app"], intent["agent"], intent["primitive"]) == ("mnist", "tracker", "run_workflow")
    assert intent["key"].startswith("tracker/retrain/interval:")
    wait_until(lambda: agent.journal("decision"), "the decision is in the journal")
    sensors = {sensor["name"]: sensor for sensor in agent.ask("GET", "/sensors")}
    assert sensors["tick"]["fired"] >= 3
    assert sensors["tick"]["next"] is not None
    assert agent.ask("GET", "/healthz")["sensors"] == 4
    event = {"id": 12, "at": 1.0, "type": "run.failed", "app": "mnist", "subject": "run/tall-fox"}
    assert [agent.ask("POST", "/inbox", [event]) for _ in range(2)] == [{"fired": 1}, {"fired": 0}]
    wait_until(lambda: server.keys("alarm"), "what is wanted of an event came")
    assert server.keys("alarm") == ["tracker/alarm/event:12"]


def test_a_call_goes_from_one_agent_to_the_other_once(agent: Hosted, server: StandInServer) -> None:
    answer, again = (agent.ask("POST", "/sensors/check", {"args": [7]}, **{"idempotency-key": "k1"}) for _ in range(2))
    assert answer == again
    wait_until(lambda: server.calls, "the other agent was called")
    wait_until(lambda: len(agent.journal("sample")) > 0 and agent.journal("call"), "it is in the journal")
    assert server.calls == [("tracker/passed_on/call:k1", {"args": [5], "kwargs": {}})]
    bodies = [entry["body"] for entry in agent.journal("sample") if entry["subject"] == "check"]
    assert [(body["id"], body["value"]) for body in bodies] == [(answer["sample"], 7)]


def test_bad_requests_learn_what_is_wrong(agent: Hosted) -> None:
    assert "Did you mean 'tick'" in agent.refusal("POST", "/sensors/tik", {})["detail"]
    assert agent.refusal("POST", "/sensors/tick", {})["type"] == "urn:scanflow:error:NotFoundError"
    assert agent.refusal("POST", "/sensors/check", {"argz": []})["status"] == 422
    assert agent.refusal("POST", "/inbox", {"type": "x"})["status"] == 422
    assert agent.refusal("GET", "/nowhere")["status"] == 404


def list_retrain_keys(agent: Hosted) -> list[str]:
    return [entry["body"]["key"] for entry in agent.journal("intent") if entry["subject"] == "retrain"]


def test_what_a_server_that_is_down_cannot_take_is_acted_on_once_when_it_is_back(
    agent: Hosted, server: StandInServer
) -> None:
    wait_until(lambda: server.keys("retrain"), "the first intent came")
    server.down = True
    waiting = agent.ask("GET", "/healthz")["undelivered"]
    wait_until(lambda: agent.ask("GET", "/healthz")["undelivered"] >= waiting + 5, "intents wait")
    last = list_retrain_keys(agent)[-1]
    server.down = False
    wait_until(lambda: last in server.keys("retrain"), "what waited came")
    keys = server.keys("retrain")
    unique = list(dict.fromkeys(keys))
    # As times, not as text: a whole second is written without a fraction, and "Z" comes after ".".
    times = [datetime.fromisoformat(key.partition("interval:")[2]) for key in unique]
    assert times == sorted(times), "in order"
    wanted = list_retrain_keys(agent)
    assert set(wanted[: wanted.index(last) + 1]) <= set(keys)
    assert set(server.acted.values()) == {1}


def test_an_answer_that_was_lost_makes_it_ask_again_with_the_same_key(agent: Hosted, server: StandInServer) -> None:
    server.mute = True
    wait_until(lambda: len(server.keys("retrain")) > len(set(server.keys("retrain"))), "it asked again")
    server.mute = False
    count = len(server.acted)
    wait_until(lambda: len(server.acted) > count + 2, "it goes on")
    assert set(server.acted.values()) == {1}


def test_a_second_process_over_the_same_folder_is_refused(agent: Hosted) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "scanflow_agents", str(agent.folder)],
        capture_output=True,
        text=True,
        timeout=patient(120),
    )
    assert second.returncode == 1
    assert "Another process already hosts the agent" in second.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "own.py").write_text("import nothing_of_that_name\n"), "own.py"),
        (lambda folder: (folder / "agent.json").write_text("{}"), "Field required"),
        (lambda folder: (folder / "agent.json").unlink(), "There is no"),
    ],
)
def test_what_cannot_be_hosted_says_why_and_is_not_to_be_tried_again(
    tmp_path: Path, own_server: StandInServer, change: Callable[[Path], object], words: str
) -> None:
    hosted = Hosted(tmp_path / "tracker", own_server)
    change(hosted.folder)
    assert hosted.launch().wait(patient(120)) == 78
    assert words in json.loads((hosted.folder / "failure.json").read_text())["error"]


@pytest.mark.endurance
def test_killed_at_random_moments_it_loses_no_due_time_and_nothing_is_acted_on_twice(
    tmp_path: Path, own_server: StandInServer
) -> None:
    chance = random.Random(7)
    agent = Hosted(tmp_path / "tracker", own_server)
    calls = 0
    for _ in range(6):
        agent.start()
        enough = len(own_server.keys("retrain")) + chance.randrange(1, 6)
        for _ in range(3):
            agent.ask("POST", "/sensors/check", {"args": [calls]}, **{"idempotency-key": f"call-{calls}"})
            calls += 1
        _until_intents(own_server, enough)
        agent.kill()
        ledger = agent.read_states()["tick"]
        leaf = ledger.leaves[""]
        due = count_between(leaf.trigger, 0.0, leaf.accounted, anchor=leaf.anchor)
        assert due == leaf.taken + leaf.late + leaf.down
        assert leaf.taken == ledger.fired + ledger.running
    agent.start()
    wait_until(lambda: agent.ask("GET", "/healthz")["undelivered"] <= 1, "what waited was delivered")
    wanted = {entry["body"]["key"] for entry in agent.journal("intent")}
    samples = [entry["body"]["cause"] for entry in agent.journal("sample")]
    assert len(samples) == len(set(samples))
    assert {f"call:call-{n}" for n in range(calls)} <= set(samples), "a call that was accepted leaves its sample"
    assert agent.end() == 0
    entries = {entry for entry in own_server.acted if entry.startswith("tracker/retrain/")}
    assert len(wanted - set(own_server.acted)) <= 1
    assert set(own_server.acted.values()) == {1}
    assert entries
    assert {key for key, _ in own_server.calls} == {f"tracker/passed_on/call:call-{n}" for n in range(calls)}


def test_a_sensor_that_hangs_is_given_up_and_keeps_neither_the_others_nor_the_end(
    tmp_path: Path, own_server: StandInServer
) -> None:
    agent = Hosted(tmp_path / "tracker", own_server, sensor_limit_s=1.0).start()
    try:
        agent.ask("POST", "/sensors/hang", {})
        wait_until(
            lambda: [entry for entry in agent.journal("sample") if entry["subject"] == "hang"], "it was given up"
        )
        (sample,) = [entry["body"] for entry in agent.journal("sample") if entry["subject"] == "hang"]
        assert sample["error"] == "The sensor exceeded its limit of 1 s, and was abandoned."
        fired = len(own_server.keys("retrain"))
        wait_until(lambda: len(own_server.keys("retrain")) > fired + 2, "the others go on")
    finally:
        assert agent.end() == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the warnings are MLflow's
def test_a_sensor_looks_at_each_run_of_the_knowledge_base_once(tmp_path: Path, own_server: StandInServer) -> None:
    home = tmp_path / "tracker" / "home"
    tracker = open_knowledge(home)
    for count in (400, 700):
        tags = {"scanflow.step": "train"}
        tracker.log_run("mnist", "default", metrics={"n_predictions": float(count)}, tags=tags)
    code = """
import scanflow as sf
from scanflow.agent import Strategy, primitives as do
from scanflow.agent.sensors.sensor import sensor

@sensor(sf.on_call(), nodes=["train"], filter_string="metrics.n_predictions > 0")
def count(runs):
    return sum(run.metrics["n_predictions"] for run in runs)

Strategy(name="enough", when=count, if_=lambda n: n >= 1000, then=do.run_workflow("training"))
"""
    agent = Hosted(tmp_path / "tracker", own_server, code=code).start()
    try:
        counts: list[float] = []
        while sum(counts) < 1100:  # a run counts from a second after its end on
            agent.ask("POST", "/sensors/count", {})
            _until_samples(agent, len(counts) + 1)
            counts = [entry["body"]["value"] for entry in agent.journal("sample")]
            assert None not in counts, agent.journal("sample")
            assert len(counts) < 200
        assert sum(counts) == 1100, "no run is looked at twice"
    finally:
        agent.kill()


def _until_intents(own_server: StandInServer, count: int) -> None:
    wait_until(lambda: len(own_server.keys("retrain")) >= count, f"{count} intents came")


def _until_samples(agent: Hosted, count: int) -> None:
    wait_until(lambda: len(agent.journal("sample")) >= count, f"there are {count} samples")
