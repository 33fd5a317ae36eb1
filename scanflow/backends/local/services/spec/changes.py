"""The changes that can be asked for of a service: from what is wanted to what is wanted next. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from scanflow.backends.local.services.spec.service_spec import ServiceSpec, with_model
from scanflow.backends.local.services.state.desired import DesiredState
from scanflow.backends.service_change import CanaryPolicy, ServiceChange
from scanflow.backends.service_records import Shape
from scanflow.backends.shapes import changed_shape
from scanflow.errors import UnsupportedError, UsageError
from scanflow.wire import ModelFiles, Revision

Complete = Callable[[ServiceSpec, Shape], Shape]
"""Derive a shape's thread variables, and check that it fits the machine."""


def applied(
    stored: DesiredState,
    change: ServiceChange,
    files: ModelFiles | None,
    recall: Callable[[str, int], Shape | None],
    complete: Complete,
) -> DesiredState:
    """Return the service with a change asked for. ``files`` are those of ``change.model``.

    Raises:
        UsageError: it cannot be made; the message says why.
    """
    if change.rollback:
        return rolled_back(stored, recall, complete)
    if files is None:
        return promoted(stored) if change.promote else _resized(stored, change, complete)
    if not change.is_canary:
        return swapped(stored, files, change.node)
    return with_canary(
        stored, files, node=change.node, weight=change.weight or 0.0, shadow=bool(change.shadow), policy=change.policy
    )


def with_canary(
    stored: DesiredState,
    files: ModelFiles,
    *,
    node: str | None,
    weight: float,
    shadow: bool,
    policy: CanaryPolicy | None,
) -> DesiredState:
    """Make a version of a model the canary (a share of the requests) or shadow (a copy of each), or change its share.

    Raises:
        UsageError: it is what is served already, or there is no share to take away.
    """
    definition = stored.definition
    nodes = with_model(definition, files, node)
    trial = definition.canary
    same = trial is not None and trial.nodes == nodes
    if weight <= 0 and not shadow:
        if not same:
            raise UsageError(
                f"{_name(files)} gets no requests already. Give it a share: --weight 0.1, or a copy of each: --shadow"
            )
        return stored.requested(definition.settled_on(definition.current, stored.generation + 1), replaces=False)
    if nodes == definition.current.nodes:
        raise UsageError(f"{_name(files)} is what {stored.name!r} serves already. Name another version.")
    generation = stored.generation + 1
    name = trial.id if same and trial is not None else f"r{generation}"
    current = replace(definition.current, weight=1.0 if shadow else 1.0 - weight)
    other = Revision(id=name, nodes=nodes, weight=1.0 if shadow else weight, shadow=shadow)
    kept = policy or (definition.policy if same else None)
    changed = definition.changed(revisions=(current, other), policy=kept, serves=generation)
    return stored.requested(changed, replaces=False)


def promoted(stored: DesiredState) -> DesiredState:
    """Make the canary the current revision.

    Raises:
        UsageError: nothing is.
    """
    definition = stored.definition
    if definition.canary is None:
        raise UsageError(
            f"{stored.name!r} has no canary. Name the version to serve: scanflow promote {stored.name} models:/name/2"
        )
    return stored.requested(definition.settled_on(definition.canary, stored.generation + 1), replaces=True)


def swapped(stored: DesiredState, files: ModelFiles, node: str | None) -> DesiredState:
    """Serve another version of a model from now on, in the processes that run.

    Raises:
        UsageError: it is served already.
    """
    definition = stored.definition
    nodes = with_model(definition, files, node)
    if nodes == definition.current.nodes and definition.canary is None:
        raise UsageError(f"{_name(files)} is what {stored.name!r} serves already.")
    generation = stored.generation + 1
    swapped_in = definition.settled_on(Revision(id=f"r{generation}", nodes=nodes), generation)
    return stored.requested(swapped_in, replaces=True)


def rolled_back(stored: DesiredState, recall: Callable[[str, int], Shape | None], complete: Complete) -> DesiredState:
    """Take the canary back; where there is none, return to what was served before, in the shape it had then.

    Raises:
        UsageError: there is nothing to go back to.
    """
    definition, generation = stored.definition, stored.generation + 1
    if definition.canary is not None:
        return stored.requested(definition.settled_on(definition.current, generation), replaces=False)
    before = stored.previous
    if before is None:
        raise UsageError(f"There is nothing to roll {stored.name!r} back to: it was deployed once and not changed.")
    model = next((node.model for node in before.current.nodes if node.model is not None), None)
    shape = (model and recall(model.name, model.version)) or before.shape
    return stored.requested(before.changed(serves=generation, shape=complete(before, shape)), replaces=True)


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


def _name(files: ModelFiles) -> str:
    return f"models:/{files.name}/{files.version}"
