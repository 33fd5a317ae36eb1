"""Whether a decision repeats an earlier one, so that people are told once. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scanflow.agent.agent_records import Action, Decision, Intent, Verdict
from scanflow_server.arbiter.objections import are_equal

_TOLD: frozenset[Verdict] = frozenset({"refuse", "observe", "suggest", "approve"})
_VARIES = re.compile(r"\b[0-9a-f]{12,}\b|\d+(\.\d+)?(e[-+]?\d+)?")
"""What differs between two decisions for the same reason: ids and amounts."""


def find_repeated(newest: Sequence[Action], intent: Intent, decision: Decision) -> Action | None:
    """Return the earlier action whose decision is the same, for the same reason; None: there is none.

    ``newest``: the earlier ones of the intent's strategy on its target, the newest first. A refusal repeats the last
    one, unless something was done since. What people are asked, or told, repeats with the same arguments alone."""
    if intent.source == "person" or decision.by is not None or decision.verdict not in _TOLD:
        return None
    for action in newest:
        if action.intent.primitive != intent.primitive:
            continue
        if decision.verdict == "refuse":
            if action.decision.verdict in _TOLD - {"refuse"}:
                continue
            return action if _is_same(action, intent, decision) else None
        if _is_same(action, intent, decision) and are_equal(action.intent.arguments, intent.arguments):
            return action
    return None


def _is_same(earlier: Action, intent: Intent, decision: Decision) -> bool:
    before = earlier.decision
    is_open = before.verdict == decision.verdict and before.by is None and earlier.began is None
    return is_open and _normalize(earlier.intent, before) == _normalize(intent, decision)


def repeat_decision(earlier: Action, decision: Decision) -> Decision:
    """Return a decision that names the earlier intent, which is the one that is kept."""
    reason = decision.reason.replace(decision.intent, earlier.id)
    return decision.model_copy(update={"reason": f"{reason} This repeats the decision on {earlier.id}."})


def _normalize(intent: Intent, decision: Decision) -> str:
    text = decision.reason
    for id in (intent.id, decision.winner):
        text = text.replace(id, "") if id else text
    return _VARIES.sub("", text)
