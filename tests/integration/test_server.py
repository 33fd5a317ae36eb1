"""The server as a process: runs and services that outlive it, and what it finds when it is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from scanflow.application_loading import load_application
from scanflow.deployer import EmbeddedDeployer
from scanflow.processes.daemon import Daemon
from scanflow.settings import Settings
from tests.conftest import Cli
from tests.http_requests import HTTP
from tests.server import ServerProcess, load_body
from tests.waiting import patient, wait_until

APP = """
import pathlib, time
import scanflow as sf

def note(what):
    with open("ledger", "a") as ledger:
        ledger.write(what + "\\n")

@sf.step
def first(word: str = "one") -> str:
    note("first " + word)
    return word

@sf.step
def second(word: str) -> str:
    note("second begins")
    print("here", flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    if pathlib.Path("fail").exists():
        raise ValueError("told to fail")
    note("second ends")
    return word.upper()

begun = first.bind()
app = sf.Application(name="waiting", team="tests", workflows=[sf.Workflow(name="w", nodes=[begun, second.bind(begun)])])
"""
SERVING = """
import scanflow as sf
node = sf.Service(name="multiply", implementation="model.py:Multiply", parameters={"by": BY})
served = sf.Workflow(name="multiply", type="online", nodes=[node])
app = sf.Application(name="serving", team="tests", workflows=[served])
"""
MODEL = """
import pathlib, time

class Multiply:
    def __init__(self, by=2):
        while pathlib.Path(__file__).with_name("hold").exists():
            time.sleep(0.01)
        self.by = by
        print("multiplying by", by, flush=True)
    def predict(self, X):
        return X * self.by
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("server") / "home"
    process = ServerProcess(home)
    process.start()
    yield process
    process.close()
    deployer = EmbeddedDeployer(Settings(home=home))
    for record in deployer.services():
        deployer.delete(record.name)
    for attempts in (home / "server").glob("runs/*/*/attempts"):
        assert Daemon(attempts.parent).wait(patient(60)), "what drives runs has not ended"


@pytest.fixture
def body(tmp_path: Path) -> Iterator[dict[str, Any]]:
    (tmp_path / "app.py").write_text(APP)
    yield load_body(tmp_path / "app.py")
    (tmp_path / "go").touch()  # what still waits ends by itself


def wait_for_outcome(server: ServerProcess, run: str, outcome: str) -> None:
    wait_until(lambda: server.outcomes().get(run) == ["run.started", outcome], "its end is noted")


def read_entries(folder: Path) -> list[str]:
    return (folder / "ledger").read_text().splitlines() if (folder / "ledger").exists() else []


def wait_for_second_step(folder: Path) -> None:
    wait_until(lambda: "second begins" in read_entries(folder), "the second step begins")


def get_driver_pid(home: Path, run: str, drive: int = 1) -> int:
    pid = Daemon(home / "server" / "runs" / run / str(drive)).pid
    assert pid is not None
    return pid


def test_a_run_is_driven_and_reported_from_its_beginning_to_its_end_and_spun(
    server: ServerProcess, body: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    name = server.api.post("/runs", json=body).json()["name"]
    events = server.run_events(name)
    assert [kind for kind, _ in events] == ["run-started", *["task-started", "task-ended"] * 2, "run-ended"]
    assert events[-1][1]["record"] == server.api.get(f"/runs/{name}").json()
    assert server.api.get(f"/runs/{name}/steps/second/outputs").json() == {"result": "ONE"}
    assert server.run_events(name, **{"Last-Event-ID": "1-5"}) == events[5:]
    wait_for_outcome(server, name, "run.succeeded")
    assert "mlflow" not in _list_mapped_files(server)
    asked = {"step": "second", "parameters": {"second.word": "other"}}
    spun = server.api.post(f"/runs/{name}/spin", json=asked, headers={"Idempotency-Key": "s"}).json()["name"]
    assert server.api.post(f"/runs/{name}/spin", json=asked, headers={"Idempotency-Key": "s"}).json()["name"] == spun
    assert server.run_events(spun)[-1][1]["record"]["state"] == "succeeded"
    assert server.api.get(f"/runs/{spun}/steps/second/outputs").json() == {"result": "OTHER"}
    assert Counter(read_entries(tmp_path))["first one"] == 1


def test_a_response_says_when_it_was_made(server: ServerProcess) -> None:
    for _ in range(2):
        before = int(time.time())
        server_time = parsedate_to_datetime(HTTP.get(f"{server.url}/readyz").headers["date"]).timestamp()
        assert before <= server_time <= time.time()
        wait_until(lambda: int(time.time()) > server_time, "another second has begun")  # noqa: B023


def _list_mapped_files(server: ServerProcess) -> str:
    """Return the files that the server has mapped: what it has imported is among them, where that is no pure Python."""
    return Path(f"/proc/{server.api.get('/status').json()['pid']}/maps").read_text()


def test_a_run_goes_on_while_the_server_is_away_and_is_noted_once(
    server: ServerProcess, body: dict[str, Any], tmp_path: Path
) -> None:
    name = server.api.post("/runs", json=body).json()["name"]
    wait_for_second_step(tmp_path)
    server.kill()
    (tmp_path / "go").touch()
    wait_until(lambda: "second ends" in read_entries(tmp_path), "the step ends without a server")
    server.start()
    assert [kind for kind, _ in server.run_events(name)][-1] == "run-ended"
    wait_for_outcome(server, name, "run.succeeded")
    assert Counter(read_entries(tmp_path)) == Counter(["first one", "second begins", "second ends"])


def test_a_run_with_a_killed_driver_is_gone_on_with(
    server: ServerProcess, body: dict[str, Any], tmp_path: Path
) -> None:
    name = server.api.post("/runs", json=body).json()["name"]
    wait_for_second_step(tmp_path)
    os.kill(get_driver_pid(server.home, name), signal.SIGKILL)
    lines = server.home / "server" / "runs" / name / "1" / "events.jsonl"
    wait_until(lambda: '"adopted":true' in lines.read_text(), "another drives it")
    assert server.api.get(f"/runs/{name}").json()["state"] == "running"
    with server.api.stream("GET", f"/runs/{name}/tasks/second/logs", params={"follow": True}) as reply:
        blocks = reply.iter_bytes()
        assert next(blocks) == b"here\n"
        (tmp_path / "go").touch()
        assert b"".join(blocks) == b"", "it is followed until the step ends"
    events = server.run_events(name)
    assert events[-1][1]["record"]["state"] == "succeeded"
    assert [event["adopted"] for kind, event in events if kind == "task-started"][-1]
    assert Counter(read_entries(tmp_path)) == Counter(["first one", "second begins", "second ends"])
    wait_for_outcome(server, name, "run.succeeded")


@pytest.mark.parametrize("driven", [True, False])
def test_a_run_is_stopped_whether_or_not_a_process_drives_it_and_gone_on_with(
    server: ServerProcess, body: dict[str, Any], tmp_path: Path, driven: bool
) -> None:
    name = server.api.post("/runs", json=body).json()["name"]
    wait_for_second_step(tmp_path)
    if not driven:
        os.kill(get_driver_pid(server.home, name), signal.SIGKILL)
    assert server.api.post(f"/runs/{name}/stop").status_code == 200
    assert server.run_events(name)[-1][1]["record"]["state"] == "stopped"
    wait_for_outcome(server, name, "run.stopped")
    assert server.api.post(f"/runs/{name}/stop").status_code == 400
    (tmp_path / "go").touch()
    assert server.api.post(f"/runs/{name}/resume").json()["state"] == "running"
    assert server.run_events(name)[-1][1]["record"]["state"] == "succeeded"
    assert Counter(read_entries(tmp_path))["first one"] == 1


def test_a_run_that_was_stopped_before_it_began_never_begins(
    server: ServerProcess, body: dict[str, Any], tmp_path: Path
) -> None:
    name = server.api.post("/runs", json=body).json()["name"]
    server.api.post(f"/runs/{name}/stop")
    assert server.run_events(name)[-1][1]["record"]["state"] == "stopped"
    assert "second ends" not in read_entries(tmp_path)


def test_a_failed_run_is_reported_failed_and_resumed_with_what_its_file_says_now(
    server: ServerProcess, body: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "fail").touch()
    name = server.api.post("/runs", json=body).json()["name"]
    record = server.run_events(name)[-1][1]["record"]
    assert record["state"] == "failed"
    assert "ValueError: told to fail" in record["tasks"][-1]["failure"]["cause"]
    wait_for_outcome(server, name, "run.failed")
    (told_of,) = server.api.get("/events", params={"type": "run.failed"}).json()
    assert told_of["data"]["error"] == f"{record['tasks'][-1]['task']}: ValueError: told to fail"
    (tmp_path / "app.py").write_text(APP + "\nraise RuntimeError('half written')\n")
    server.api.post(f"/runs/{name}/resume")
    events = server.run_events(name)
    assert [kind for kind, _ in events] == ["problem", "run-ended"]
    assert events[0][1]["type"] == "urn:scanflow:error:UsageError"
    assert "half written" in events[0][1]["detail"]
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "fail").unlink()
    wait_until(lambda: server.api.post(f"/runs/{name}/resume").status_code == 200, "it may be gone on with")
    assert server.run_events(name)[-1][1]["record"]["state"] == "succeeded"
    assert Counter(read_entries(tmp_path))["first one"] == 1


def test_a_resume_with_an_application_of_its_own_keeps_what_the_run_was_started_with(
    server: ServerProcess, body: dict[str, Any], tmp_path: Path
) -> None:
    from scanflow.app.application_files import dump_document

    app = load_application(str(tmp_path / "app.py"))[0]
    changed = app.with_workflow(app.workflow().with_parameters({"first.word": "two"}))
    (tmp_path / "go").touch()
    (tmp_path / "fail").touch()
    asked = {**body, "application": dump_document(changed), "parameters": {"first.word": "two"}}
    name = server.api.post("/runs", json=asked).json()["name"]
    assert server.run_events(name)[-1][1]["record"]["state"] == "failed"
    (tmp_path / "fail").unlink()
    plain = {"application": body["application"], "source": body["source"]}
    wait_until(lambda: server.api.post(f"/runs/{name}/resume", json=plain).status_code == 200, "it may be gone on with")
    assert server.run_events(name)[-1][1]["record"]["state"] == "succeeded"
    assert server.api.get(f"/runs/{name}/steps/second/outputs").json() == {"result": "TWO"}
    assert read_entries(tmp_path)[0] == "first two"


FAN_OUT = """
import scanflow as sf

@sf.step
def make() -> list[int]:
    return [1, 2, 3]

@sf.step
def scale(number: int) -> int:
    if number == 2:
        raise ValueError("not mended yet")
    return number * 10

made = make.bind()
app = sf.Application(name="fan", workflows=[sf.Workflow(name="w", nodes=[made, scale.map(made)])])
"""


def test_a_step_that_was_edited_before_a_resume_is_named_by_a_server_too(
    server: ServerProcess, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's process has no functions: their digests come with the request, or are of the run's file."""
    monkeypatch.setenv("SCANFLOW_URL", server.url)
    monkeypatch.setenv("SCANFLOW_TOKEN", server.token)
    mended = FAN_OUT.replace("number == 2", "number == 22")
    other = mended.replace("1, 2, 3", "3, 2, 1")
    for text, options, edited in ((mended, (), ["scale"]), (other, ("--app", "fan.py"), ["make", "scale"])):
        (tmp_path / "fan.py").write_text(FAN_OUT)
        assert cli("run", "fan.py", cwd=tmp_path).returncode == 1
        (tmp_path / "fan.py").write_text(text)
        resumed = cli("resume", *options, cwd=tmp_path)
        shown = resumed.stdout + resumed.stderr
        assert resumed.returncode == 0, shown
        named = [line.split()[1] for line in shown.splitlines() if "(its code or what that uses) was changed" in line]
        assert (sorted(named), "scale = [10, 20, 30]" in shown) == (edited, True), shown


def test_a_home_and_a_port_have_one_server(server: ServerProcess, tmp_path: Path) -> None:
    def start(home: Path, port: int) -> tuple[int, str]:
        command = [sys.executable, "-m", "scanflow_server", "--home", str(home), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patient(120), check=False)
        return done.returncode, done.stderr

    code, output = start(server.home, 0)
    assert (code, "is already running: process" in output) == (3, True)
    code, output = start(tmp_path / "other", server.port)
    assert (code, f"cannot listen on 127.0.0.1:{server.port}" in output) == (2, True)
    assert server.answers()


def test_a_server_that_is_requested_to_end_cuts_streams_off_and_leaves_runs_alone(
    server: ServerProcess, body: dict[str, Any], tmp_path: Path
) -> None:
    name = server.api.post("/runs", json=body).json()["name"]
    wait_for_second_step(tmp_path)
    with server.api.stream("GET", f"/runs/{name}/events") as reply:
        lines = reply.iter_lines()
        assert next(lines) == "event: run-started"
        assert server.end() == 0
        with pytest.raises(httpx2.TransportError):  # an end that looks like one would be taken for the run's
            list(lines)
    assert psutil.Process(get_driver_pid(server.home, name)).status() != psutil.STATUS_ZOMBIE
    server.start()


def serving(folder: Path, by: int) -> dict[str, Any]:
    (folder / "model.py").write_text(MODEL)
    path = folder / f"serving_{by}.py"
    path.write_text(SERVING.replace("BY", str(by)))
    return load_body(path)


def answer(url: str) -> Any:
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [3]}]}
    return HTTP.post(f"{url}/v2/models/multiply/infer", json=body, timeout=patient(60)).json()["outputs"][0]["data"]


def test_a_service_is_deployed_changed_and_deleted_by_operations(server: ServerProcess, tmp_path: Path) -> None:
    before = (server.api.get("/events/newest").json() or {"id": 0})["id"]
    done = server.operation(server.api.post("/services", json=serving(tmp_path, 2)))
    assert (done["state"], done["result"]["state"]) == ("succeeded", "ready"), done
    assert any("ready" in text for text in done["progress"])
    assert answer(done["result"]["url"]) == [6]
    assert [service["name"] for service in server.api.get("/services").json()] == ["multiply"]
    assert server.api.get("/services/multiply/explain").json()["service"] == "multiply"
    assert b"who" in server.api.get("/services/multiply/logs").content
    scaled = server.operation(server.api.patch("/services/multiply", json={"instances": 2}))
    assert scaled["result"]["shape"]["instances"] == 2
    again = server.operation(server.api.post("/services", json=serving(tmp_path, 5)))
    assert answer(again["result"]["url"]) == [15]
    back = server.operation(server.api.patch("/services/multiply", json={"rollback": True}))
    assert back["state"] == "succeeded", back
    assert answer(done["result"]["url"]) == [6]
    failed = server.operation(server.api.patch("/services/multiply", json={"promote": True}))
    assert (failed["state"], failed["problem"]["status"]) == ("failed", 400)
    gone = server.operation(server.api.delete("/services/multiply"))
    assert (gone["state"], gone["result"]) == ("succeeded", None)
    assert server.api.get("/services").json() == []
    asked: dict[str, Any] = {"type": "service.changed", "after": before}
    kinds = [event["data"]["kind"] for event in server.api.get("/events", params=asked).json()]
    assert kinds == ["deploy", "change", "deploy", "change", "delete"]


def test_a_change_goes_on_while_its_process_and_the_server_are_away_and_a_killed_supervisor_is_replaced(
    server: ServerProcess, tmp_path: Path
) -> None:
    server.operation(server.api.post("/services", json=serving(tmp_path, 2)))
    server.operation(server.api.post("/services", json=serving(tmp_path, 5)))
    before = server.api.get("/services/multiply").json()["generation"]
    (tmp_path / "hold").touch()
    id = server.api.patch("/services/multiply", json={"rollback": True}).json()["operation"]
    folder = server.home / "server" / "operations" / id
    wait_until((folder / "begun").exists, "the change begins")
    wait_until(lambda: server.api.get("/services/multiply").json()["generation"] > before, "the change is asked for")
    Daemon(folder).kill()
    server.kill()
    server.start()
    assert server.api.get(f"/operations/{id}").json()["state"] == "running"
    (tmp_path / "hold").unlink()
    wait_until(lambda: server.api.get(f"/operations/{id}").json()["state"] != "running", "the operation ends")
    operation = server.api.get(f"/operations/{id}").json()
    assert operation["state"] == "succeeded", operation
    assert operation["result"]["generation"] == before + 1
    assert answer(operation["result"]["url"]) == [6]

    def supervisors() -> set[int]:
        wanted = str(server.home / "services" / "multiply")
        processes = [p for p in psutil.process_iter(["cmdline"]) if wanted in (p.info["cmdline"] or [])]
        return {p.pid for p in processes if any("supervisor" in part for part in p.info["cmdline"])}

    wait_until(supervisors, "there is a supervisor")
    first = supervisors()
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: supervisors() and not supervisors() & first, "there is another one")
    wait_until(lambda: server.api.get("/services").json()[0]["state"] == "ready", "the service is supervised")
