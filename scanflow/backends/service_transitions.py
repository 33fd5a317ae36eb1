"""The changes that can be asked for of a service: from what is wanted to what is wanted next. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import ServiceRecord, Shape
from scanflow.backends.service_spec import ServiceSpec, with_model
from scanflow.backends.shapes import changed_shape
from scanflow.errors import NotFoundError, UsageError, did_you_mean
from scanflow.wire import ModelFiles, Node, Revision

Recall = Callable[[str, int], Shape | None]
"""Return the shape that was kept with a version of a model."""

Complete = Callable[[ServiceSpec, Shape], Shape]
"""Derive a shape's thread variables, and check that it fits the machine or the cluster."""


def changeable(found: DesiredState | None, name: str) -> DesiredState:
    """Return a service's state if it can be changed.

    Raises:
        NotFoundError: it was deleted.
        UsageError: it is not deployed yet.
    """
    if found is None or found.deleted:
        raise NotFoundError(f"The service {name!r} was deleted meanwhile.")
    if found.hopeless or not found.settled:
        raise UsageError(f"The service {name!r} is not deployed yet. Deploy it first: scanflow deploy")
    return found


def check_backup(name: str, backup: str, services: Iterable[ServiceRecord]) -> None:
    """Raise unless ``backup`` could answer for the service ``name``, which is one of ``services``.

    Raises:
        NotFoundError: the same application serves no such workflow.
        UsageError: one of the two has a backup, or is one.
    """
    known = {one.name: one for one in services}
    found, own = known.get(backup), known[name]
    if found is None or (found.app, found.team) != (own.app, own.team):
        others = [one.name for one in known.values() if (one.app, one.team) == (own.app, own.team)]
        raise NotFoundError(
            f"The application {own.app!r} serves no {backup!r} that could be a backup."
            f"{did_you_mean(backup, others)} Deploy it first: scanflow deploy"
        )
    if backup == name or found.backup is not None or any(one.backup == name for one in known.values()):
        raise UsageError(
            f"{backup!r} cannot be the backup of {name!r}: nobody follows a chain of backups. Take one away."
        )


def answering_for(stored: DesiredState, name: str) -> DesiredState:
    """Return the service with its instances asked to answer under the name of another one too, whose backup it is."""
    definition = stored.definition
    if name in definition.aliases:
        return stored
    return stored.requested(definition.changed(aliases=(*definition.aliases, name)), replaces=False)


def applied(
    stored: DesiredState, change: ServiceChange, files: ModelFiles | None, recall: Recall, complete: Complete
) -> DesiredState:
    """Return the service with a change asked for. ``files`` are those of ``change.model``.

    Raises:
        UsageError: it cannot be made; the message says why.
    """
    if change.rollback:
        return _rolled_back(stored, recall, complete)
    if files is None:
        return _promoted(stored) if change.promote else _resized(stored, change, complete)
    nodes = with_model(stored.definition, files, change.node)
    name = f"models:/{files.name}/{files.version}"
    return (_with_canary if change.is_canary else _swapped)(stored, change, nodes, name)


def _with_canary(stored: DesiredState, change: ServiceChange, nodes: tuple[Node, ...], name: str) -> DesiredState:
    """Make a version the canary (a share of the requests) or shadow (a copy of each), or change its share."""
    definition, generation = stored.definition, stored.generation + 1
    weight, shadow = change.weight or 0.0, bool(change.shadow)
    trial = definition.canary if definition.canary is not None and definition.canary.nodes == nodes else None
    if weight <= 0 and not shadow:
        if trial is None:
            raise UsageError(
                f"{name} gets no requests already. Give it a share: --weight 0.1, or a copy of each: --shadow"
            )
        return stored.serving_only(definition.current, replaces=False)
    if nodes == definition.current.nodes:
        raise UsageError(f"{name} is what {stored.name!r} serves already. Name another version.")
    current = replace(definition.current, weight=1.0 if shadow else 1.0 - weight)
    id_ = f"r{generation}" if trial is None else trial.id
    other = Revision(id=id_, nodes=nodes, weight=1.0 if shadow else weight, shadow=shadow)
    policy = change.policy or (definition.policy if trial else None)
    changed = definition.changed(revisions=(current, other), policy=policy, serves=generation)
    return stored.requested(changed, replaces=False)


def _promoted(stored: DesiredState) -> DesiredState:
    canary = stored.definition.canary
    if canary is None:
        raise UsageError(
            f"{stored.name!r} has no canary. Name the version to serve: scanflow promote {stored.name} models:/name/2"
        )
    return stored.serving_only(canary, replaces=True)


def _swapped(stored: DesiredState, _: ServiceChange, nodes: tuple[Node, ...], name: str) -> DesiredState:
    """Serve another version of a model from now on, in the processes that run."""
    definition = stored.definition
    if nodes == definition.current.nodes and definition.canary is None:
        raise UsageError(f"{name} is what {stored.name!r} serves already.")
    return stored.serving_only(Revision(id=f"r{stored.generation + 1}", nodes=nodes), replaces=True)


def _rolled_back(stored: DesiredState, recall: Recall, complete: Complete) -> DesiredState:
    """Take the canary back; where there is none, return to what was served before, in the shape it had then."""
    if stored.definition.canary is not None:
        return stored.serving_only(stored.definition.current, replaces=False)
    before = stored.previous
    if before is None:
        raise UsageError(f"There is nothing to roll {stored.name!r} back to: it was deployed once and not changed.")
    model = next((node.model for node in before.current.nodes if node.model is not None), None)
    shape = (model and recall(model.name, model.version)) or before.shape
    aliases = stored.definition.aliases  # whom it answers for is no matter of its own
    changed = before.changed(serves=stored.generation + 1, shape=complete(before, shape), aliases=aliases)
    return stored.requested(changed, replaces=True)


def _resized(stored: DesiredState, change: ServiceChange, complete: Complete) -> DesiredState:
    definition = stored.definition
    if change.backup is not None:
        definition = definition.changed(serving=definition.serving.replace(backup=change.backup or None))
    if change.scaling is not None:
        scaling = None if change.scaling == "off" else change.scaling
        definition = definition.changed(scaling=scaling)
    shape = definition.shape if change.sizing is None else changed_shape(definition.shape, change.sizing)
    scaling = definition.scaling
    if scaling is not None and change.instances is None:
        shape = shape.model_copy(update={"instances": min(max(shape.instances, scaling.min), scaling.max)})
    elif change.scaling == "off" and change.instances is None:
        shape = shape.model_copy(update={"instances": max(shape.instances, 1)})
    if scaling is not None and not scaling.min <= shape.instances <= scaling.max:
        raise UsageError(
            f"{stored.name!r} has a scaling from {scaling.min} to {scaling.max} instances, so it cannot have "
            f"{shape.instances}. Change the scaling as well, or turn it off."
        )
    return stored.requested(definition.changed(shape=complete(definition, shape)), replaces=False)
