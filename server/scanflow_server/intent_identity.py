"""The identity of intents: their target, their strategy, and how they overlap. Pure."""

from __future__ import annotations

from scanflow.agent.agent_records import Action, Intent

_APPLICATION_KINDS = frozenset({"workflow", "agent"})


def get_place(intent: Intent) -> str:
    """Return the qualified name of an intent's target, equal for two intents on the same target.

    Workflows and agents belong to an application; services, runs and models have one name in all applications of a
    team. Targets of different teams are never equal: nobody acts on another team's.
    """
    kind, _, name = intent.target.partition("/")
    return f"{kind}/{intent.team}/{f'{intent.app}/' if kind in _APPLICATION_KINDS else ''}{name}"


def get_turn(intent: Intent) -> str:
    """Return what one action at a time may change: a target; a service of one name, whichever team's it is."""
    return intent.target if intent.target.startswith("service/") else get_place(intent)


def qualify_strategy(intent: Intent) -> str:
    """Return the qualified name of the strategy an intent comes from."""
    return f"{intent.team}/{intent.app}/{intent.agent}/{intent.strategy}"


def qualify_key(intent: Intent) -> tuple[str, str, str, str]:
    """Return what tells an intent from all others: agents choose their keys without knowing of each other."""
    return intent.team, intent.app, intent.agent, intent.key


def list_common_fields(intent: Intent, other: Intent) -> tuple[str, ...]:
    """Return the fields of the first intent that the second writes too."""
    if get_place(intent) != get_place(other):
        return ()
    return tuple(sorted(name for name in intent.fields if any(are_related(name, own) for own in other.fields)))


def are_related(field: str, other: str) -> bool:
    """Whether one field of a target contains the other, as a workflow's ``affinity`` does a step's ``load.affinity``.

    Not so for ``running``: starting a run and stopping a step do not conflict.
    """
    return field == other or (
        "running" not in {field, other} and (field.endswith(f".{other}") or other.endswith(f".{field}"))
    )


def start_unlike_runs(intent: Intent, other: Intent) -> bool:
    """Whether both start runs of which neither does what the other does: with other parameters, say."""
    starts = {intent.primitive, other.primitive} <= {"run_workflow", "run_autoconfig_workflow"}
    return starts and (intent.primitive, intent.arguments) != (other.primitive, other.arguments)


def is_lasting(place: str, field: str) -> bool:
    """Whether a field of a target stays as it was written. ``running`` of a run or a step does not, as each ends by
    itself: strategies that start the same workflow do not conflict."""
    return place.startswith("service/") or (field != "running" and not field.endswith(".running"))


def is_accepted(action: Action) -> bool:
    """Whether an action was, is or will be carried out."""
    return action.decision.verdict == "act"


def awaits_people(action: Action) -> bool:
    """Whether people were asked about an action, and did not approve it."""
    decision = action.decision
    return decision.verdict in {"suggest", "approve"} or (decision.verdict == "refuse" and decision.by is not None)


def get_start_time(action: Action) -> float:
    """Return when an action began; if it has not, when it was decided on."""
    return action.decision.at if action.began is None else action.began


def format_seconds(amount: float) -> str:
    return f"{amount:.0f} s" if amount >= 10 else f"{amount:.3g} s"


def compute_lookback_s(intent: Intent) -> float:
    """Return how old an action may be, in seconds, to matter for the decision on an intent."""
    budget_s = 0.0 if intent.budget is None else intent.budget_window_s
    return max(intent.cool_down_s, intent.hysteresis_s, budget_s)
