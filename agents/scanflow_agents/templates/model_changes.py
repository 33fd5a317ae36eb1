"""What became of the executor's changes of a service's model: which stand, which went wrong, what is to be noted.

All of it is pure. Actions are those of the one executor's strategies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from scanflow.agent.context import Context
from scanflow.agent.records import Action, Intent
from scanflow.backends.service_records import ServiceRecord
from scanflow.knowledge.records import ModelVersion
from scanflow.knowledge.version_tags import ACTION, AGAIN, BY_HAND, PROMOTED, PROMOTION, rejection

STRATEGY = "change_model_transition"
ON_APPROVAL = "change_model_on_approval"
"""The strategy for a version that may be worse on some of what is known, which a person has to weigh."""

STUCK = "it could not be taken back"

Verdict = Literal["promote", "reject", "wait"]


def served(record: ServiceRecord, node: str) -> str | None:
    return None if record.current is None else record.current.models.get(node)


def settled(actions: Iterable[Action]) -> list[Action]:
    """Return the actions that have come to an end, the last begun first: what was wanted earlier may have been approved
    later."""
    states = {"succeeded", "failed", "reverted", "lost"}
    ended = (action for action in actions if action.state in states and action.began is not None)
    return sorted(ended, key=lambda action: action.began or 0.0, reverse=True)


def went_wrong(action: Action) -> str | None:
    """Say why a version is not to be tried again, if what was done with it went wrong.

    A change that succeeded has an error where it was to be taken back, and that failed. One that is lost says nothing
    about its version.
    """
    if action.state == "reverted":
        return f"taken back by {action.reverted_by}"
    if action.state == "failed":
        return action.error or action.state
    if action.state == "refused" and action.decision.by is not None:
        return action.decision.reason.rstrip(".")
    if action.state == "succeeded" and action.error is not None:
        return f"{STUCK}: {action.error}"
    return None


def turned_down(refused: Iterable[Action], others: Iterable[Action], model: str) -> list[tuple[int, Action]]:
    """Return the versions that a person refused, with the action, where nothing was wanted for them since."""
    said = [one for one in refused if one.state == "refused" and one.decision.by is not None]
    newest = sorted([*said, *others], key=lambda one: one.intent.at, reverse=True)
    return [(version, one) for version, one in by_version(newest, model) if one in said]


def took_effect(action: Action, now_served: str | None) -> bool:
    """Say whether the service answered with an action's version, as far as is known.

    Of one that is lost, or may have been taken back, that is known only while the service answers with it.
    """
    if action.state == "succeeded" and action.error is None:
        return True
    return action.state in {"succeeded", "lost"} and version_address(action) == now_served


def taken_out(ended: Sequence[Action], address: str, record: ServiceRecord, node: str) -> Action | None:
    """Return the change to a version that another client has undone since.

    ``ended`` are the settled actions, as read before the service was. A service that was deleted and deployed since the
    change lost the version without anybody's wish; who has another version deployed over it took it out of use.
    """
    now_served = served(record, node)
    if now_served in {None, address}:
        return None
    last = next((one for one in ended if took_effect(one, now_served)), None)
    own = next((one for one in ended if version_address(one) == address and one.state != "lost"), None)
    if last is None or last is not own:  # another took its place, or its own last try went wrong
        return None
    return None if last.ended is not None and record.created > last.ended else last


def not_noted_yet(ended: Sequence[Action], version: ModelVersion) -> str | None:
    """Say that the last try of a version went wrong, where the registry does not say so yet."""
    last = next((one for one in ended if version_address(one) == version.uri), None)
    if last is None or went_wrong(last) is None or is_noted(last, version):
        return None
    return f"its last try went wrong, which is about to be noted: {last.id}"


def on_its_way(actions: Iterable[Action], context: Context, address: str, *, watched_s: float) -> str | None:
    """Say what keeps a version waiting: itself on its way, or another one on its way or still watched (for
    ``watched_s`` after it was put to use). ``actions`` are the newest first."""
    for intent in context.wanted():
        return _under_way(intent, address)
    for action in actions:
        if action.decision.verdict == "approve" and action.state == "pending" and version_address(action) != address:
            continue  # what waits for a person is replaced
        if action.state in {"pending", "running"}:
            return _under_way(action.intent, address)
        same = version_address(action) == address
        if action.state == "succeeded" and not same and context.clock() < (action.ended or 0.0) + watched_s:
            return f"another is being watched: {version_address(action)}"
    return None


def _under_way(intent: Intent, address: str) -> str:
    own = _address(intent)
    return f"it is on its way: {intent.id}" if own == address else f"another is on its way: {own}"


def verdict_on(action: Action, *, now: float, watched_s: float, is_newest: bool, is_served: bool) -> Verdict:
    """Say what is to be noted about an action that has ended and is watched for ``watched_s``.

    ``is_newest``: nothing that took effect was done after it; ``is_served``: the service answers with its version now.
    """
    if went_wrong(action) is not None:
        return "reject"
    if action.reverted_by is not None:  # it is being taken back
        return "wait"
    done = action.state in {"succeeded", "lost"}  # lost: nobody knows whether it took effect, but the service does
    if done and is_newest and is_served and now >= (action.ended or now) + watched_s:
        return "promote"
    return "wait"


def version_address(action: Action) -> str:
    return _address(action.intent)


def _address(intent: Intent) -> str:
    return str(intent.arguments.get("model", ""))


def by_version(actions: Sequence[Action], model: str) -> list[tuple[int, Action]]:
    """Return the newest action about each version of the model."""
    found: dict[int, Action] = {}
    for action in actions:
        number = version_address(action).removeprefix(f"models:/{model}/")
        if number.isdecimal():
            found.setdefault(int(number), action)
    return list(found.items())


def is_noted(action: Action, version: ModelVersion) -> bool:
    """Say whether the registry says what became of an action, and nothing else did since."""
    said = version.tags.get(PROMOTION, "")
    if said == BY_HAND:  # by a person, after whatever became of it before
        return True
    if version.tags.get(ACTION) != action.id:
        return False
    if action.state == "reverted":
        return said != PROMOTED and not is_stuck(version)
    return said != AGAIN or went_wrong(action) is not None


def is_stuck(version: ModelVersion) -> bool:
    return version.tags.get(PROMOTION, "").startswith(rejection(STUCK))
