"""Record which version of a model a service has in use since when, and by whom or by which comparison.

Whoever changes it: a command, an agent's action, or the rule of a canary, which the service's own supervisor applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from scanflow.agent.agent_records import Action, Intent
from scanflow.backends.service_records import RevisionRecord, ServiceRecord
from scanflow_server.intent_identity import get_place
from scanflow_server.server_context import ServerContext
from scanflow_server.store import event_store, intent_store

TYPE = "service.version"
"""The event: ``before`` and ``now``, the models by node, and ``how``: ``person``, ``agent``, ``comparison`` or
``unknown``; with the ``action`` that ``scanflow why`` explains."""


@dataclass(frozen=True, slots=True)
class _Seen:
    created: float
    models: dict[str, str]
    revisions: tuple[RevisionRecord, ...]


class ServedVersions:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._seen: dict[str, _Seen] = {}

    def observe(self, record: ServiceRecord) -> None:
        """Record a change of the models that a service answers with, since the last call or the last event."""
        if record.current is None or not record.current.models or record.settled < record.generation:
            return  # a change that is under way may be given up
        seen = self._seen.get(record.name)
        now = _Seen(record.created, dict(record.current.models), record.revisions)
        if seen is None or seen.created != now.created or seen.models != now.models:
            self._record(record, seen)
        self._seen[record.name] = now

    def forget_others(self, names: set[str]) -> None:
        for name in self._seen.keys() - names:
            del self._seen[name]

    def _record(self, record: ServiceRecord, seen: _Seen | None) -> None:
        assert record.current is not None
        subject, now, at = f"service/{record.name}", dict(record.current.models), self._context.clock()
        with self._context.store.write() as connection:
            last = event_store.find_newest(connection, TYPE, subject, app=record.app)
            if last is not None and last.data.get("now") == now and last.data.get("created") == record.created:
                return
            is_same = last is not None and last.data.get("created") == record.created
            before = last.data.get("now") if last is not None and is_same else {}
            about = {"before": before, "now": now, "created": record.created}
            about |= self._explain(connection, record, seen, at)
            event_store.record(connection, TYPE, subject, at=at, app=record.app, team=record.team, data=about)

    def _explain(self, connection: Connection, record: ServiceRecord, seen: _Seen | None, at: float) -> dict[str, Any]:
        action = _find_action(connection, record)
        if action is None:
            return {"how": "unknown"}
        who = {"by": action.intent.agent, "action": action.id}
        rule = action.intent.arguments.get("policy")
        if isinstance(rule, dict) and action.intent.primitive == "change":
            text = f"{_format_rule(rule)} held{_compare_revisions(record, seen)}"
            versions = ", ".join(record.current.models.values()) if record.current is not None else ""
            note = f"the rule of {action.intent.agent}'s canary put {versions} in use: {text}"
            intent_store.append_trail(connection, action.id, at, note)
            return {"how": "comparison", "reason": text, **who}
        if action.intent.source == "person":
            return {"how": "person", **who}
        return {"how": "agent", "strategy": action.intent.strategy, **who}


def _find_action(connection: Connection, record: ServiceRecord) -> Action | None:
    """Return the newest action in effect that chose the version."""
    about: dict[str, Any] = {"app": record.app, "team": record.team, "target": f"service/{record.name}"}
    actions = intent_store.list_in_effect(connection, get_place(Intent.model_construct(**about)))
    return next((action for action in actions if {"model", "traffic"} & {*action.intent.fields}), None)


def _format_rule(rule: dict[str, Any]) -> str:
    slack = f"+{rule['slack']:g}" if rule.get("slack") else ""
    return f"{rule.get('metric', 'errors')}<={rule.get('ratio', 1.0):g}x{slack}"


def _compare_revisions(record: ServiceRecord, seen: _Seen | None) -> str:
    """Return what both versions had answered when the canary was seen last."""
    if seen is None or record.current is None:
        return ""
    canary = next(
        (part for part in seen.revisions if part.role != "current" and part.models == record.current.models), None
    )
    stable = next((part for part in seen.revisions if part.role == "current"), None)
    if canary is None or stable is None:
        return ""
    return f", after {_format_revision(canary)}, beside {_format_revision(stable)}"


def _format_revision(revision: RevisionRecord) -> str:
    latency = "" if revision.p95_s is None else f", p95 {revision.p95_s * 1000:.3g} ms"
    versions = ", ".join(revision.models.values())
    return f"{revision.errors} of {revision.requests} requests failed{latency} ({versions})"
