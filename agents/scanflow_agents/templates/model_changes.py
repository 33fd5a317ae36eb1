"""The outcomes of the executor's changes of a service's model: which are in effect, which failed, what to record.

Pure. Actions are those of one executor's strategies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from scanflow.agent.agent_records import Action, Intent
from scanflow.agent.context import Context
from scanflow.backends.service_records import ServiceRecord
from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow.knowledge.version_tags import ACTION, AGAIN, BY_HAND, PROMOTED, PROMOTION, format_rejection

STRATEGY = "change_model_transition"
ON_APPROVAL = "change_model_on_approval"
"""The strategy for a version that may be worse on some known slices, which a person has to approve."""

STUCK = "it could not be taken back"
"""Stored in the tags of versions, where :func:`is_stuck` finds it: if reworded, older tags would not be found."""

Verdict = Literal["promote", "reject", "wait"]


def find_served_model(record: ServiceRecord, node: str) -> str | None:
    return None if record.current is None else record.current.models.get(node)


def filter_ended(actions: Iterable[Action]) -> list[Action]:
    """Return the ended actions, the last started first, as an earlier intent may have been approved later."""
    states = {"succeeded", "failed", "reverted", "lost"}
    ended = (action for action in actions if action.state in states and action.began is not None)
    return sorted(ended, key=lambda action: action.began or 0.0, reverse=True)


def describe_failure(action: Action) -> str | None:
    """Describe why a version must not be deployed again, if its action failed.

    A change that succeeded has an error if its revert failed. A lost one says nothing about its version.
    """
    if action.state == "reverted":
        return f"reverted by {action.reverted_by}"
    if action.state == "failed":
        return action.error or action.state
    if action.state == "refused" and action.decision.by is not None:
        return action.decision.reason.rstrip(".")
    if action.state == "succeeded" and action.error is not None:
        return f"{STUCK}: {action.error}"
    return None


def list_refused(refused: Iterable[Action], others: Iterable[Action], model: str) -> list[tuple[int, Action]]:
    """Return the versions that a person refused, with the action, without those requested again since."""
    rejections = [action for action in refused if action.state == "refused" and action.decision.by is not None]
    newest = sorted([*rejections, *others], key=lambda action: action.intent.at, reverse=True)
    return [(version, action) for version, action in map_newest_by_version(newest, model) if action in rejections]


def has_taken_effect(action: Action, now_served: str | None) -> bool:
    """Return whether the service has served an action's version, as far as is known.

    For a lost action, or one that may have been reverted, that is known only while the version is served.
    """
    if action.state == "succeeded" and action.error is None:
        return True
    return action.state in {"succeeded", "lost"} and get_model_uri(action) == now_served


def find_withdrawn_change(ended: Sequence[Action], address: str, record: ServiceRecord, node: str) -> Action | None:
    """Return the change to a version that another client has undone since.

    ``ended`` are the ended actions, as read before the service. A service that was deleted and deployed again since the
    change did not withdraw the version; deploying another version over it did.
    """
    now_served = find_served_model(record, node)
    if now_served in {None, address}:
        return None
    last = next((action for action in ended if has_taken_effect(action, now_served)), None)
    own = next((action for action in ended if get_model_uri(action) == address and action.state != "lost"), None)
    if last is None or last is not own:  # another version replaced it, or its own last attempt failed
        return None
    return None if last.ended is not None and record.created > last.ended else last


def describe_unrecorded_failure(ended: Sequence[Action], version: ModelVersion) -> str | None:
    """Describe that the last attempt of a version failed, if the registry does not record it yet."""
    last = next((action for action in ended if get_model_uri(action) == version.uri), None)
    if last is None or describe_failure(last) is None or is_recorded(last, version):
        return None
    return f"its last attempt failed, which is not recorded yet: {last.id}"


def describe_pending_change(
    actions: Iterable[Action], context: Context, address: str, *, watched_s: float
) -> str | None:
    """Describe what a version has to wait for: a pending change to it, or another change that is pending or still
    watched (for ``watched_s`` after it was deployed). ``actions`` are the newest first."""
    for intent in context.wanted():
        return _describe_intent(intent, address)
    for action in actions:
        if action.decision.verdict == "approve" and action.state == "pending" and get_model_uri(action) != address:
            continue  # a change that waits for approval is replaced
        if action.state in {"pending", "running"}:
            return _describe_intent(action.intent, address)
        same = get_model_uri(action) == address
        if action.state == "succeeded" and not same and context.clock() < (action.ended or 0.0) + watched_s:
            return f"another version is being watched: {get_model_uri(action)}"
    return None


def _describe_intent(intent: Intent, address: str) -> str:
    own = _get_model_uri(intent)
    return f"its change is in progress: {intent.id}" if own == address else f"another change is in progress: {own}"


def evaluate_change(action: Action, *, now: float, watched_s: float, is_newest: bool, is_served: bool) -> Verdict:
    """Return what to record about an action that has ended and is watched for ``watched_s``.

    ``is_newest``: no later action took effect; ``is_served``: the service serves its version now.
    """
    if describe_failure(action) is not None:
        return "reject"
    if action.reverted_by is not None:  # it is being reverted
        return "wait"
    done = action.state in {"succeeded", "lost"}  # lost: only the service shows whether it took effect
    if done and is_newest and is_served and now >= (action.ended or now) + watched_s:
        return "promote"
    return "wait"


def get_model_uri(action: Action) -> str:
    return _get_model_uri(action.intent)


def _get_model_uri(intent: Intent) -> str:
    return str(intent.arguments.get("model", ""))


def map_newest_by_version(actions: Sequence[Action], model: str) -> list[tuple[int, Action]]:
    """Return the newest action on each version of the model."""
    newest: dict[int, Action] = {}
    for action in actions:
        number = get_model_uri(action).removeprefix(f"models:/{model}/")
        if number.isdecimal():
            newest.setdefault(int(number), action)
    return list(newest.items())


def is_recorded(action: Action, version: ModelVersion) -> bool:
    """Return whether the registry records the outcome of an action, or a later one."""
    promotion = version.tags.get(PROMOTION, "")
    if promotion == BY_HAND:  # by a person, after any earlier outcome
        return True
    if version.tags.get(ACTION) != action.id:
        return False
    if action.state == "reverted":
        return promotion != PROMOTED and not is_stuck(version)
    return promotion != AGAIN or describe_failure(action) is not None


def is_stuck(version: ModelVersion) -> bool:
    return version.tags.get(PROMOTION, "").startswith(format_rejection(STUCK))
