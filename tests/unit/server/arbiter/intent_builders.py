"""Intents and actions as the tests of the arbiter need them, with everything given that a test does not care about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scanflow.agent.agent_records import Action, Decision, Intent, PermittedCall, PrimitiveCall, StrategyLimits
from scanflow_server.arbiter.arbitration import arbitrate_all
from scanflow_server.arbiter.arbitration_rules import ArbitrationContext


def intent(id: str = "i1", **changes: Any) -> Intent:
    fields: dict[str, Any] = {
        "id": id,
        "app": "mnist",
        "team": "tests",
        "agent": "planner",
        "strategy": "scale",
        "primitive": "update_workflow_replica",
        "arguments": {"workflow": "serve", "instances": 2},
        "target": "service/serve",
        "fields": ("replicas",),
        "key": f"planner/scale/{id}",
        "at": 100.0,
    }
    return Intent.model_validate({**fields, **changes})


def permit(intent: Intent, **changes: Any) -> StrategyLimits:
    """Return the strategy that has just what an intent says."""
    own = ("priority", "autonomy", "cool_down_s", "hysteresis_s", "budget", "budget_window_s", "guard")
    call = PermittedCall(primitive=intent.primitive, target=intent.target)
    limits = {name: getattr(intent, name) for name in own}
    return StrategyLimits.model_validate({"name": intent.strategy, "calls": (call,), **limits, **changes})


def action(
    of: Intent, *, began: float, inverse: PrimitiveCall | None = None, verdict: str = "act", **changes: Any
) -> Action:
    decision = Decision.model_validate({"intent": of.id, "verdict": verdict, "reason": "It was so.", "at": began})
    fields = {"id": of.id, "intent": of, "decision": decision, "inverse": inverse}
    return Action.model_validate({**fields, "state": "succeeded", "began": began, "ended": began, **changes})


def arbitrate(wanted: Intent, *, pending: Sequence[Intent] = (), **options: Any) -> Decision:
    """Decide on one intent; ``known`` is what the arbiter knows of the target."""
    return arbitrate_all([*pending, wanted], ArbitrationContext(**options))[wanted.id]
