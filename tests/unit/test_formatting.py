"""Records as people see them: whole screens, kept as files."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import time
import types
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from scanflow.agent.agent_records import Action, AgentView, Decision, Event, Intent, SensorReport
from scanflow.agent.trigger_text import format_trigger
from scanflow.app.plan import UNBOUNDED, Plan, PlannedInstance, PlannedStep
from scanflow.app.quantities import format_count
from scanflow.backends.run_records import EnvironmentReady, RunRecord, StepFile, TaskEnded, TaskRecord, Waiting
from scanflow.backends.service_records import (
    CanaryPolicy,
    Explanation,
    InstanceRecord,
    RevisionRecord,
    ServiceRecord,
    Shape,
)
from scanflow.images.building import ImageRecord
from scanflow.images.recipe import Recipe
from scanflow.images.recipes import PlannedImage
from scanflow.names import RunName, StepName
from scanflow.text.failures import Failure
from scanflow_client.formatting import (
    agent_text,
    control_plane_text,
    image_text,
    label_text,
    run_text,
    service_text,
    text,
)
from scanflow_client.formatting.text_table import Table, lay_out
from scanflow_client.progress import RunProgress
from tests.snapshots import assert_snapshot

NOW = 1_790_000_000.0


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def render_screen(*screen: str | Table, width: int | None = None) -> str:
    """Return a screen as it is printed."""
    return "\n".join("\n".join([part] if isinstance(part, str) else lay_out(part, width)) for part in screen)


# Runs


def task(name: str, state: Any = "succeeded", **fields: Any) -> TaskRecord:
    options: dict[str, Any] = {"seconds": 1.5, "attempts": 1, "cpu_s": 1.2, "max_rss_bytes": 30 * 2**20}
    return TaskRecord(task=StepName(name), step=name.partition(".")[0], state=state, **{**options, **fields})


def run(state: Any = "succeeded", *tasks: TaskRecord, **fields: Any) -> RunRecord:
    options: dict[str, Any] = {"name": RunName("calm-otter-417"), "app": "shop", "team": "data", "workflow": "training"}
    options |= {"created": NOW - 200, "seconds": 83.0, "folder": "/home/runs/calm-otter-417"}
    return RunRecord(state=state, tasks=tasks, **{**options, **fields})


FAILED = Failure(
    summary="exit code 1", frames=("train.py:6 in pick: row['age']",), cause="KeyError: 'age'\n  of the row"
)


def test_a_fan_out_took_as_long_as_the_page_says_and_not_the_sum_of_its_tasks() -> None:
    tasks = [task(f"train.{at}", began=NOW - 100 + 10 * at, seconds=12.0) for at in range(3)]
    rows = render_screen(*run_text.format_run(run("succeeded", *tasks))).splitlines()
    assert "32.0 s" in next(row for row in rows if "train ×3" in row)


def test_why_a_cached_step_ran_is_said_in_its_line_and_below_the_table() -> None:
    note = "not reused: the code of features.py changed"
    record = task("train", cache_note=note)
    assert run_text.format_task(record) == f"  ✓ train                           1.50 s  {note}"
    items = [task(f"clean.{number}", cache_note=note if number else None) for number in range(3)]
    shown = render_screen(*run_text.format_run(run("succeeded", *items, record)))
    assert shown.count(note) == 2
    assert f"  ! clean: {note}\n  ! train: {note}\n" in shown
    progress = RunProgress()
    ends = [TaskEnded(run=RunName("r"), record=item, width=3, left=2 - place) for place, item in enumerate(items)]
    assert [line.rpartition("  ")[2] for end in ends for line in progress.update(end)] == [note]


def test_what_a_step_waits_for_is_said_below_the_table() -> None:
    waiting = task("train", "pending", waits_for="a GPU: it is taken", attempts=0, seconds=None)
    shown = render_screen(*run_text.format_run(run("running", task("clean"), waiting)))
    assert "  … train waits for a GPU: it is taken\n" in shown


def render(activity: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as text:
        console.print(activity)
    return text.get()


def test_what_a_run_waits_for_is_said_where_nothing_is_drawn() -> None:
    what = RunName("r"), "the pods of train"
    progress = RunProgress()
    for why in ("Schedulable: no room", "Pulling: its image"):
        waiting = Waiting(run=what[0], what=what[1], why=why)
        assert progress.update(waiting) == [f"  … waiting for the pods of train: {why}"]
        assert "train" in render(progress)
        assert RunProgress(is_drawn=True).update(waiting) == []
    progress.update(EnvironmentReady(run=what[0], what=what[1], seconds=61.0))
    assert "train" not in render(progress)


def test_runs() -> None:
    fan_out = [task("train.0"), task("train.1", "failed", attempts=2, failure=FAILED), task("train.2", "running")]
    failed = run(
        "failed", task("load", origin="old-fox-1"), *fan_out, task("total", "skipped", attempts=0, seconds=None)
    )
    empty = task("score", "empty", attempts=0, seconds=None, cpu_s=None, max_rss_bytes=None)
    names = [("load", "data.csv"), *((f"train.{index}", "model.bin") for index in range(7))]
    files = [StepFile(task=StepName(step), name=name, size_bytes=2048, path=f"/o/{name}") for step, name in names]
    alone = run("failed", task("load", "failed", attempts=0, failure=Failure(summary="no such file")), error="e")
    screens = [
        *("# list", *run_text.format_runs([run(), run("interrupted", seconds=None)])),
        *("# show", *run_text.format_run(failed)),
        *("# show, stopped", *run_text.format_run(run("stopped", task("load", "stopped")))),
        *("# show, without items, with files", *run_text.format_run(run("succeeded", task("load"), empty), files)),
        *(
            "# failures",
            *run_text.format_failure(alone),
            *run_text.format_failure(run("failed", error="the disk is full")),
        ),
        *("# lines", *(run_text.format_task(record) for record in (*failed.tasks, empty))),
        *(
            "# outcomes",
            *(run_text.format_outcome(run(state)) for state in ("succeeded", "failed", "stopped", "running")),
        ),
        *(
            "# outputs",
            *run_text.format_output("r1", "select", {"rate": 0.3}),
            *run_text.format_output("r1", "x", list(range(1000))),
        ),
    ]
    assert_snapshot("runs", render_screen(*screens))


def test_a_failure_takes_at_most_twelve_lines() -> None:
    failure = Failure(summary="exit code 1", frames=("a", "b", "c"), cause="\n".join("defghijkl"))
    assert len(run_text.format_failure(run("failed", task("load", "failed", failure=failure)))) == 12


def test_plans() -> None:
    step = PlannedStep(name="load", wave=0, runs="load.py", after=(), cores=1, memory_bytes=None)
    fanned = PlannedStep(
        name="train", wave=1, runs="app.py:train", after=("load",), cores=2, memory_bytes=2**30, width=None,
        notes=("for each load.result", "1 retry"),
    )  # fmt: skip
    sizes: dict[str, Any] = {"machine_cores": 8, "machine_memory_bytes": 2**34, "peak_cores": 8}
    batch = Plan(workflow="w", steps=(step, fanned), waves=2, peak_memory_bytes=2**32, unsized=1, **sizes)
    node = PlannedStep(
        name="cnn", wave=0, runs="models:/cnn/1", after=(), cores=1, memory_bytes=None, notes=("MODEL", "batches of 8"),
    )  # fmt: skip
    instance = PlannedInstance(name="1", cores=4, cpus=(0, 1, 2, 3), memory_nodes=(0,), threads=4)
    graph = Plan(
        workflow="g", steps=(node,), waves=1, peak_memory_bytes=0, unsized=1, instances=(instance,), **sizes
    )  # fmt: skip
    both = run_text.format_check("shop", [batch, graph], {"w": "batch", "g": "online"}, file="app.py", target=None)
    alone = run_text.format_check("shop", [graph], {"g": "online"}, file="app.py", target="app.py:g")
    screens = [*run_text.format_plan(batch, online=False), *run_text.format_plan(graph, online=True), *both, *alone]
    assert_snapshot("plans", render_screen(*screens))


# Services

CURRENT = RevisionRecord(id="r1", models={"cnn": "models:/cnn/3"}, requests=90, rps=1.5, p50_s=0.004, p95_s=0.0123)
CANARY = RevisionRecord(
    id="r2", models={"cnn": "models:/cnn/4"}, weight=0.1, role="canary", requests=10, errors=1, rps=0.5, p95_s=2.5
)
SHADOW = CANARY.model_copy(update={"shadow": True, "role": "shadow"})
READY = InstanceRecord(
    instance="1", state="ready", began=NOW - 5, restarts=1, threads=3,
    rss_bytes=60 * 2**20, cpu_share=0.5, in_flight=2, error="ended by signal 9",
).with_details(pid=42, cpus=[0, 1, 4], memory_nodes=[0])  # fmt: skip
WAITING = InstanceRecord(instance="2", state="waiting", error="ended by signal 9. Its log: scanflow logs")


POD = InstanceRecord(
    instance="digits-r3-65666f5c8b-zbml2", state="ready", place="node0", began=NOW - 90, cores=1, threads=9,
    rss_bytes=62 * 2**20,
).with_details(
    qos="Guaranteed", cpus=[1], requested={"cpu": "1", "memory": "256Mi"}, granted={"cpu": "1", "memory": "256Mi"},
)  # fmt: skip


def service(**fields: Any) -> ServiceRecord:
    options: dict[str, Any] = {"name": "digits", "app": "mnist", "team": "data", "state": "ready", "generation": 1}
    options |= {"url": "http://127.0.0.1:46700", "folder": "/f", "revisions": (CURRENT,)}
    options |= {"shape": Shape(instances=2, cores=1, affinity="cpumem")}
    options |= {"ready": sum(instance.state == "ready" for instance in fields.get("instances", ()))}
    return ServiceRecord.model_validate({**options, **fields})


def test_images() -> None:
    base = Recipe(app="shop", team="data", base="scanflow/base:latest", code="c0de")
    trained = base.model_copy(update={"requirements": ("numpy==2.3.1",)})
    wanted = [
        PlannedImage("training", ("load",), base),
        PlannedImage("training", ("train",), trained),
        PlannedImage("serving", ("scale", "cnn"), base),
    ]
    states: list[tuple[Literal["built", "unchanged"], bool]] = [("built", True), ("built", False), ("unchanged", True)]
    records = [
        ImageRecord(
            image=image.recipe.format_name("r.example.com"), workflow=image.workflow, nodes=image.nodes,
            state=state, pushed=pushed, seconds=1.5,
        )
        for image, (state, pushed) in zip(wanted, states, strict=True)
    ]  # fmt: skip
    screens = [
        *("# built", *image_text.format_build(records, "app.py")),
        *("# pushed", *image_text.format_build(records[:1], None)),
        *("# nothing", *image_text.format_build([], None)),
        *("# printed", *image_text.format_dockerfiles(wanted, "r.example.com")),
    ]
    assert_snapshot("images", render_screen(*screens))


def test_services() -> None:
    many = service(state="degraded", instances=[READY, WAITING], revisions=[CURRENT, CANARY], recorded=5, dropped=1)
    backup = service(state="backup", backup="spare", grpc="127.0.0.1:46701", shape=Shape(cores=1.5), revisions=[])
    wrong = service(
        instances=[WAITING], error="instance 2: ended by signal 9", failed_change=2, shape=Shape(affinity="cpu")
    )
    lost = {"number": 0, "uuid": "GPU-0", "name": "NVIDIA H100", "sharing": "exclusive", "fault": "GPU is lost"}
    waits = WAITING.model_copy(update={"waits_for": "a GPU: GPU 1 is granted to other/1"}).with_details(devices=[lost])
    without_gpu = service(instances=[waits], error="ended by signal 9")
    denied = service(instances=[], error="the quota is exceeded")
    classes = service(revisions=[RevisionRecord(id="r7")])
    judged = service(revisions=[CURRENT, CANARY], policy=CanaryPolicy(slack=0.01))
    explanation = Explanation(
        service="digits", at=NOW, metric="rps", sample=31.0, target=20, up=20, down=16, instances=2, wanted=4,
        formula="ceil(2 x 31.0 / 20.0) = 4, at most max=3", decision="add 1",
    )  # fmt: skip
    screens = [
        *("# list", *service_text.format_services([many, backup, service(revisions=[CURRENT, SHADOW]), classes])),
        *("# one", *service_text.format_service(many)),
        *("# canary", *service_text.format_service(service(revisions=[CURRENT, CANARY]))),
        *("# a rule", *service_text.format_service(judged)),
        *("# backup", *service_text.format_service(backup)),
        *("# a failed change", *service_text.format_service(wrong)),
        *("# a lost GPU", *service_text.format_service(without_gpu)),
        *("# a refused pod", *service_text.format_service(denied)),
        *("# on a cluster", *service_text.format_service(service(instances=[POD]))),
        *("# explained", *service_text.format_explanation(explanation)),
        *service_text.format_explanation(explanation.model_copy(update={"sample": None}))[:2],
        *service_text.format_explanation(explanation.model_copy(update={"target": 0})),
    ]
    assert_snapshot("services", render_screen(*screens))
    assert service_text.format_served_models(service(revisions=[CURRENT, SHADOW])) == "cnn/3", "a shadow answers nobody"


def test_example_requests_can_be_pasted() -> None:
    curl, ours = service_text.format_request_examples(service(), [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}])
    body = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0.5, 0.5, 0.5]}]}
    assert json.loads(shlex.split(curl)[-1]) == body
    assert json.loads(shlex.split(ours)[-1]) == [[0.5, 0.5, 0.5]]
    two = [{"name": name, "datatype": "INT64", "shape": [-1]} for name in "ab"]
    assert json.loads(shlex.split(service_text.format_request_examples(service(), two)[1])[-1]) == [{"a": 1, "b": 1}]
    odd = [{"name": "it's", "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "datetime"}}]
    curl, named = service_text.format_request_examples(service(), odd)
    assert json.loads(shlex.split(named)[-1]) == [{"it's": "2024-03-01T12:30:00"}]
    assert json.loads(shlex.split(curl)[-1])["inputs"][0]["data"] == ["2024-03-01T12:30:00"]
    lists = [
        {"name": "input-0", "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "application/json"}}
    ]
    assert service_text.format_request_examples(service(), lists)[1].endswith("scanflow predict digits rows.json")
    picture = [{"name": "x", "datatype": "UINT8", "shape": [-1, 28, 28]}]
    assert_snapshot("requests", render_screen(*service_text.format_request_examples(service(), picture), ours))
    assert "--data '[[" in service_text.format_request_examples(service(), [])[1]


# Agents and the control plane


def test_agents() -> None:
    sensors = (
        SensorReport(name="count", trigger={"kind": "interval", "seconds": 3600.0}, fired=12, last=NOW - 5, missed=3),
        SensorReport(name="look", trigger={"kind": "call"}, next=NOW + 60, errors=1),
        SensorReport(name="late", trigger={"kind": "date", "when": "2026-01-31"}, next=NOW - 60),
    )
    tracker = AgentView(
        name="tracker", app="mnist", team="data", state="running", url="http://a", started=NOW - 60, sensors=sensors
    )
    checker = AgentView(name="checker", app="mnist", team="data", state="silent", error="line 3")
    screens = [
        *agent_text.format_agents([], detailed=False),
        *agent_text.format_agents([tracker, checker], detailed=False),
        *agent_text.format_agents([tracker], detailed=True),
    ]
    assert_snapshot("agents", render_screen(*screens))


TRIGGERS: list[dict[str, Any]] = [
    {"kind": "interval", "seconds": 5.0},
    {"kind": "date", "when": "2026-01-31T06:00:00Z"},
    {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"},
    {"kind": "cron", "expression": "0 * * * *", "timezone": "Europe/Madrid"},
    {"kind": "event", "type": "run.failed", "match": {}},
    {"kind": "all_of", "triggers": [{"kind": "call"}, {"kind": "event", "type": "a", "match": {"b": 1}}]},
    {"kind": "any_of", "triggers": [{"kind": "call"}]},
    {"kind": "moon"},
]
ENTRIES: list[tuple[str, dict[str, Any]]] = [
    ("sample", {"value": 1204, "cause": "interval:1", "error": None}),
    ("sample", {"value": None, "cause": "interval:1", "error": "no such run"}),
    ("intent", {"primitive": "run_workflow", "arguments": {"workflow": "w"}, "target": "workflow/w", "rule": "n > 1"}),
    ("call", {"agent": "checker", "sensor": "look", "args": [5], "kwargs": {"a": 1}}),
    ("decision", {"key": "k", "answer": {"verdict": "queue", "reason": "It cools down."}}),
    ("decision", {"key": "k", "answer": {"sample": "s9"}}),
    ("missed", {"reason": "late", "count": 3}),
    ("refused", {"key": "k", "error": "no such\nagent"}),
    ("new", {"some": "thing"}),
]


def journal_entry(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"id": 1, "at": NOW, "kind": kind, "subject": "count", "body": body}


def action(state: Any, verdict: Any, **changes: Any) -> Action:
    fields: dict[str, Any] = {"id": "a1", "agent": "tracker", "app": "mnist", "team": "data", "at": NOW}
    intent = Intent(
        **fields, strategy="count", primitive="run_workflow", arguments={"workflow": "w"}, target="workflow/w",
        fields=("running",), rule="n > 1", key="k",
    )  # fmt: skip
    decision = Decision(intent="a1", verdict=verdict, reason="It needs approval.", at=NOW)
    return Action(id="a1", intent=intent, state=state, decision=decision, began=None, ended=None, **changes)


def test_triggers_journals_and_actions() -> None:
    actions = [
        *(action("pending", verdict) for verdict in ("act", "approve", "queue", "suggest")),
        *(action(state, "act") for state in ("running", "succeeded", "observed", "lost")),
        action("failed", "act", error="no such run"),
        action("reverted", "act", reverted_by="ada"),
    ]
    screens: list[str | Table] = [
        *(format_trigger(trigger) for trigger in TRIGGERS),
        *agent_text.format_journal([journal_entry(kind, body) for kind, body in ENTRIES], "mnist:count"),
        *(agent_text.format_action(entry) for entry in actions),
        *agent_text.format_actions(actions[:2]),
        *agent_text.format_approvals(actions[:1]),
    ]
    assert_snapshot("actions", render_screen(*screens))


@pytest.mark.parametrize(
    ("primitive", "asked", "models", "reason"),
    [
        (
            "change",
            {"model": "models:/cnn/3", "reason": "the audit"},
            {"m": "models:/cnn/3"},
            "models:/cnn/3: the audit",
        ),
        ("change", {"model": "models:/cnn/3"}, {}, "models:/cnn/3"),
        ("change", {"model": "models:/cnn/3", "weight": 0.1}, {}, "models:/cnn/3 as a canary"),
        ("change", {"rollback": True}, {"m": "models:/cnn/2"}, "rollback to models:/cnn/2"),
        ("change", {"promote": True}, {"m": "models:/cnn/3"}, "models:/cnn/3"),
        ("deploy", {}, {"m": "models:/cnn/1"}, "models:/cnn/1"),
        ("change", {"instances": 2}, {"m": "models:/cnn/1"}, ""),
    ],
)
def test_a_persons_change_names_its_version_and_reason(
    primitive: str, asked: dict[str, Any], models: dict[str, str], reason: str
) -> None:
    done = action("succeeded", "act", result={"models": models})
    about = {"source": "person", "primitive": primitive, "arguments": {"service": "digits", **asked}}
    done = done.model_copy(update={"intent": done.intent.model_copy(update=about)})
    table, *_ = agent_text.format_actions([done])
    assert isinstance(table, Table)
    assert table.rows[0][-1] == (reason or done.decision.reason)
    failed = done.model_copy(update={"state": "failed", "error": "no room"})
    assert agent_text.format_action(failed).endswith("no room")


def test_the_label_queue_and_what_people_disagree_on() -> None:
    sample = {"id": "img/17", "app": "mnist", "data": {"index": 17}, "guess": 3, "score": 0.75, "purpose": "train"}
    row = {**sample, "id": "r/1", "run": "tall-fox", "row": {"latitude": 1.23456789, "city": "Vic", "rooms": None}}
    votes = [{"by": "ada", "label": 7, "at": NOW - 60}, {"by": "bob", "label": "x", "at": NOW}]
    page = "http://127.0.0.1:46666/labels"
    screens: list[str | Table] = [
        *label_text.format_labels([sample], limit=1, page=page),
        *label_text.format_labels([{**sample, "data": {"shape": [28, 28]}}, row], limit=9, page=page),
        *label_text.format_labels([row], limit=9, page=page),
        *label_text.format_votes([{**row, "label": "x", "disputed": True, "votes": votes}], disputed=True),
        *label_text.format_votes([], disputed=True),
        *label_text.format_votes([], disputed=False),
    ]
    assert_snapshot("labels", render_screen(*screens))


def test_what_was_decided_of_a_model_is_an_event_in_text() -> None:
    evidence: dict[str, Any] = {"verdict": "wait", "reason": "evaluated on 40 points of 50", "slices": []}
    line = control_plane_text.format_event(Event(at=NOW, type="model.judged", app="a", data={"evidence": evidence}))
    assert line.endswith("evaluated on 40 points of 50")


def test_the_columns_that_drifted_are_the_first_that_an_event_says() -> None:
    columns = [{"name": name, "reference": {"mean": 1.0, "sd": 2.0}} for name in ("income", "age")]
    data: dict[str, Any] = {"agent": "checker", "anomalies": 572, "statistic": 12.0, "columns": columns, "picked": []}
    line = control_plane_text.format_event(Event(at=NOW, type="drift.found", app="a", data=data))
    assert line.endswith(
        '{"columns": ["income", "age"], "agent": "checker", "anomalies": 572, "statistic": 12.0, "picked": []}'
    )


@pytest.mark.parametrize(
    ("peak", "machine", "text"),
    [
        (0, 2, "8 of 8 cores and "),
        (2, 2, "8 of 8 cores, 2 of 2 GPUs and "),
        (0.5, 1, "8 of 8 cores, 0.5 of 1 GPUs and "),
        (1, UNBOUNDED, "8 of 8 cores, 1 GPU and "),
        (float(UNBOUNDED), UNBOUNDED, "8 of 8 cores, as many GPUs as there are and "),
    ],
)
def test_a_plan_says_how_many_gpus_its_steps_take_at_once_and_its_notes(peak: float, machine: float, text: str) -> None:
    sizes: dict[str, Any] = {"machine_cores": 8, "machine_memory_bytes": 2**34, "peak_cores": 8, "unsized": 1}
    plan = Plan(
        workflow="w",
        steps=(),
        waves=1,
        peak_memory_bytes=0,
        peak_gpus=peak,
        machine_gpus=machine,
        notes=("x.",),
        **sizes,
    )
    _, note, most = run_text.format_plan(plan)
    assert note == "x."
    assert str(most).startswith(f"At most {text}")


def test_the_control_plane() -> None:
    server = {"url": "http://127.0.0.1:46666", "pid": 8, "ready": True, "reason": None}
    tracker = {"url": "http://t", "pid": 7, "alive": True, "ready": False, "log": "/log"}
    status = {"started": NOW - 60, "database": "sqlite", "counts": {"events": 4, "open_runs": 0}}
    agent = {"name": "tracker", "app": "mnist", "team": "data", "state": "running", "started": NOW, "restarts": 1}
    status |= {"agents": [agent]}
    up = {"up": True, "server": server, "tracker": tracker, "status": status}
    ill = {**up, "server": {**server, "ready": False, "reason": "a\nb"}, "tracker": {**tracker, "alive": False}}
    screens = [
        *control_plane_text.format_status(up),
        *control_plane_text.format_status({**ill, "status": None}),
        *control_plane_text.format_status({"up": False}),
        control_plane_text.format_event(
            Event(at=NOW, type="sample", app="a", subject="s", data={"value": "a\nb" * 500})
        ),
    ]
    assert_snapshot("control-plane", render_screen(*screens))


def test_secrets_among_arguments_and_in_events_are_stars() -> None:
    body = {"primitive": "run_workflow", "target": "workflow/w", "arguments": {"parameters": {"token": "hunter2"}}}
    (intent,) = agent_text.format_journal([journal_entry("intent", body)], "mnist:count")
    event = control_plane_text.format_event(
        Event(at=NOW, type="run.started", data={"parameters": {"db_password": "hunter2"}})
    )
    assert "hunter2" not in intent + event
    assert "***" in intent
    assert "***" in event


# Amounts and tables


@pytest.mark.parametrize(
    ("formatted", "message"),
    [
        (text.format_bytes(1023), "1023 B"),
        (text.format_bytes(1536), "1.5 KiB"),
        (text.format_bytes(2**50), "1024.0 TiB"),
        (format_count(1, "step"), "1 step"),
        (format_count(1200, "strategy"), "1,200 strategies"),
        (text.format_age(0, now=59), "59 s ago"),
        (text.format_age(0, now=7200), "2 h ago"),
        (text.format_age(0, now=200_000), "2 d ago"),
        (text.format_age(None), "-"),
        (text.format_latency(0.0123), "12.3 ms"),
        (text.format_amount(1120.4), "1,120"),
        (text.format_amount(999.6), "1,000"),
        (text.format_amount(35.55), "35.5"),
        (text.format_amount(0.0), "0"),
        (text.format_amount(12345.6, 4), "12,350"),
        (text.format_amount(999.96, 4), "1,000"),
        (text.format_amount(11.636, 4), "11.64"),
        (text.format_amount(147.84, 4), "147.8"),
        (text.format_amount(math.nan, 4), "nan"),
        (text.format_percent(0.5), "50.0%"),
        (text.format_percent(None), "-"),
        (text.shorten("a\n\x1b[31mb" + "c" * 500)[:5], "a bcc"),
    ],
)
def test_amounts(formatted: str, message: str) -> None:
    assert formatted == message


TABLE = Table(
    ("run", "workflow", "state"),
    [("calm-otter-417", "shop:training", "3 succeeded, 1 failed"), ("x", "shop:training-of-digits", "running\x1b[2J")],
)


@pytest.mark.parametrize("width", [None, 60, 48, 20])
def test_a_table_is_laid_out_for_the_terminal(width: int | None) -> None:
    assert_snapshot(f"table-{width or 'unlimited'}", render_screen(TABLE, width=width))


words = st.text("abcdefgh", min_size=1, max_size=12)


@given(
    st.lists(st.lists(st.lists(words, max_size=4).map(" ".join), min_size=3, max_size=3), max_size=4),
    st.integers(1, 90),
)
def test_no_word_is_broken_and_none_is_lost_at_any_width(rows: Sequence[Sequence[str]], width: int) -> None:
    lines = lay_out(Table(("one", "two", "three"), rows), width)
    words_ = " ".join(lines).split()
    for row in rows:
        for cell in row:
            for word in cell.split():
                assert word in words_
                words_.remove(word)


def _make_circle() -> list[object]:
    circle: list[object] = [1]
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("value", "document"),
    [
        ([math.nan, math.inf, {"a": -math.inf}], [None, None, {"a": None}]),
        (np.array([[1.0, math.nan]]), [[1.0, None]]),
        (np.float32(0.5), 0.5),
        ({(1, 2): 3}, {"1,2": 3}),
        (re.compile("a+"), "a+"),
        (_make_circle(), "[1, [...]]"),
        (b"\xff", "b'\\xff'"),
        (types.SimpleNamespace(a=1), "namespace(a=1)"),
    ],
)
def test_whatever_a_step_returned_is_printed_as_json(value: Any, document: Any) -> None:
    assert json.loads(json.dumps(text.to_document(value), allow_nan=False)) == document
    assert len(text.format_value(value, whole="scanflow output")) <= 12
