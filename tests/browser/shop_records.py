"""What the agents of a shop would have stored for half an hour: samples, decisions, findings and judgements."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from scanflow.agent.agent_records import JSON, Decision, Event, PrimitiveCall, Sample
from scanflow_server.store import event_store, intent_store
from scanflow_server.store.base import open_store
from scanflow_server.store.intent_store import ActionRow
from scanflow_server.store.migrations import migrate
from tests.unit.server.server_rows import make_action_row

APP, TEAM, MODEL, SERVICE, AGENT = "shop", "data", "digits-model", "digits", "watch"
PERIOD_S = 1800.0
SAMPLES = 30
RULE = "latency.p95 > 0.2 (it was 0.31)"
EVIDENCE: dict[str, JSON] = {
    "verdict": "promote",
    "reason": "it is better on current data, and not worse on clean",
    "version": 2,
    "champion": 1,
    "n": 350,
    "run": "wolf",
    "traffic": {"current": 0.9, "clean": 0.1},
    "drifted": ["brightness", "city"],
    "slices": [
        {"name": "current", "n": 250, "champion_right": 196, "challenger_right": 214,
         "gain": 0.07, "low": 0.03, "high": 0.1},
        {"name": "clean", "n": 100, "champion_right": 95, "challenger_right": 94,
         "gain": -0.01, "low": -0.03, "high": 0.02},
    ],
}  # fmt: skip
COLUMNS: list[dict[str, Any]] = [
    {
        "name": "brightness", "test": "ks", "statistic": 0.41, "p": 0.0001, "effect": 0.9,
        "reference": {"mean": 0.42, "sd": 0.1}, "current": {"mean": 0.57, "sd": 0.12},
        "shares": {
            "bins": ["0.2", "0.4", "0.6", "0.8"],
            "reference": [0.2, 0.5, 0.2, 0.1],
            "current": [0.05, 0.25, 0.4, 0.3],
        },
    },
    {
        "name": "city", "test": "chi2", "statistic": 88.0, "p": 0.003, "effect": 0.3,
        "reference": {"Vic": 0.7, "Girona": 0.2, "a-name-that-is-rather-long-for-a-city": 0.1},
        "current": {"Vic": 0.3, "Girona": 0.6, "a-name-that-is-rather-long-for-a-city": 0.1},
    },
    {
        "name": "<i>latitude</i>", "test": "ks", "statistic": 0.3, "p": 0.01, "effect": 0.2,
        "reference": {"mean": 41.4, "sd": 0.5}, "current": {"mean": 42.0, "sd": 0.4},
    },
]  # fmt: skip


def fill_store(path: Path) -> None:
    """Store it in the database of a server that has not started yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(open_store(f"sqlite:///{path}")) as store:
        migrate(store)
        now = time.time()
        with store.write() as connection:
            for row in list_actions(now):
                intent_store.add(connection, row)
            event_store.append(connection, sorted(list_events(now), key=lambda event: event.at), team=TEAM)


def list_actions(now: float) -> Iterator[ActionRow]:
    """Yield three actions that wait for a person, and those that agents did, each in one of the ways it may end."""
    training: Mapping[str, Any] = {"workflow": "training", "app": APP, "team": TEAM}
    for number in range(1, 4):
        yield _build_action(f"i-{number}", now - 60 * number, "approve", strategy="retrain", arguments=training)
    resized: dict[str, Any] = {
        "primitive": "update_workflow_replica",
        "target": f"service/{SERVICE}",
        "strategy": "scale",
    }
    more: dict[str, Any] = {"workflow": SERVICE, "instances": 2}
    undo = PrimitiveCall(primitive="update_workflow_replica", arguments={**more, "instances": 1})
    yield _build_action("i-resized", now - 1500, "act", **resized, rule=RULE, arguments=more, inverse=undo)
    yield _build_action("i-refused", now - 1200, "refuse", **resized, rule=RULE, arguments=more)
    failed: dict[str, Any] = {
        "state": "failed",
        "error": "Two instances do not fit beside what runs: 1 of 2 cores is free.",
    }
    yield _build_action(
        "i-failed", now - 900, "act", **resized, rule=RULE, arguments={**more, "instances": 9}, **failed
    )
    promoted: dict[str, Any] = {
        "primitive": "upgrade_workflow",
        "target": f"service/{SERVICE}",
        "strategy": "change_model",
    }
    sample = Sample(
        id="s-judged", agent=AGENT, sensor="judged", at=now - 620, value={"evidence": EVIDENCE}, cause="event:2"
    )
    yield _build_action(
        "i-promoted",
        now - 600,
        "act",
        **promoted,
        sample=sample,
        arguments={"workflow": SERVICE, "model": f"models:/{MODEL}/2"},
        inverse=PrimitiveCall(primitive="upgrade_workflow", arguments={"model": f"models:/{MODEL}/1"}),
    )


def _build_action(id: str, at: float, verdict: str, **changes: Any) -> ActionRow:
    states = {"act": "succeeded", "approve": "pending", "refuse": "refused"}
    done = {name: changes.pop(name) for name in ("inverse", "error") if name in changes}
    state = changes.pop("state", states[verdict])
    fields = {"primitive": "run_workflow", "target": "workflow/training", "fields": ("running",), **changes}
    row = make_action_row(id, state, verdict, app=APP, team=TEAM, agent=AGENT, key=f"k-{id}", at=at, **fields)
    reasons = {"act": "Nothing speaks against it.", "approve": "Its strategy asks a person first."}
    reason = reasons.get(verdict, "The service was resized a moment ago: it may be changed again in 5 minutes.")
    decision = Decision.model_validate({"intent": id, "verdict": verdict, "reason": reason, "at": at + 1})
    times: dict[str, Any] = {"began": at + 1, "ended": at + 9} if verdict == "act" else {}
    return row.replace(action={"decision": decision, **times, **done})


def list_events(now: float) -> Iterator[Event]:
    for number in range(SAMPLES):
        at = now - PERIOD_S * (SAMPLES - number) / SAMPLES
        p95 = 0.12 + 0.1 * (1 + math.sin(number / 3))
        yield _build_sample(f"s-{number}", at, "latency", {"p95": round(p95, 3), "errors": number % 7})
        if number % 5 == 0:
            yield _build_event("predictions.counted", at, f"agent/{AGENT}", predictions=9 + number, new=40 + number)
    yield _build_sample("s-failed", now - 700, "labels", None, error="The server of labels did not answer.")
    found = {"run": "wolf", "anomalies": 21, "predictions": 400, "picked": 12, "columns": COLUMNS}
    yield _build_event("drift.found", now - 1000, "workflow/detection", **found)
    yield _build_event("labels.given", now - 800, "workflow/detection", count=12, by="ada", run="wolf")
    judged: dict[str, Any] = {"metric": "accuracy", "champion_metric": 0.784, "challenger_metric": 0.856, "run": "wolf"}
    yield _build_judgement(now - 620, version=2, champion=1, better=True, evidence=EVIDENCE, **judged)
    yield _build_event("model.promoted", now - 590, f"model/{MODEL}", version=2, before=1, action="i-promoted")
    worse: dict[str, JSON] = {
        **EVIDENCE,
        "verdict": "reject",
        "version": 3,
        "champion": 2,
        "reason": "it is worse on clean data",
    }
    judged |= {"champion_metric": 0.856, "challenger_metric": 0.81, "run": "fox"}
    yield _build_judgement(now - 300, version=3, champion=2, better=False, evidence=worse, **judged)
    for start, state in ((1300, "degraded"), (450, "backup")):
        yield _build_event("service.unready", now - start, f"service/{SERVICE}", state=state)
        yield _build_event("service.ready", now - start + 60, f"service/{SERVICE}", state="ready")


def _build_sample(id: str, at: float, sensor: str, value: JSON, **more: Any) -> Event:
    due = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    data = {"sample": id, "sensor": sensor, "cause": f"interval:{due}", "value": value, **more}
    return Event(at=at, type="sample", app=APP, subject=f"agent/{AGENT}", data=data)


def _build_judgement(at: float, **data: Any) -> Event:
    return _build_event("model.judged", at, f"model/{MODEL}", **data)


def _build_event(type: str, at: float, subject: str, **data: Any) -> Event:
    return Event(at=at, type=type, app=APP, subject=subject, data={"agent": AGENT, **data})
