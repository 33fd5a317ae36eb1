"""Changes of a service: from one desired state to the next. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import ServiceRecord, Shape
from scanflow.backends.service_spec import ServiceSpec, with_model
from scanflow.backends.shapes import apply_sizing
from scanflow.errors import NotFoundError, UsageError, did_you_mean
from scanflow.instance_messages import FoundModel, ModelFiles, Node, Revision

Recall = Callable[[str, int], Shape | None]
"""Return the shape stored with a version of a model."""

Complete = Callable[[ServiceSpec, Shape], Shape]
"""Derive a shape's thread variables, and check that it fits the machine or the cluster."""


def require_changeable(desired: DesiredState | None, name: str) -> DesiredState:
    """Return a service's desired state if it can be changed.

    Raises:
        NotFoundError: it was deleted.
        UsageError: it is not deployed yet.
    """
    if desired is None or desired.deleted:
        raise NotFoundError(f"The service {name!r} was deleted meanwhile.")
    if desired.hopeless or not desired.settled:
        raise UsageError(f"The service {name!r} is not deployed yet. Deploy it first: scanflow deploy")
    return desired


def check_backup(name: str, backup: str, services: Iterable[ServiceRecord]) -> None:
    """Raise unless ``backup`` can be the backup of the service ``name``, which is one of ``services``.

    Raises:
        NotFoundError: the same application serves no such workflow.
        UsageError: one of the two has a backup, or is one.
    """
    by_name = {service.name: service for service in services}
    candidate, primary = by_name.get(backup), by_name[name]
    if candidate is None or (candidate.app, candidate.team) != (primary.app, primary.team):
        others = [
            service.name for service in by_name.values() if (service.app, service.team) == (primary.app, primary.team)
        ]
        raise NotFoundError(
            f"The application {primary.app!r} has no online workflow {backup!r} to use as a backup."
            f"{did_you_mean(backup, others)} Deploy it first: scanflow deploy"
        )
    if backup == name or candidate.backup is not None or any(service.backup == name for service in by_name.values()):
        raise UsageError(
            f"{backup!r} cannot be the backup of {name!r}: chains of backups are not supported. Remove one of the two."
        )


def add_alias(desired: DesiredState, name: str) -> DesiredState:
    """Return the state with an alias: the name of a service whose backup it is."""
    definition = desired.definition
    if name in definition.aliases:
        return desired
    return desired.request_definition(definition.with_changes(aliases=(*definition.aliases, name)), replaces=False)


def explain_rejection(name: str, version: int, rejection: str) -> str:
    """Return why a version is not served without a reason, and what to do. ``rejection``: by whom, and why."""
    return (
        f"Version {version} of {name} was {rejection}. Choose another: scanflow models {name}. To use it all the same, "
        f"say why: scanflow models promote {name} {version} --why TEXT"
    )


def apply_change(
    desired: DesiredState, change: ServiceChange, files: ModelFiles | None, recall: Recall, complete: Complete
) -> DesiredState:
    """Return the state with a change requested. ``files`` are those of ``change.model``.

    Raises:
        UsageError: it cannot be made; the message says why.
    """
    if change.rollback:
        return _roll_back(desired, recall, complete)
    if files is None:
        return _promote(desired) if change.promote else _resize(desired, change, complete)
    if isinstance(files, FoundModel):
        if files.rejection is not None and not (change.reason or change.removes_canary):
            raise UsageError(explain_rejection(files.name, files.version, files.rejection))
        files = files.files
    nodes = with_model(desired.definition, files, change.node)
    name = f"models:/{files.name}/{files.version}"
    return (_set_canary if change.is_canary else _swap_model)(desired, change, nodes, name)


def _set_canary(desired: DesiredState, change: ServiceChange, nodes: tuple[Node, ...], name: str) -> DesiredState:
    """Make a version the canary (a share of the requests) or shadow (a copy of each), or change its share."""
    definition, generation = desired.definition, desired.generation + 1
    weight, shadow = change.weight or 0.0, bool(change.shadow)
    canary = definition.canary if definition.canary is not None and definition.canary.nodes == nodes else None
    if change.removes_canary:
        if canary is None:
            raise UsageError(
                f"{name} already gets no requests. Give it a share: --weight 0.1, or a copy of each: --shadow"
            )
        return desired.serve_only(definition.current, replaces=False)
    if nodes == definition.current.nodes:
        raise UsageError(f"{name} is already served by {desired.name!r}. Name another version.")
    current = replace(definition.current, weight=1.0 if shadow else 1.0 - weight)
    id_ = f"r{generation}" if canary is None else canary.id
    revision = Revision(id=id_, nodes=nodes, weight=1.0 if shadow else weight, shadow=shadow)
    policy = change.policy or (definition.policy if canary else None)
    changed = definition.with_changes(revisions=(current, revision), policy=policy, serves=generation)
    return desired.request_definition(changed, replaces=False)


def _promote(desired: DesiredState) -> DesiredState:
    canary = desired.definition.canary
    if canary is None:
        raise UsageError(
            f"{desired.name!r} has no canary. Name the version to serve: scanflow promote {desired.name} models:/name/2"
        )
    return desired.serve_only(canary, replaces=True)


def _swap_model(desired: DesiredState, _: ServiceChange, nodes: tuple[Node, ...], name: str) -> DesiredState:
    """Serve another version of a model in the running processes."""
    definition = desired.definition
    if nodes == definition.current.nodes and definition.canary is None:
        raise UsageError(f"{name} is already served by {desired.name!r}.")
    return desired.serve_only(Revision(id=f"r{desired.generation + 1}", nodes=nodes), replaces=True)


def _roll_back(desired: DesiredState, recall: Recall, complete: Complete) -> DesiredState:
    """Remove the canary; without one, return to the previous definition, in the shape it had."""
    if desired.definition.canary is not None:
        return desired.serve_only(desired.definition.current, replaces=False)
    previous = desired.previous
    if previous is None:
        raise UsageError(
            f"{desired.name!r} has no earlier definition to roll back to: it was deployed once and not changed."
        )
    model = next((node.model for node in previous.current.nodes if node.model is not None), None)
    shape = (model and recall(model.name, model.version)) or previous.shape
    aliases = desired.definition.aliases  # set by the services whose backup it is
    changed = previous.with_changes(serves=desired.generation + 1, shape=complete(previous, shape), aliases=aliases)
    return desired.request_definition(changed, replaces=True)


def _resize(desired: DesiredState, change: ServiceChange, complete: Complete) -> DesiredState:
    definition = desired.definition
    if change.backup is not None:
        definition = definition.with_changes(serving=definition.serving.replace(backup=change.backup or None))
    if change.scaling is not None:
        scaling = None if change.scaling == "off" else change.scaling
        definition = definition.with_changes(scaling=scaling)
    shape = definition.shape if change.sizing is None else apply_sizing(definition.shape, change.sizing)
    scaling = definition.scaling
    if scaling is not None and change.instances is None:
        shape = shape.model_copy(update={"instances": min(max(shape.instances, scaling.min), scaling.max)})
    elif change.scaling == "off" and change.instances is None:
        shape = shape.model_copy(update={"instances": max(shape.instances, 1)})
    if scaling is not None and not scaling.min <= shape.instances <= scaling.max:
        raise UsageError(
            f"{desired.name!r} has scaling from {scaling.min} to {scaling.max} instances, so it cannot have "
            f"{shape.instances}. Change the scaling as well, or turn it off."
        )
    return desired.request_definition(definition.with_changes(shape=complete(definition, shape)), replaces=False)
