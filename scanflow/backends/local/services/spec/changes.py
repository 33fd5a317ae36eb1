"""The changes that can be asked for of a service: from what is wanted to what is wanted next. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from scanflow.backends.local.services.spec.service_spec import ServiceSpec, with_model
from scanflow.backends.local.services.state.desired import DesiredState
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import Shape
from scanflow.backends.shapes import changed_shape
from scanflow.errors import UnsupportedError, UsageError
from scanflow.wire import ModelFiles, Node, Revision

Recall = Callable[[str, int], Shape | None]
"""Return the shape that was kept with a version of a model."""

Complete = Callable[[ServiceSpec, Shape], Shape]
"""Derive a shape's thread variables, and check that it fits the machine."""


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
    changed = before.changed(serves=stored.generation + 1, shape=complete(before, shape))
    return stored.requested(changed, replaces=True)


def _resized(stored: DesiredState, change: ServiceChange, complete: Complete) -> DesiredState:
    definition = stored.definition
    if change.backup is not None:
        raise UnsupportedError(
            f"The embedded backend cannot change the backup of {stored.name!r} while it serves. Change it in the "
            "application, and deploy again."
        )
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
