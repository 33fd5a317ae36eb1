"""Commands on what agents' code decides: their strategies, and these again over what was recorded."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner, Result

from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.http.problems import build_problem
from scanflow.transport import ServerClient
from scanflow_client import agent_client
from scanflow_client.agent_replay import parse_moment, read_trace
from scanflow_client.cli.command_tree import app
from scanflow_client.control_client import ControlClient

URL = "http://127.0.0.1:46666"
APP = """
import scanflow as sf

@sf.step
def load(count: int = 2) -> int:
    return count

@sf.step
def detect(run_ids: str = "", detector: str = "ks", reference: str = "") -> int:
    return len(run_ids)

app = sf.Application(
    name="mnist",
    workflows=[sf.Workflow(name="training", nodes=[load.bind()]), sf.Workflow(name="detector", nodes=[detect.bind()])],
    agents=[
        sf.Agent(name="tracker", modules=["tracker.py"], parameters={"many": 2000}),
        sf.Agent(name="checker", template="checker", modules=["checker.py"]),
    ],
    tracker=sf.Tracker(),
)
"""
TRACKER = """
import scanflow as sf
from scanflow.agent import actuator, call, primitives as do, rule, sensor

LEAST = 1000

@sensor(sf.every(hours=1))
def count():
    return 3

@rule("enough to check")
def enough(n):
    return n >= LEAST

@actuator(path="/sensors/look", depender="checker")
def pass_on(n):
    return {"n": n}

def both(n):
    return [do.run_workflow("training"), call("checker", "look")]

print("the tracker is loaded")
sf.Strategy(name="count", when=count, if_=enough, then=call("checker", "look", 5), cool_down="10m", budget=3)
sf.Strategy(
    name="alarm",
    when=sf.on_event("run.failed", workflow="training"),
    then=[do.run_workflow("training", count=5), both, pass_on, lambda n: do.stop_workflow("training")],
    autonomy="approve",
)

def many(n, parameters):
    return n >= parameters["many"]

sf.Strategy(name="train", when=count, if_=many, then=do.run_workflow("training"))
"""
Journal = list[dict[str, Any]]
CHECKER = """
import scanflow as sf
from scanflow.agent import primitives as do, sensor

@sensor(sf.on_call())
def look(n):
    return n

sf.Strategy(name="seen", when=look, then=do.stop_workflow("training"))
"""


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, code in (("app.py", APP), ("tracker.py", TRACKER), ("checker.py", CHECKER)):
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    entries: Journal = []
    note(entries, 1, 500)
    note(entries, 2, 1204)
    entries.append(entry(entries, "call", "count", {"agent": "checker", "sensor": "look", "args": [5], "kwargs": {}}))
    note(entries, 3, 900)
    entries.append(entry(entries, "decision", "count", {"key": "tracker/count/c2", "answer": {"sample": "s9"}}))

    monkeypatch.setattr(agent_client, "PAGE_SIZE", 2)
    agents = [
        {"name": "tracker", "app": "mnist", "team": "default", "state": "running"},
        {"name": "checker", "app": "mnist", "team": "default", "state": "stopped"},
    ]

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/agents"):
            return httpx2.Response(200, json=agents)
        if "/checker/" in request.url.path:
            status, document = build_problem(UnavailableError("mnist:checker is stopped: --start app.py:checker"))
            return httpx2.Response(status, json=document)
        after, limit = (int(request.url.params[name]) for name in ("after", "limit"))
        return httpx2.Response(200, json=[entry for entry in entries if entry["id"] > after][:limit])

    standin = ControlClient(lambda: ServerClient(URL, transport=httpx2.MockTransport(answer)))
    monkeypatch.setattr("scanflow_client.cli.strategy_commands.open_client", lambda: standin)
    return entries


def entry(entries: Journal, kind: str, subject: str, body: Any) -> dict[str, Any]:
    return {"id": len(entries) + 1, "at": 1.0, "kind": kind, "subject": subject, "body": body}


def note(entries: Journal, number: int, value: Any, *, at: float = 1000.0, error: str | None = None) -> None:
    sample = {"id": f"s{number}", "agent": "tracker", "sensor": "count", "at": at + number, "value": value}
    entries.append(entry(entries, "sample", "count", {**sample, "cause": f"c{number}", "error": error, "seconds": 0.1}))


def cli(*words: str) -> Result:
    return CliRunner().invoke(app, words, catch_exceptions=False)


def change(folder: Path, before: str, after: str) -> None:
    text = (folder / "tracker.py").read_text()
    assert before in text
    (folder / "tracker.py").write_text(text.replace(before, after))


# -- check


@pytest.mark.processes
def test_check_knows_the_agents_too(folder: Path) -> None:
    assert "app.py is valid" in cli("check", "app.py").stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        (
            "tracker.py",
            'do.run_workflow("training"))',
            'do.run_workflow("trainning"))',
            "'train' requests run_workflow on 'trainning', which is no workflow of 'mnist'. Did you mean 'training'?",
        ),
        (
            "tracker.py",
            'return [do.run_workflow("training"), call("checker", "look")]',
            'return [do.run_workflow("nothere"), call("checker", "look")]',
            "'alarm' requests run_workflow on 'nothere', which is no workflow of 'mnist'.",
        ),
        (
            "tracker.py",
            'call("checker", "look", 5)',
            'call("chekcer", "look", 5)',
            "calls 'chekcer', which is no agent",
        ),
        ("app.py", 'modules=["checker.py"]', 'parameters={"confrim": [2, 3]}', "has no parameter 'confrim'"),
    ],
)
def test_check_refuses_what_an_agent_names_that_is_not_there(
    folder: Path, file: str, before: str, after: str, message: str
) -> None:
    text = (folder / file).read_text()
    assert before in text
    (folder / file).write_text(text.replace(before, after))
    with pytest.raises(InvalidError, match=re.escape(message)):
        cli("check", "app.py")


# -- strategies


@pytest.mark.processes
def test_strategies_are_reported_from_the_file_without_any_server(folder: Path) -> None:
    text = cli("strategies", "app.py").stdout
    count, alarm, _, check, seen = re.split(r"\n(?=\w)", text)
    assert count.startswith("tracker: count (auto, cool-down 10m 00s, budget 3 in 1h 00m)\n"), count
    assert "  when  count (every 1h 00m)\n  if    enough to check: n >= LEAST, LEAST=1000\n  then  " in count
    assert "checker.look(5)" in count
    assert "(approve)" in alarm
    assert "  when  when_alarm (on run.failed (workflow=training))\n  if    always\n" in alarm
    assert "  then  run_workflow(workflow='training', parameters=" in alarm
    assert re.search(r"both\(...\)\n +checker.look\(...\), by pass_on\n +do.stop_workflow\('training'\)$", alarm)
    assert check.startswith("checker: check_predictions ("), "what the built-in agent brings is listed with its own"
    assert seen.startswith("checker: seen (")
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.processes
def test_strategies_as_json_may_wait_for_a_sensor_that_only_the_built_in_agent_has(folder: Path) -> None:
    own = "import scanflow as sf\nfrom scanflow.agent import primitives as do\n"
    strategy = "sf.Strategy(name='own', when='check_predictions', then=do.stop_workflow('training'))\n"
    (folder / "checker.py").write_text(own + strategy)
    count, alarm, _, *checks = json.loads(cli("strategies", "app.py", "--json").stdout)
    assert (count["app"], count["agent"], count["sensor"]) == ("mnist", "tracker", "count")
    assert count["when"] == {"kind": "interval", "seconds": 3600.0, "jitter": 0.0}
    assert (count["cool_down_s"], count["budget"], count["budget_window_s"]) == (600.0, 3, 3600.0)
    assert (alarm["if"], alarm["autonomy"], len(alarm["then"])) == (None, "approve", 4)
    assert [(check["agent"], check["name"], check["sensor"]) for check in checks] == [
        ("checker", "check_predictions", "check_predictions"),
        ("checker", "own", "check_predictions"),
    ]
    assert json.loads(cli("strategies", ":checker", "--json").stdout) == checks


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import scanflow\n\n1 / 0\n", r"(?s)tracker.py cannot be loaded:.*tracker.py:3:.*ZeroDivisionError"),
        ("import os\n\nos._exit(9)\n", r"ended its process \(exit status 9\)"),
    ],
)
def test_code_that_cannot_be_loaded_is_reported_with_its_line(folder: Path, code: str, message: str) -> None:
    (folder / "tracker.py").write_text(code)
    with pytest.raises(UsageError, match=message):
        cli("strategies", "app.py")


def test_the_primitives_are_listed_without_any_server(home: Path) -> None:
    heads, *rows = cli("strategies", "primitives").stdout.splitlines()
    assert heads.split()[:4] == ["primitive", "layer", "kind", "parameters"]
    assert len(rows) == 20 + 3 + 1, "those of Table 5.4, those for MPI workflows, and tune_workflow"
    assert rows[0].split()[:3] == ["run_workflow", "application", "batch"]
    assert "workflow, [parameters], [**more]" in rows[0]
    result = cli("strategies", "primitives", "--json")
    assert {(row["layer"], row["kind"]) for row in json.loads(result.stdout)} == {
        *((layer, kind) for layer in ("application", "infrastructure") for kind in ("batch", "online")),
        ("application", "mpi"),
    }


# -- replay


@pytest.mark.processes
def test_the_same_rules_over_the_same_samples_decide_as_they_did(folder: Path, journal: Journal) -> None:
    done = cli("replay", "tracker", "app.py")
    assert done.exit_code == 0
    heads, *rows, empty, last = done.stdout.splitlines()
    assert (heads.split(), empty) == ("when sensor strategy rule requests verdict".split(), "")
    assert [row.split()[2:] for row in rows] == [
        ["count", "count", "no", "-", "-"],
        ["count", "train", "no", "-", "-"],
        ["count", "count", "held", "checker.look(5)", "taken"],
        ["count", "train", "no", "-", "-"],
        ["count", "count", "no", "-", "-"],
        ["count", "train", "no", "-", "-"],
    ]
    assert last == "3 samples, 3 strategies: all requests are as recorded."


@pytest.mark.processes
def test_a_changed_rule_differs_in_rows_and_exit_code(folder: Path, journal: Journal) -> None:
    change(folder, "LEAST = 1000", "LEAST = 900")
    change(folder, 'call("checker", "look", 5)', 'call("checker", "look", 6)')
    (folder / "app.py").write_text(APP.replace('"many": 2000', '"many": 400'))
    done = cli("replay", "tracker")
    assert done.exit_code == 1
    *_, first, two, three, four, five, empty, last = done.stdout.splitlines()
    signs = [(line[0], line.split()[3], line.split("  ")[-1].strip()) for line in (first, two, three, four, five)]
    trained = 'run_workflow(workflow="training")'
    assert signs == [
        ("+", "train", trained),
        ("~", "count", "checker.look(6)"),
        ("+", "train", trained),
        ("+", "count", "checker.look(6)"),
        ("+", "train", trained),
    ]
    assert "checker.look(5)" in two
    assert (empty, last) == (
        "",
        "3 samples, 3 strategies: 5 requests differ from what was recorded: 4 added, 1 changed.",
    )
    document = json.loads(cli("replay", "tracker", "--json").stdout)
    assert (document["app"], document["agent"], document["samples"]) == ("mnist", "tracker", 3)
    assert [difference["sign"] for difference in document["differences"]] == ["+", "~", "+", "+", "+"]
    assert (len(document["moments"]), len(document["recorded"])) == (6, 1)


@pytest.mark.processes
def test_a_saved_trace_is_replayed(folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cli("replay", "tracker", "--last", "2", "--save", "trace.json")
    assert before.exit_code == 0
    assert before.stdout.splitlines()[-1].startswith("2 samples")
    standin = ControlClient(lambda: pytest.fail("no server is needed"))
    monkeypatch.setattr("scanflow_client.cli.strategy_commands.open_client", lambda: standin)
    assert cli("replay", "tracker", "--trace", "trace.json").stdout == before.stdout
    change(folder, "LEAST = 1000", "LEAST = 2000")
    after = cli("replay", "mnist:tracker", "--trace", "trace.json")
    assert (after.exit_code, "1 request differs" in after.stdout, "1 removed" in after.stdout) == (1, True, True)
    (folder / "journal.json").write_text(json.dumps(journal))
    assert read_trace("a", folder / "journal.json") == (None, "a", journal), "a printed journal is a trace too"


@pytest.mark.processes
def test_samples_are_chosen_by_time(folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    note(journal, 4, 5, at=time.time() - 60.0)
    note(journal, 5, None, at=time.time() - 60.0, error="it hung")
    monkeypatch.setattr("scanflow_client.formatting.agent_text.MAX_MOMENTS", 3)
    done = cli("replay", "tracker", "--since", "1h")
    lines = done.stdout.splitlines()
    assert (done.exit_code, done.stdout.count("the sensor failed: it hung")) == (0, 2)
    assert lines[0] == "The last 3 of 4 moments; all of them: --json"
    assert lines[-1] == "2 samples, 3 strategies: all requests are as recorded."
    nothing = cli("replay", "tracker", "--since", "2999-01-01")
    message = "No matching sample is recorded. List the recorded samples: scanflow agents mnist:tracker --journal\n"
    assert (nothing.exit_code, nothing.stdout) == (0, message)


def test_a_moment_is_a_time_or_so_long_ago() -> None:
    assert parse_moment("90s", now=1000.0) == 910.0
    assert parse_moment("1h30m", now=10_000.0) == 4600.0
    assert parse_moment("1970-01-01T01:00:00+00:00", now=5.0) == 3600.0


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ("checker", UnavailableError, r"mnist:checker is stopped.*--start app.py:checker\. Or.*--trace"),
        ("mnist", InvalidError, "Name it: mnist:tracker, mnist:checker"),
        ("tracker --since yesterday", InvalidError, "Or a time, such as 2026-01-31T06:00"),
        ("tracker --trace none.json", NotFoundError, r"There is no file 'none\.json'"),
        (
            "tracker other.py --save saved.json",
            InvalidError,
            r"of mnist:tracker, but other.py defines the application 'other'",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_what_to_do(
    folder: Path, journal: Journal, words: str, error: type[Exception], message: str
) -> None:
    (folder / "other.py").write_text(APP.replace('name="mnist"', 'name="other"'))
    with pytest.raises(error, match=message):
        cli("replay", *words.split())
    assert not (folder / "saved.json").exists()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"entries": 3}'])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(InvalidError, match=r"trace\.json"):
        read_trace("a", tmp_path / "trace.json")


# -- functions that act


@pytest.mark.processes
def test_a_replay_calls_no_function_with_actions_and_no_rule_may_write(folder: Path, journal: Journal) -> None:
    change(folder, "def both(n):", "def keep(n):\n    open('kept.txt', 'a').write(str(n))\n\ndef both(n):")
    change(folder, 'then=call("checker", "look", 5)', "then=keep")
    shown = cli("replay", "tracker", "app.py").stdout
    assert "keep(...)" in shown
    assert "Not called, as it does something itself: keep: it calls" in shown
    change(folder, "    return n >= LEAST", "    open('seen.txt', 'w').close()\n    return n >= LEAST")
    assert (
        "A replay does nothing, and this code writes 'seen.txt'" in cli("replay", "tracker", "app.py", "--json").stdout
    )
    assert not {"kept.txt", "seen.txt"} & {path.name for path in folder.iterdir()}
