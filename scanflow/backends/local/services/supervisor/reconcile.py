"""What a supervisor does next. Pure: from what is wanted and what is there to actions; it is asked again after each.

Level-triggered: nothing here remembers. A supervisor that was killed, and one that was not, see the same instances and
decide the same.

*Replacing instances* (another shape, another deployment) goes by starting new instances and draining old ones. An
old one goes only if what answers without it has as many cores as are wanted in the end, or all new ones are ready: so
there is never less than there will be, and requests are answered at every moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal

from scanflow.backends.local.services.supervisor.instance import Instance, Phase
from scanflow.wire import DRAIN_IDLE_S

SILENT_S = 9.0  # three looks, three seconds apart, without an answer: the instance is taken for stuck
APPLY_SILENT_S = 60.0  # while it loads a model; a library that is being imported may hold the interpreter for long
START_S = 300.0  # longest from its start until an instance is ready
DRAIN_S = DRAIN_IDLE_S + 15.0  # beyond its deadline for requests, how long an instance may take to go
LEAVING_S = 2.0  # so long a change waits for those that leave, whose connections may all be idle
TRIES = 3  # failed starts of an instance until a change is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTarget:
    """What there should be."""

    spec_hash: str  # what an instance must have been started with
    count: int
    serves: int  # the generation of what each should serve
    cores: float  # of one instance; 1 where it is not limited
    deadline_s: float = 30.0
    changing: bool = False  # whether a change is not in effect yet, so that it can be given up


@dataclass(frozen=True, slots=True)
class InstanceAction:
    """One thing to do.

    ``start`` a new instance of this name, or one that waits; ``apply`` the wanted generation to it; ``drain`` it;
    ``kill`` it, since it does not answer; ``end`` it, since it will not go or never was of use; ``forget`` it, since it
    has no process and is not wanted; ``give up`` the change, since it cannot come into effect.
    """

    kind: Literal["start", "apply", "drain", "kill", "end", "forget", "give up"]
    name: str = ""


def reconcile(wanted: PoolTarget, instances: Sequence[Instance], now: float) -> list[InstanceAction]:
    actions = [action for one in instances if (action := _unwell(wanted, one, now)) is not None]
    alive = [one for one in instances if one.phase != "draining"]
    new = [one for one in alive if one.spec_hash == wanted.spec_hash]
    old = [one for one in alive if one.spec_hash != wanted.spec_hash]
    if (
        wanted.changing
        and wanted.count
        and any(one.phase == "failed" or (not one.was_ready and one.failures >= TRIES) for one in new)
    ):
        return [*actions, InstanceAction("give up")]
    surplus = _surplus(wanted, new)
    kept = [one for one in new if one not in surplus]
    actions += [_remove(one) for one in surplus]
    actions += [_remove(one) for one in _replaced(wanted, kept, old)]
    actions += _starts(wanted, kept, old, {one.name for one in instances}, now)
    if (behind := _next_to_apply(wanted, kept)) is not None:
        actions.append(InstanceAction("apply", behind.name))
    return actions


def settled(wanted: PoolTarget, instances: Sequence[Instance], now: float) -> bool:
    """Say whether all that is wanted is there, and nothing else but what has nothing to do any more than to wait for
    its idle connections."""
    good = [
        one
        for one in instances
        if one.spec_hash == wanted.spec_hash and one.phase == "ready" and one.serves >= wanted.serves
    ]
    return len(good) == wanted.count and all(one in good or _only_waits(one, now) for one in instances)


def _only_waits(one: Instance, now: float) -> bool:
    return one.phase == "draining" and now - one.since > LEAVING_S and not one.in_flight


def _unwell(wanted: PoolTarget, one: Instance, now: float) -> InstanceAction | None:
    limit = APPLY_SILENT_S if one.applying else SILENT_S
    if one.phase == "ready" and one.silent_s(now) > limit:
        return InstanceAction("kill", one.name)
    if one.phase == "starting" and now - one.since > START_S:
        return InstanceAction("kill", one.name)
    if one.phase == "draining" and now - one.since > wanted.deadline_s + DRAIN_S:
        return InstanceAction("end", one.name)
    return None


def _surplus(wanted: PoolTarget, new: Sequence[Instance]) -> list[Instance]:
    """Return those of the right kind that are too many: what has no process first, then what is not ready."""
    order: dict[Phase, int] = {"failed": 0, "waiting": 1, "starting": 2, "ready": 3, "draining": 4}
    ranked = sorted(new, key=lambda one: (order[one.phase], -_number(one.name)))
    return ranked[: max(0, len(new) - wanted.count)]


def _remove(one: Instance) -> InstanceAction:
    if one.phase in {"waiting", "failed"}:
        return InstanceAction("forget", one.name)
    return InstanceAction("end" if one.phase == "starting" and not one.was_ready else "drain", one.name)


def _replaced(wanted: PoolTarget, new: Sequence[Instance], old: Sequence[Instance]) -> list[Instance]:
    ready = [one for one in new if one.phase == "ready"]
    done = len(ready) >= wanted.count
    serving = [one for one in old if one.phase == "ready"]
    gone = [one for one in old if one.phase != "ready"]
    capacity = sum(one.cores for one in [*ready, *serving])
    for one in sorted(serving, key=lambda one: -_number(one.name)):
        if done or capacity - one.cores >= wanted.count * wanted.cores:
            gone.append(one)
            capacity -= one.cores
    return gone


def _starts(
    wanted: PoolTarget, new: Sequence[Instance], old: Sequence[Instance], taken: set[str], now: float
) -> list[InstanceAction]:
    """Start what is missing: one at a time while others answer callers, since starting takes their CPU."""
    actions = [InstanceAction("start", one.name) for one in new if one.phase == "waiting" and one.due <= now]
    missing = wanted.count - len(new)
    if any(one.phase == "ready" for one in old):
        busy = len(actions) + sum(one.phase == "starting" for one in new)
        missing = min(missing, max(0, 1 - busy))
    free = (str(number) for number in count(1) if str(number) not in taken)
    return [*actions, *(InstanceAction("start", name) for name in islice(free, max(missing, 0)))]


def _next_to_apply(wanted: PoolTarget, new: Sequence[Instance]) -> Instance | None:
    """One after another, so that a version that cannot be loaded is met by one instance only."""
    if any(one.applying for one in new):
        return None
    behind = [one for one in new if one.phase == "ready" and one.serves < wanted.serves]
    return min(behind, key=lambda one: _number(one.name), default=None)


def _number(name: str) -> int:
    return int(name) if name.isdecimal() else 0
