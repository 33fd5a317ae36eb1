"""What the agents of a shop would have stored for half an hour: samples, decisions, findings and judgements."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from scanflow.agent.agent_records import JSON, Decision, Event, PrimitiveCall, Sample
from scanflow_server.arbiter.arbitration import ALLOWED
from scanflow_server.store import event_store, intent_store
from scanflow_server.store.base import open_store
from scanflow_server.store.intent_store import ActionRow
from scanflow_server.store.migrations import migrate
from tests.unit.server.server_rows import make_action_row

APP, TEAM, MODEL, SERVICE, AGENT = "shop", "data", "digits-model", "digits", "watch"
PERIOD_S = 1800.0
SAMPLES = 30
RULE = "p95 > 0.2"
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
            for row in sorted(list_actions(now), key=lambda row: row.intent.at):
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
    value: JSON = {"evidence": build_evidence(2, "it is better on current data", current=(196, 214), clean=(95, 94))}
    sample = Sample(id="s-judged", agent=AGENT, sensor="judged", at=now - 620, value=value, cause="event:2")
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
    done: dict[str, Any] = {name: changes.pop(name) for name in ("inverse", "error") if name in changes}
    state = changes.pop("state", states[verdict])
    fields = {"primitive": "run_workflow", "target": "workflow/training", "fields": ("running",), **changes}
    row = make_action_row(id, state, verdict, app=APP, team=TEAM, agent=AGENT, key=f"k-{id}", at=at, **fields)
    reasons = {"act": ALLOWED, "approve": "Its strategy asks a person first."}
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
    drift: dict[str, Any] = {"run": "wolf", "anomalies": 21, "predictions": 400, "picked": 12, "columns": COLUMNS}
    yield _build_event("drift.found", now - 1000, "workflow/detection", **drift)
    yield _build_event("labels.given", now - 800, "workflow/detection", count=12, by="ada", run="wolf")
    for number, ago, evidence in (
        (2, 620, build_evidence(2, "it is better on current data", current=(196, 214), clean=(95, 94))),
        (3, 300, build_evidence(3, "it is worse", current=(214, 203), clean=(94, 90))),
    ):
        champion, challenger = (evidence["slices"][0][f"{role}_right"] / 250 for role in ("champion", "challenger"))
        judged = {"version": number, "champion": number - 1, "champion_metric": champion, "metric": "accuracy"}
        judged |= {"challenger_metric": challenger, "better": number == 2, "run": evidence["run"]}
        yield _build_event("model.judged", now - ago, f"model/{MODEL}", **judged, evidence=evidence)
    yield _build_event("model.promoted", now - 590, f"model/{MODEL}", version=2, before=1, action="i-promoted")


def build_evidence(version: int, reason: str, **rights: tuple[int, int]) -> dict[str, Any]:
    """Return why a version is promoted or not: how many points of each slice it and the one before it got right."""
    sizes = {"current": 250, "clean": 100}
    slices = [
        {
            "name": name,
            "n": sizes[name],
            "champion_right": old,
            "challenger_right": new,
            "gain": (new - old) / sizes[name],
            "low": (new - old) / sizes[name] - 0.04,
            "high": (new - old) / sizes[name] + 0.04,
        }
        for name, (old, new) in rights.items()
    ]
    about = {"verdict": "promote" if version == 2 else "reject", "reason": reason, "run": f"wolf-{version}", "n": 350}
    traffic = {"current": 0.9, "clean": 0.1}
    return {**about, "version": version, "champion": version - 1, "traffic": traffic, "slices": slices}


def _build_sample(id: str, at: float, sensor: str, value: JSON, **more: Any) -> Event:
    due = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    data = {"sample": id, "sensor": sensor, "cause": f"interval:{due}", "value": value, **more}
    return Event(at=at, type="sample", app=APP, subject=f"agent/{AGENT}", data=data)


def _build_event(type: str, at: float, subject: str, **data: Any) -> Event:
    return Event(at=at, type=type, app=APP, subject=subject, data={"agent": AGENT, **data})
