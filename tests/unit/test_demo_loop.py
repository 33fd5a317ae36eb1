"""The demo: what it sends when, what it prints on the way and at the end."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scanflow as sf
from scanflow.agent.agent_records import Event
from scanflow.errors import NotFoundError, StepFailedError, UnavailableError
from scanflow_client.control_client import ControlClient
from scanflow_client.demo.demo_application import get_traffic_program, load_demo
from scanflow_client.demo.demo_traffic import Responses, TrafficProgram
from scanflow_client.demo.loop import LoopOutcome, Phase, advance_phase, format_loop, render_report, run_loop
from scanflow_client.demo.session import DemoScreen
from scanflow_client.progress import Output, open_output
from tests.waiting import PATIENCE_S

BEGAN = 1_790_000_000.0


def event(type: str, *, app: str = "mnist", subject: str = "", **data: Any) -> Event:
    return Event(at=BEGAN, type=type, app=app, subject=subject, data=data)


def phases(*types: str | Event) -> list[str]:
    phases, phase = [], Phase.CLEAN
    for type in types:
        phase = advance_phase(phase, type if isinstance(type, Event) else event(type))
        phases.append(f"{phase.name.lower()}: {phase.order}")
    return phases


LOOK = event("intent", subject="workflow/detector", verdict="act")
BETTER, WORSE = event("model.judged", better=True), event("model.judged", better=False)


def test_digits_are_clean_until_the_agents_have_looked_once_and_drifted_from_then_on() -> None:
    assert Phase.CLEAN.order == "clean 100"
    assert phases(event("intent", subject="workflow/detector", verdict="refuse")) == ["clean: clean 100"]
    assert phases(
        "predictions.counted", LOOK, "drift.none", LOOK, "drift.found", BETTER, "service.changed", "model.promoted"
    ) == [
        "checking: clean 4",
        "checking: clean 4",
        "drifted: drifted 100",
        "detecting: drifted 4",
        "learning: drifted 4",
        "swapping: drifted 20",
        "swapping: drifted 20",
        "promoted: drifted 100",
    ]


def test_a_false_alarm_a_worse_model_and_a_rejected_one_are_gone_on_from() -> None:
    assert phases("drift.found")[-1] == "drifted: drifted 100"
    assert phases("drift.none", LOOK, "drift.none")[-1] == "drifted: drifted 100"
    assert phases("drift.none", "drift.found", WORSE)[-1] == "drifted: drifted 100"
    assert phases("drift.none", "drift.found", BETTER, "model.rejected")[-1] == "drifted: drifted 100"


RESPONSES = (
    Responses(kind="clean", revision="r1", right=96, wrong=4, failed=0),
    Responses(kind="drifted", revision="r1", right=60, wrong=39, failed=1),
    Responses(kind="drifted", revision="r2", right=9, wrong=1, failed=0),
)


def loop(**changes: Any) -> LoopOutcome:
    models = {"r1": "models:/m/1", "r2": "models:/m/2"}
    fields: dict[str, Any] = {"events": (), "responses": RESPONSES, "models": models, "seconds": 80.0}
    return LoopOutcome(**{**fields, **changes})


def test_the_end_tells_who_is_champion_how_well_each_read_and_what_failed() -> None:
    assert format_loop(loop(), Path("/tmp/x.html")) == [
        "",
        "  champion  models:/m/1 → models:/m/2, 80 s after the first prediction",
        "  accuracy  clean 96.0%; drifted 60.6%, then 90.0%",
        "  requests  210 sent, 1 failed",
        "  report    /tmp/x.html",
    ]
    server: Any = SimpleNamespace(get=lambda *_, **__: [], url="http://127.0.0.1:1")  # without labels
    client = ControlClient(lambda: server)
    page = render_report(client, sf.Application(name="mnist"), loop())
    assert all(figure in page for figure in ("60.6%", "90.0%", "80 s", "The loop of mnist"))
    outcome = loop().as_json()
    assert (outcome["failed"], outcome["accuracy"]["models:/m/2"]) == (1, {"clean": None, "drifted": 0.9})


def test_the_champion_is_the_version_that_was_promoted_and_not_the_one_on_its_way() -> None:
    models = {"r1": "models:/m/1", "r2": "models:/m/2", "r3": "models:/m/3"}
    promoted = event("model.promoted", version=2)
    assert loop(models=models, events=(promoted,)).order == ["models:/m/1", "models:/m/3", "models:/m/2"]
    assert loop(models=models).order[-1] == "models:/m/3"


def test_the_report_is_a_line_for_each_thing_and_what_is_refused_again_is_reported_once() -> None:
    stream = io.StringIO()
    refused = event("intent", subject="service/serve", agent="executor", verdict="refuse", primitive="upgrade_workflow")
    with open_output(stream) as output:
        screen = DemoScreen(output)
        for happened in (event("labels.given", count=5), event("sample"), refused, refused):
            screen.show(happened)
    assert [line.split(" s  ")[1] for line in stream.getvalue().splitlines()] == [
        "labels    5 labels",
        "executor  changes the model of serve: refuse",
    ]
    activities: list[str] = []
    screen = DemoScreen(Output(print=lambda *_: None, update=activities.append))
    screen.show_progress(Phase.CLEAN, ())
    screen.show_progress(Phase.LEARNING, RESPONSES)
    assert activities[0] == "sending clean digits, until there are enough to check"
    assert activities[1].endswith("; 209 predictions, 79% correct")


# The traffic program

ECHO = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
count = 0
for line in sys.stdin:
    count += 1
    row = {"kind": line.split()[0], "revision": "r1", "right": count, "wrong": 0, "failed": 0}
    print(json.dumps({"sent": [row]}), flush=True)
"""


@pytest.mark.processes
def test_traffic_takes_orders_and_says_why_it_cannot_begin(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(ECHO)
    with TrafficProgram(program, log=tmp_path / "log") as traffic:
        traffic.wait_until_ready()
        traffic.send("clean 5")
        traffic.send("drifted 5")
    assert traffic.responses == (Responses(kind="drifted", revision="r1", right=2, wrong=0, failed=0),)
    program.write_text("import sys; sys.exit('Error: no pictures')")
    with TrafficProgram(program, log=tmp_path / "log") as exited, pytest.raises(StepFailedError, match="no pictures"):
        exited.wait_until_ready()


# The loop, with a server that has been


class EventHistory:
    def __init__(self, *events: Event) -> None:
        self._events = events

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/events/newest"
        return {"id": 7}

    def events(self, path: str, **asked: str | None) -> Any:
        assert (path, asked) == ("/events", {"after": "7", "app": "mnist", "type": None, "timeout_s": None})
        for number, event in enumerate(self._events):
            yield type("Message", (), {"data": event.model_copy(update={"id": 8 + number}).model_dump_json()})


def closing(
    tmp_path: Path,
    *events: Event,
    timeout_s: float | None = PATIENCE_S,
    startup_s: float = 0.0,
    counted_s: float = 0.0,
    notify: Callable[[], None] = lambda: None,
) -> tuple[LoopOutcome, list[str]]:
    """Let a server tell these events; ``told`` is called after each."""
    program = tmp_path / "echo.py"
    program.write_text(ECHO)
    heard: list[str] = []
    server: Any = EventHistory(*events)

    def tell(event: Event) -> None:
        heard.append(event.type)
        notify()

    with TrafficProgram(program, log=tmp_path / "log") as traffic:
        traffic.wait_until_ready()
        outcome = run_loop(
            ControlClient(lambda: server),
            sf.Application(name="mnist"),
            traffic,
            models=lambda: {"r1": "models:/m/1"},
            tell=tell,
            look=lambda _phase, _responses: None,
            timeout_s=timeout_s,
            startup_s=startup_s,
            tail_s=0.0,
            counted_s=counted_s,
        )
    return outcome, heard


@pytest.mark.processes
def test_the_loop_ends_with_a_promotion(tmp_path: Path) -> None:
    promoted = event("model.promoted", version=2)
    outcome, heard = closing(tmp_path, event("drift.none"), event("drift.found"), BETTER, promoted)
    assert heard == ["drift.none", "drift.found", "model.judged", "model.promoted"]
    assert [entry.id for entry in outcome.events] == [8, 9, 10, 11]
    assert outcome.sent > 0


@pytest.mark.processes
def test_the_loop_waits_until_all_requests_to_the_champion_are_counted(tmp_path: Path) -> None:
    promoted = event("model.promoted", version=1)
    counts = [
        event("service.measured", version=version, requests=n, errors=0, since=BEGAN)
        for version, n in (("V2", 90), ("V1", 1), ("V1", 9))
    ]
    outcome, heard = closing(
        tmp_path, event("drift.found"), BETTER, promoted, *counts, event("drift.none"), counted_s=PATIENCE_S
    )
    assert 1 < outcome.sent <= 10  # one for each order
    assert heard[-4:] == ["model.promoted", *["service.measured"] * 3]


@pytest.mark.processes
def test_a_failed_run_or_its_time_ends_the_loop(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError, match=r"calm-otter-1.*no memory.*scanflow logs calm-otter-1"):
        closing(tmp_path, event("run.failed", subject="run/calm-otter-1", error="no memory"))
    with pytest.raises(UnavailableError, match=r"scanflow up.*scanflow why.*scanflow events"):
        closing(tmp_path, event("drift.none"), timeout_s=0.1)
    refusal = {"verdict": "refuse", "primitive": "run_workflow", "agent": "planner", "reason": "It cools down."}
    with pytest.raises(
        UnavailableError, match=r"Last refused request: run_workflow by planner\. It cools down\. If the demo"
    ):
        closing(tmp_path, event("intent", **refusal), timeout_s=0.1)


@pytest.mark.processes
def test_a_slow_machine_gets_longer_and_the_message_says_what_was_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def hour() -> None:
        now[0] += 3600.0

    monkeypatch.setattr("scanflow_client.demo.loop.time", SimpleNamespace(time=lambda: now[0]))
    message = r"within 3000 s, and start-up took 500 s\. The last 3600 s it was sending drifted digits, until there are"
    with pytest.raises(UnavailableError, match=message):
        closing(tmp_path, event("drift.none"), startup_s=500.0, timeout_s=None, notify=hour)
    program = tmp_path / "slow.py"
    program.write_text("import sys; sys.stdin.read()")
    monkeypatch.setattr("scanflow_client.demo.demo_traffic.READY_S", 0.1)
    message = r"did not read its digits within 1 s \(start-up: 0 s\)"
    with TrafficProgram(program, log=tmp_path / "log") as slow, pytest.raises(UnavailableError, match=message):
        slow.wait_until_ready(startup_s=0.3)


def test_the_report_has_the_share_of_right_answers_over_time_by_version() -> None:
    def make_counts(at: float, first: int, other: int) -> tuple[float, tuple[Responses, ...]]:
        rows = {"r1": first, "r2": other}
        return at, tuple(
            Responses(kind="drifted", revision=id, right=n // 2, wrong=n - n // 2, failed=1) for id, n in rows.items()
        )

    history = (make_counts(1.0, 30, 0), make_counts(2.0, 60, 0), make_counts(3.0, 80, 40), make_counts(4.0, 80, 50))
    answers = loop(history=history, models={"r1": "models:/m/1", "r2": "models:/m/2"}).score_answers()
    assert [(answer.at, answer.version, answer.right, answer.n) for answer in answers] == [
        (2.0, "V1", 30, 60),
        (3.0, "V2", 20, 40),
        (4.0, "V1", 10, 20),
        (4.0, "V2", 5, 10),
    ]


# What it needs


@pytest.mark.parametrize(("data", "drifted"), [("digitz", None), ("digits", Path("nothere.npz"))])
def test_data_that_is_not_there_is_reported_before_anything_is_started(data: str, drifted: Path | None) -> None:
    with pytest.raises(NotFoundError, match=r"digitz|nothere"):
        load_demo(data, drifted)


def test_the_demo_is_the_tutorial_of_the_loop() -> None:
    app, path, parameters, drifted = load_demo("digits")
    assert (path.name, drifted, parameters) == ("loop.py", None, {"load-data.data": "digits"})
    assert [agent.name for agent in app.agents] == ["tracker", "checker", "planner", "executor"]
    served: Any = type("Served", (), {"url": "http://127.0.0.1:9", "app": "mnist", "team": "datascience"})
    program, arguments = get_traffic_program(path, served, Path("/c.npz"))
    assert program.is_file()
    assert arguments[-2:] == ["--drifted_path", "/c.npz"]
