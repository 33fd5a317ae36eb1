"""The changes that can be asked for of a service: from what is wanted to what is wanted next. Pure."""

from __future__ import annotations

from collections.abc import Callable

from scanflow.backends.local.services.definition import Definition, with_model
from scanflow.backends.local.services.stored import Stored
from scanflow.backends.service_records import Judgement, Shape
from scanflow.errors import UsageError
from scanflow.wire import ModelFiles, Node, Revision

__all__ = ["promoted", "reshaped", "rolled_back", "swapped", "tried"]

Complete = Callable[[Definition, Shape], Shape]
"""Derive a shape's thread variables, and check that it fits the machine."""


def tried(
    stored: Stored, files: ModelFiles, *, node: str | None, weight: float, shadow: bool, judgement: Judgement | None
) -> Stored:
    """Put a version of a model on trial, with a share of the requests or a copy of each; or change that share.

    Raises:
        UsageError: it is what is served already, or there is nothing whose share could be taken away.
    """
    definition = stored.definition
    nodes = with_model(definition, files, node)
    trial = definition.trial
    same = trial is not None and trial.nodes == nodes
    if weight <= 0 and not shadow:
        if not same:
            raise UsageError(
                f"{_name(files)} gets no requests already. Give it a share: --weight 0.1, or a copy of each: --shadow"
            )
        return stored.asked(definition.settled_on(definition.current, stored.generation + 1), replaces=False)
    if nodes == definition.current.nodes:
        raise UsageError(f"{_name(files)} is what {stored.name!r} serves already. Name another version.")
    generation = stored.generation + 1
    name = trial.id if same and trial is not None else f"r{generation}"
    current = Revision(id=definition.current.id, nodes=definition.current.nodes, weight=1.0 if shadow else 1.0 - weight)
    on_trial = Revision(id=name, nodes=nodes, weight=1.0 if shadow else weight, shadow=shadow)
    kept = judgement or (definition.judgement if same else None)
    changed = definition.changed(revisions=(current, on_trial), judgement=kept, serves=generation)
    return stored.asked(changed, replaces=False)


def promoted(stored: Stored) -> Stored:
    """Make what is on trial the current one.

    Raises:
        UsageError: nothing is.
    """
    definition = stored.definition
    if definition.trial is None:
        raise UsageError(
            f"Nothing of {stored.name!r} is on trial. Name the version to serve: scanflow promote {stored.name} "
            "models:/name/2"
        )
    return stored.asked(definition.settled_on(definition.trial, stored.generation + 1), replaces=True)


def swapped(stored: Stored, files: ModelFiles, node: str | None) -> Stored:
    """Serve another version of a model from now on, in the processes that run.

    Raises:
        UsageError: it is served already.
    """
    definition = stored.definition
    nodes = with_model(definition, files, node)
    if nodes == definition.current.nodes and definition.trial is None:
        raise UsageError(f"{_name(files)} is what {stored.name!r} serves already.")
    return stored.asked(_only(definition, nodes, stored.generation + 1), replaces=True)


def rolled_back(stored: Stored, recall: Callable[[str, int], Shape | None], complete: Complete) -> Stored:
    """Take back what is on trial; where nothing is, return to what was served before, cut as it was then.

    Raises:
        UsageError: there is nothing to go back to.
    """
    definition, generation = stored.definition, stored.generation + 1
    if definition.trial is not None:
        return stored.asked(definition.settled_on(definition.current, generation), replaces=False)
    before = stored.previous
    if before is None:
        raise UsageError(f"There is nothing to roll {stored.name!r} back to: it was deployed once and not changed.")
    shape = before.shape
    for model in before.registry_models():
        shape = recall(model.name, model.version) or shape
        break
    return stored.asked(before.changed(serves=generation, shape=complete(before, shape)), replaces=True)


def reshaped(stored: Stored, shape: Shape, complete: Complete) -> Stored:
    """Cut a service anew.

    Raises:
        UsageError: its scaling decides on the number of instances, and would not choose that one.
        InvalidError: it does not fit the machine.
    """
    definition = stored.definition
    scaling = definition.scaling
    if scaling is not None and not scaling.min <= shape.instances <= scaling.max:
        raise UsageError(
            f"{stored.name!r} has a scaling from {scaling.min} to {scaling.max} instances, so it cannot have "
            f"{shape.instances}. Change the scaling and deploy again."
        )
    return stored.asked(definition.changed(shape=complete(definition, shape)), replaces=False)


def _only(definition: Definition, nodes: tuple[Node, ...], generation: int) -> Definition:
    return definition.settled_on(Revision(id=f"r{generation}", nodes=nodes), generation)


def _name(files: ModelFiles) -> str:
    return f"models:/{files.name}/{files.version}"
