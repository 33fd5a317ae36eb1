"""Who an intent is of, what it is about, and how it stands among others. Pure."""

from __future__ import annotations

from scanflow.agent.records import Action, Intent

_OF_AN_APPLICATION = frozenset({"workflow", "agent"})


def place_of(intent: Intent) -> str:
    """Return what an intent is about, so that two intents are about the same thing when this is equal.

    Workflows and agents belong to an application; services, runs and models are called by the same name whichever of a
    team's applications asks. What other teams want or did is never the same: nobody acts on another team's things.
    """
    kind, _, name = intent.target.partition("/")
    return f"{kind}/{intent.team}/{f'{intent.app}/' if kind in _OF_AN_APPLICATION else ''}{name}"


def strategy_of(intent: Intent) -> str:
    """Return the strategy an intent comes from, unlike any other strategy's."""
    return f"{intent.team}/{intent.app}/{intent.agent}/{intent.strategy}"


def overlapping(one: Intent, other: Intent) -> tuple[str, ...]:
    """Return which of the one's fields both write."""
    if place_of(one) != place_of(other):
        return ()
    return tuple(sorted(name for name in one.fields if any(related(name, own) for own in other.fields)))


def related(one: str, other: str) -> bool:
    """Whether two fields of a target hold the same: ``affinity`` of a workflow has ``load.affinity`` of a step in it.

    What runs is no such: a run that is begun, and a step that is stopped, take nothing from each other.
    """
    return one == other or ("running" not in {one, other} and (one.endswith(f".{other}") or other.endswith(f".{one}")))


def is_kept(place: str, field: str) -> bool:
    """Whether a field of a target stays as it was written. Whether a run or a step runs does not, as each ends by
    itself: strategies that start the same workflow take nothing from each other."""
    return place.startswith("service/") or (field != "running" and not field.endswith(".running"))


def acted(action: Action) -> bool:
    """Whether an action was carried out, is, or will be."""
    return action.decision.verdict == "act"


def when(action: Action) -> float:
    """Return when an action began; where it has not yet, when that was decided."""
    return action.decision.at if action.began is None else action.began


def seconds(amount: float) -> str:
    return f"{amount:.0f} s" if amount >= 10 else f"{amount:.3g} s"


def looks_back_s(intent: Intent) -> float:
    """Return how old an action may be, in seconds, to have a say in what is decided on the intent."""
    budget_s = 0.0 if intent.budget is None else intent.budget_window_s
    return max(intent.cool_down_s, intent.hysteresis_s, budget_s)
