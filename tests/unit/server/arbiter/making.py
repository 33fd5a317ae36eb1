"""Intents and actions as the tests of the arbiter need them, with everything given that a test does not care about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scanflow.agent.agent_records import Action, Decision, Intent, PermittedCall, PrimitiveCall, StrategyLimits
from scanflow_server.arbiter.arbitrate import arbitrate_all
from scanflow_server.arbiter.objections import ArbitrationContext


def intent(id: str = "i1", **changes: Any) -> Intent:
    given: dict[str, Any] = {
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
    return Intent.model_validate({**given, **changes})


def permit(intent: Intent, **changes: Any) -> StrategyLimits:
    """Return the strategy that has just what an intent says."""
    own = ("priority", "autonomy", "cool_down_s", "hysteresis_s", "budget", "budget_window_s", "guard")
    call = PermittedCall(primitive=intent.primitive, target=intent.target)
    said = {name: getattr(intent, name) for name in own}
    return StrategyLimits.model_validate({"name": intent.strategy, "calls": (call,), **said, **changes})


def action(
    of: Intent, *, began: float, inverse: PrimitiveCall | None = None, verdict: str = "act", **changes: Any
) -> Action:
    decision = Decision.model_validate({"intent": of.id, "verdict": verdict, "reason": "It was so.", "at": began})
    given = {"id": of.id, "intent": of, "decision": decision, "inverse": inverse}
    return Action.model_validate({**given, "state": "succeeded", "began": began, "ended": began, **changes})


def arbitrate(wanted: Intent, *, pending: Sequence[Intent] = (), **known: Any) -> Decision:
    """Decide on one intent; ``known`` is what the arbiter knows of the target."""
    return arbitrate_all([*pending, wanted], ArbitrationContext(**known))[wanted.id]
