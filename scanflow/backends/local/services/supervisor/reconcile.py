"""Reconciliation: from the target and the observed instances to the next actions. Pure.

Level-triggered and stateless: a restarted supervisor sees the same instances and decides the same.

*Replacing instances* (another shape, another deployment) starts new instances and drains old ones. An old one is
drained only if the remaining ready ones have as many cores as the target, or all new ones are ready, so that the
capacity never falls below the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal

from scanflow.backends.local.services.supervisor.instance import Instance, Phase
from scanflow.instance_messages import DRAIN_IDLE_S

SILENT_S = 9.0  # an instance that has not answered for so long counts as stuck
APPLY_SILENT_S = 60.0  # the same while it loads a model, as an import may block the interpreter
START_S = 300.0  # longest start of an instance
DRAIN_S = DRAIN_IDLE_S + 15.0  # longest drain of an instance, beyond its deadline for requests
LEAVING_S = 2.0  # how long a change waits for draining instances, whose connections may all be idle
TRIES = 3  # failed starts of an instance until a change is reverted


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTarget:
    """The desired state of the instance pool."""

    spec_hash: str  # of the spec that instances are started with
    count: int
    serves: int  # the generation that each should serve
    cores: float  # of one instance; 1 if it is not limited
    deadline_s: float
    changing: bool  # whether a change is in progress, which can be reverted


@dataclass(frozen=True, slots=True)
class InstanceAction:
    """One action.

    ``start`` a new instance of this name, or one that waits; ``apply`` the target's generation to it; ``drain`` it;
    ``kill`` it, since it does not answer; ``end`` it, since it does not drain or was never ready; ``forget`` it, since
    it has no process and is surplus; ``give up`` the change, since it failed.
    """

    kind: Literal["start", "apply", "drain", "kill", "end", "forget", "give up"]
    name: str = ""


def reconcile(target: PoolTarget, instances: Sequence[Instance], now: float) -> list[InstanceAction]:
    actions = [action for instance in instances if (action := _check_health(target, instance, now)) is not None]
    if any(instance.is_unreported and now - instance.since < SILENT_S for instance in instances):
        return actions  # it may serve
    alive = [instance for instance in instances if instance.phase != "draining"]
    new = [instance for instance in alive if instance.spec_hash == target.spec_hash]
    old = [instance for instance in alive if instance.spec_hash != target.spec_hash]
    if (
        target.changing
        and target.count
        and any(
            instance.phase == "failed" or (not instance.was_ready and instance.failures >= TRIES) for instance in new
        )
    ):
        return [*actions, InstanceAction("give up")]
    surplus = _select_surplus(target, new)
    remaining = [instance for instance in new if instance not in surplus]
    actions += [_plan_removal(instance) for instance in surplus]
    actions += [_plan_removal(instance) for instance in _select_replaced(target, remaining, old)]
    actions += _plan_starts(target, remaining, old, {instance.name for instance in instances}, now)
    if (outdated := _select_next_to_apply(target, remaining)) is not None:
        actions.append(InstanceAction("apply", outdated.name))
    return actions


def is_settled(target: PoolTarget, instances: Sequence[Instance], now: float) -> bool:
    """Return whether the target is reached: all its instances are ready, and others only wait for idle connections."""
    current = [
        instance
        for instance in instances
        if instance.spec_hash == target.spec_hash and instance.phase == "ready" and instance.serves >= target.serves
    ]
    return len(current) == target.count and all(
        instance in current or _is_only_waiting(instance, now) for instance in instances
    )


def _is_only_waiting(instance: Instance, now: float) -> bool:
    return instance.phase == "draining" and now - instance.since > LEAVING_S and not instance.in_flight


def _check_health(target: PoolTarget, instance: Instance, now: float) -> InstanceAction | None:
    limit = APPLY_SILENT_S if instance.applying else SILENT_S
    if instance.phase == "ready" and instance.compute_silence_s(now) > limit:
        return InstanceAction("kill", instance.name)
    if instance.phase == "starting" and now - instance.since > START_S:
        return InstanceAction("kill", instance.name)
    if instance.phase == "draining" and now - instance.since > target.deadline_s + DRAIN_S:
        return InstanceAction("end", instance.name)
    return None


def _select_surplus(target: PoolTarget, new: Sequence[Instance]) -> list[Instance]:
    """Return the surplus instances: those without a process first, then those that are not ready."""
    order: dict[Phase, int] = {"failed": 0, "waiting": 1, "starting": 2, "ready": 3, "draining": 4}
    ranked = sorted(new, key=lambda instance: (order[instance.phase], -_parse_number(instance.name)))
    return ranked[: max(0, len(new) - target.count)]


def _plan_removal(instance: Instance) -> InstanceAction:
    if instance.phase in {"waiting", "failed"}:
        return InstanceAction("forget", instance.name)
    return InstanceAction("end" if instance.phase == "starting" and not instance.was_ready else "drain", instance.name)


def _select_replaced(target: PoolTarget, new: Sequence[Instance], old: Sequence[Instance]) -> list[Instance]:
    ready = [instance for instance in new if instance.phase == "ready"]
    is_complete = len(ready) >= target.count
    serving = [instance for instance in old if instance.phase == "ready"]
    replaced = [instance for instance in old if instance.phase != "ready"]
    capacity = sum(instance.cores for instance in [*ready, *serving])
    for instance in sorted(serving, key=lambda instance: -_parse_number(instance.name)):
        if is_complete or capacity - instance.cores >= target.count * target.cores:
            replaced.append(instance)
            capacity -= instance.cores
    return replaced


def _plan_starts(
    target: PoolTarget, new: Sequence[Instance], old: Sequence[Instance], taken: set[str], now: float
) -> list[InstanceAction]:
    """Plan the missing starts: one at a time while old instances serve, since starting takes their CPU."""
    actions = [
        InstanceAction("start", instance.name)
        for instance in new
        if instance.phase == "waiting" and instance.due <= now
    ]
    missing = target.count - len(new)
    if any(instance.phase == "ready" for instance in old):
        busy = len(actions) + sum(instance.phase == "starting" for instance in new)
        missing = min(missing, max(0, 1 - busy))
    free = (str(number) for number in count(1) if str(number) not in taken)
    return [*actions, *(InstanceAction("start", name) for name in islice(free, max(missing, 0)))]


def _select_next_to_apply(target: PoolTarget, new: Sequence[Instance]) -> Instance | None:
    """Return the next instance to apply the generation to: one by one, so that a bad version affects only one."""
    if any(instance.applying for instance in new):
        return None
    outdated = [instance for instance in new if instance.phase == "ready" and instance.serves < target.serves]
    return min(outdated, key=lambda instance: _parse_number(instance.name), default=None)


def _parse_number(name: str) -> int:
    return int(name) if name.isdecimal() else 0
