"""What an application says of the nodes of an online workflow: changed as an action wants it, and given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from scanflow.app.resources import Affinity
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.errors import NotFoundError
from scanflow_server.primitives.action_context import ActionContext

T = TypeVar("T")
V = TypeVar("V")
Values = Callable[[Workflow], Mapping[str, V]]
"""What a workflow's nodes are to say, by their names; of those that are not named nothing is changed."""


@dataclass(frozen=True, slots=True)
class Said(Generic[V]):
    """One thing that an application says of each node."""

    get: Callable[[Service], V]
    put: Callable[[Service, V], Service]

    def written(self, workflow: Workflow, values: Mapping[str, V]) -> Workflow:
        """Return the workflow whose nodes say so."""
        changed = {one.name: self.put(one, values[one.name]) for one in workflow.services if one.name in values}
        return with_services(workflow, changed)


def _affinity(one: Service) -> Any:
    """Return an affinity as it is written; None for one that asks for nothing."""
    return None if one.affinity in (None, Affinity()) else one.model_dump(mode="json")["affinity"]


def _with_cores(one: Service, cores: float | None) -> Service:
    return one.replace(resources=one.resources.replace(cpu=cores))


def _with_model(one: Service, model: str | None) -> Service:
    return one if one.model is None else one.replace(model=model)


INSTANCES: Said[int] = Said(lambda one: one.instances, lambda one, value: one.replace(instances=value))
AFFINITY: Said[Any] = Said(_affinity, lambda one, value: one.replace(affinity=value))
CORES: Said[float | None] = Said(lambda one: one.resources.cores, _with_cores)
MODEL: Said[str | None] = Said(lambda one: one.model, _with_model)


def wanted(context: ActionContext, name: str) -> Workflow | None:
    """Return the workflow as the application has it; None: a service may outlive its workflow's place in it."""
    try:
        return context.workflow(name)[1]
    except NotFoundError:
        return None


def keep(context: ActionContext, name: str, said: Said[V], values: Values[V]) -> None:
    """Have the application say so from now on, where it still has the workflow."""
    try:
        context.keep(name, lambda workflow: said.written(workflow, values(workflow)))
    except NotFoundError:
        return


def given_back(context: ActionContext, name: str, said: Said[V], there: Values[V], back: Values[V]) -> dict[str, Any]:
    """Return what an inverse has to be told besides, so that the application then says what it says now.

    Args:
        context: Whose application.
        name: The workflow.
        said: What of its nodes.
        there: What the action that is to be undone will write.
        back: What its inverse will write by itself.

    Returns:
        ``nodes`` with what those nodes say now that would not have it again; nothing, where all would.
    """
    workflow = wanted(context, name)
    if workflow is None:
        return {}
    changed = said.written(workflow, there(workflow))
    undone = {one.name: said.get(one) for one in said.written(changed, back(changed)).services}
    lost = {one.name: said.get(one) for one in workflow.services if said.get(one) != undone[one.name]}
    return {"nodes": lost} if lost else {}


def each(workflow: Workflow, value: T) -> dict[str, T]:
    """Return the same for every node."""
    return {one.name: value for one in workflow.services}


def with_services(workflow: Workflow, changed: Mapping[str, Service]) -> Workflow:
    """Return the workflow with nodes replaced."""
    return workflow.replace(nodes=tuple(changed.get(one.name, one) for one in workflow.nodes))
