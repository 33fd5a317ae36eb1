"""A secret that an application refers to reaches the code that needs it, and nothing else: no file of the home, table,
event, page, answer, log, manifest or command line."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from tests.conftest import Cli
from tests.http_requests import http_client
from tests.server import bearer
from tests.waiting import patient, wait_until

CANARY = re.compile(r"canary-[a-z]+-[0-9]+")
"""Each secret has a name of its own in it, so that a failure says which one is where."""

VARIABLES = {
    "STEP_KEY": "canary-variable-1",
    "PARAMETER": "canary-parameter-2",
    "SERVICE_KEY": "canary-service-3",
    "SERVICE_PARAMETER": "canary-component-4",
    "CHAT": "canary-agent-5",
    "DATABASE": "postgresql://ada:canary-address-6@localhost/data",
    "NUMBER": "4711081542",
    "HOOK": "http://127.0.0.1:9/services/canary-webhook-7",
    "SIGN": "canary-signature-8",
}
NUMBER = VARIABLES["NUMBER"]

APP = """
import os
import scanflow as sf


@sf.step(env={"KEY": sf.secret("env:STEP_KEY"), "MODE": "plain"})
def use(token: str, deep: dict[str, list[str]], number: int) -> dict[str, int]:
    print("use", token, deep, number, os.environ["KEY"], os.environ["DATABASE"], flush=True)
    os.system("echo child $KEY >&2")
    return {"token": len(token), "deep": len(deep["a"][1]), "number": number % 100, "key": len(os.environ["KEY"])}


@sf.step(cache=True)
def cached(token: str) -> int:
    print("cached", token)
    return len(token)


@sf.step
def fail(token: str, database: str) -> None:
    (sf.output_dir() / f"model-{token}").touch()
    raise RuntimeError(f"{token} refused for {database}, as {database.split(':')[2].split('@')[0]} is wrong")


@sf.step
def leak(token: str) -> list[str]:
    (sf.output_dir() / f"model-{token}").write_text("weights")
    return ["it is", token]


PARAMETER, DATABASE = sf.secret("env:PARAMETER"), sf.secret("env:DATABASE")
KEPT = sf.secret("file:kept.txt")
script = sf.Executor(
    name="script",
    mainfile="script.py",
    parameters={"password": KEPT, "database": {"address": DATABASE, "mode": "plain"}, "plain": "-x"},
    env={"KEY": KEPT},
)
each = use.options(name="each").map(token=[PARAMETER, KEPT], deep={"a": ["", DATABASE]}, number=sf.secret("env:NUMBER"))
used = use.bind(token=PARAMETER, deep={"a": ["x", KEPT]}, number=sf.secret("env:NUMBER"))
other = sf.Executor(name="other", mainfile="other.py")
model = sf.Service(name="m", implementation="model.py:M", parameters={"key": sf.secret("env:SERVICE_PARAMETER")})
app = sf.Application(
    name="planted",
    team="tests",
    notify=[sf.Webhook(url=sf.secret("env:HOOK"), secret=sf.secret("env:SIGN"))],
    workflows=[
        sf.Workflow(name="good", nodes=[script, used, each, other, cached.bind(PARAMETER)]),
        sf.Workflow(name="bad", nodes=[fail.bind(KEPT, DATABASE)]),
        sf.Workflow(name="leaking", nodes=[leak.bind(PARAMETER)]),
        sf.Workflow(
            name="digits",
            type="online",
            nodes=[model],
            serving=sf.Serving(env={"KEY": sf.secret("env:SERVICE_KEY")}),
        ),
    ],
    agents=[
        sf.Agent(
            name="watch",
            modules=["watch.py"],
            parameters={"chat": sf.secret("env:CHAT")},
            sensors=[sf.Sensor(name="look", trigger=sf.every(seconds=0.2), parameters={"kept": KEPT})],
        )
    ],
)
"""

SCRIPT = """
import argparse, json, os, pathlib, re
parser = argparse.ArgumentParser()
for name in ("password", "database", "plain"):
    parser.add_argument(f"--{name}")
given = vars(parser.parse_args())
print("script", given, os.environ["KEY"], __name__, __file__, flush=True)
lines = []
for process in pathlib.Path("/proc").iterdir():
    try:
        lines.append((process / "cmdline").read_bytes().decode(errors="replace")) if process.name.isdecimal() else None
    except OSError:
        continue
seen = [given["password"] in line or "canary-" + "address" in line for line in lines]
database = json.loads(given["database"])
told = {"visible": sum(seen), "length": len(given["password"]), "database": len(database["address"])}
told |= {"mode": database["mode"], "plain": given["plain"]}
pathlib.Path(os.environ["SCANFLOW_OUTPUT_DIR"], "told.json").write_text(json.dumps(told))
"""

MODEL = """
import os

class M:
    def __init__(self, key):
        self.key = key
        print("loaded with", key, os.environ["KEY"], dict(os.environ), flush=True)
        os.system("echo child $KEY")

    def predict(self, X):
        raise ValueError(f"{self.key} and {os.environ['KEY']} are refused")
"""

WATCH = """
import os
import scanflow as sf
from scanflow.agent import Strategy, primitives as do
from scanflow.agent.sensors.sensor import sensor

@sensor(sf.every(seconds=0.2))
def look(context):
    kept, chat = context.parameters["kept"].read(), context.parameters["chat"].read()
    print("look", kept, chat, dict(os.environ), flush=True)
    return {"text": f"{kept} {chat}"}

@sensor(sf.every(seconds=0.2))
def err(context):
    raise RuntimeError("wrong: " + context.parameters["chat"].read())

def judge(value):
    raise ValueError(f"no rule for {value}")

Strategy(name="judged", when=look, if_=judge, then=do.run_workflow("good"))
"""


@pytest.fixture
def planted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {"app.py": APP, "script.py": SCRIPT, "model.py": MODEL, "watch.py": WATCH}
    files |= {"kept.txt": "canary-file-9\n", "other.py": "import os; print('other', dict(os.environ))"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def find_canaries(text: str | bytes) -> list[str]:
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    return sorted({*CANARY.findall(text), *([NUMBER] if NUMBER in text else [])})


def assert_no_canary(texts: dict[str, str]) -> None:
    assert {name: canaries for name, text in texts.items() if (canaries := find_canaries(text))} == {}


def assert_no_canary_in(folder: Path) -> None:
    contents = dict[str, bytes]()
    for parent, folders, files in os.walk(folder):  # which leaves out what processes delete meanwhile
        assert find_canaries("\n".join([*folders, *files])) == [], "in no name either"
        for path in (Path(parent, name) for name in files):
            with suppress(FileNotFoundError):
                if path.is_file() and not path.is_symlink():
                    contents[str(path)] = path.read_bytes()
    assert {name: canaries for name, content in contents.items() if (canaries := find_canaries(content))} == {}


def read_command_lines() -> dict[str, str]:
    lines = {}
    for process in Path("/proc").iterdir():
        try:
            lines[process.name] = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
    return lines


def assert_steps_got_their_secrets(cli: Cli) -> None:
    shown = json.loads(cli("show", "@latest", "--json").stdout)
    folder = Path(shown["folder"]) / "outputs"
    document = json.loads((folder / "script" / "told.json").read_text())
    address = len(VARIABLES["DATABASE"])
    assert document == {"visible": 0, "length": 13, "database": address, "mode": "plain", "plain": "-x"}
    result = json.loads((folder / "use" / ".outputs" / "result").read_text())
    assert result == {"token": 18, "deep": 13, "number": 42, "key": 17}
    lengths = [json.loads((folder / "each" / str(index) / ".outputs" / "result").read_text()) for index in (0, 1)]
    assert [(each["token"], each["deep"]) for each in lengths] == [(18, address), (13, address)]


@pytest.mark.processes
def test_runs_and_failures_leave_no_secret_anywhere(cli: Cli, home: Path, planted_folder: Path) -> None:
    ran = cli("run", "app.py:good")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert_steps_got_their_secrets(cli)
    printed = {"run": ran.stdout + ran.stderr}
    for task in ("use", "script", "other", "cached"):
        log = cli("logs", "@latest", task).stdout
        assert "***" in log, "the step's output is masked, and kept"
        printed[task] = log
    again = cli("run", "app.py:good")
    tasks = {task["task"]: task for task in json.loads(cli("show", "@latest", "--json").stdout)["tasks"]}
    assert tasks["cached"]["origin"] is not None, "the key of a cached step has the reference"
    failed = cli("run", "app.py:bad")
    assert failed.returncode == 1
    assert "RuntimeError: *** refused for ***" in failed.stdout + failed.stderr
    leaking = cli("run", "app.py:leaking")
    assert leaking.returncode == 1
    assert "The output 'result' holds the secret 'env:PARAMETER'" in leaking.stdout + leaking.stderr
    resumed = cli("resume", "@latest")
    words = (["show"], ["show", "--json"], ["runs", "--json"], ["logs"], ["plan", "app.py:good", "--json"], ["check"])
    printed |= {" ".join(line): (done := cli(*line)).stdout + done.stderr for line in words}
    for name, done in {"again": again, "failed": failed, "leaking": leaking, "resumed": resumed}.items():
        printed[name] = done.stdout + done.stderr
    assert_no_canary(printed)
    assert_no_canary_in(home)


@pytest.mark.processes
def test_a_server_its_services_and_agents_show_no_secret(cli: Cli, home: Path, planted_folder: Path) -> None:
    assert cli("up", "--no-tracker").returncode == 0
    try:
        url = json.loads(cli("status", "--json").stdout)["server"]["url"]
        token = cli("token", "show").stdout.strip()
        for words in (["agents", "--start", "app.py"], ["run", "app.py:good"], ["deploy", "app.py:digits"]):
            done = cli(*words)
            assert done.returncode == 0, done.stdout + done.stderr
        assert_steps_got_their_secrets(cli)
        assert cli("run", "app.py:bad").returncode == 1
        refused = cli("predict", "digits", "--data", "[[1]]")
        assert "*** and *** are refused" in refused.stdout + refused.stderr
        with http_client(base_url=f"{url}/api/v1", headers=bearer(token), timeout=patient(60)) as client:
            wait_for_agent(client)
            viewer = client.post("/tokens", json={"name": "eve", "role": "viewer", "team": "tests"}).json()["token"]
            for reader in (viewer, token):
                bodies = read_all(client, url, reader)
                assert len(bodies) > 30
                assert_no_canary(bodies)
        printed = {"predict": refused.stdout + refused.stderr, "logs": cli("logs", "digits").stdout}
        assert "loaded with *** ***" in printed["logs"]
        assert "child ***" in printed["logs"]
        for words in (["agents", "--json"], ["events", "--json"], ["services", "--json"], ["status", "--json"]):
            printed[" ".join(words)] = cli(*words).stdout
        assert_no_canary(printed)
        assert_no_canary(read_command_lines())
        assert_no_canary_in(home)
    finally:
        cli("delete", "digits")
        assert cli("down").returncode == 0
    assert_no_canary_in(home)


def wait_for_agent(client: httpx2.Client) -> None:
    def has_journal() -> bool:
        entries = client.get("/agents/planted/watch/journal").text
        return "no rule for" in entries and "wrong: ***" in entries

    wait_until(has_journal, "the agent has sensed and judged")


def read_all(client: httpx2.Client, url: str, token: str) -> dict[str, str]:
    """Return the bodies of all that can be read, whatever their status."""
    run = client.get("/runs").json()[0]["name"]
    names = {"app": "planted", "agent": "watch", "name": "digits", "run": run, "step": "fail", "task": "fail"}
    names |= {"id": client.get("/intents").json()[0]["intent"]["id"]}
    bodies = {}
    with http_client(base_url=url, headers=bearer(token), timeout=patient(60)) as reader:
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            if "get" in methods:
                page = reader.get(re.sub(r"{(\w+)}", lambda match: names.get(match[1], "none"), path))
                assert page.status_code < 500, (path, page.text)
                bodies[path] = page.text
    with http_client(base_url=url, follow_redirects=True, timeout=patient(60)) as browser:
        assert browser.post("/login", data={"token": token}, headers={"origin": url}).status_code == 200
        for path in ("/", "/reports/planted", "/labels"):
            bodies[f"page {path}"] = browser.get(path).text
    return bodies


@pytest.mark.parametrize("words", [["check", "app.py"], ["run", "app.py:good"], ["deploy", "app.py:digits"]])
def test_a_missing_secret_is_named_before_anything_starts(
    cli: Cli, home: Path, planted_folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name)
    refused = cli(*words)
    assert refused.returncode == 2
    assert re.search(r"There is no secret in 'env:[A-Z_]+'. Set the variable [A-Z_]+ where", refused.stderr)
    assert json.loads(cli("runs", "--json").stdout) == []


def test_a_plain_secret_is_refused_where_it_would_be_saved(cli: Cli, planted_folder: Path) -> None:
    (planted_folder / "app.py").write_text(
        APP.replace('sf.secret("env:SERVICE_KEY")', '"canary-plain-1"').replace("KEY", "API_KEY")
    )
    refused = cli("deploy", "app.py:digits")
    assert refused.returncode == 2
    assert "env.API_KEY is a plain value" in refused.stderr
    assert "sf.secret('env:API_KEY')" in refused.stderr
    assert_no_canary({"refused": refused.stderr})
