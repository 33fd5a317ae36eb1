"""A service as primitives find it, and what the application says of its nodes: changed as an action wants it, given
back, and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scanflow.agent.primitives.arguments import given_only
from scanflow.app.resources import Affinity
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.errors import NotFoundError, UnavailableError, UsageError

if TYPE_CHECKING:
    from scanflow.agent.primitive_context import PrimitiveContext
    from scanflow.backends.service_records import RevisionRecord, ServiceRecord
    from scanflow.deployer.port import Deployer

PATIENCE_S = 120.0
"""Longest that a change is waited for; it goes on after that, and is waited for again."""

_POLL_S = 0.05

T = TypeVar("T")
V = TypeVar("V")
Values = Callable[[Workflow], Mapping[str, V]]
"""What a workflow's nodes are to say, by their names; of those that are not named nothing is changed."""


@dataclass(frozen=True, slots=True)
class Said(Generic[V]):
    get: Callable[[Service], V]
    put: Callable[[Service, V], Service]

    def written(self, workflow: Workflow, values: Mapping[str, V]) -> Workflow:
        changed = {one.name: self.put(one, values[one.name]) for one in workflow.services if one.name in values}
        return with_services(workflow, changed)


def _affinity(one: Service) -> Any:
    """Return an affinity as it is written; None for one that asks for nothing."""
    return None if one.affinity in (None, Affinity()) else one.model_dump(mode="json")["affinity"]


def _with_affinity(one: Service, value: Any) -> Service:
    """Return the node with an affinity; one that asks for nothing is none."""
    made = one.replace(affinity=value)
    return made if made.affinity != Affinity() else one.replace(affinity=None)


def _with_cores(one: Service, cores: float | None) -> Service:
    return one.replace(resources=one.resources.replace(cpu=cores))


def _with_model(one: Service, model: str | None) -> Service:
    return one if one.model is None else one.replace(model=model)


INSTANCES: Said[int] = Said(lambda one: one.instances, lambda one, value: one.replace(instances=value))
AFFINITY: Said[Any] = Said(_affinity, _with_affinity)
CORES: Said[float | None] = Said(lambda one: one.resources.cores, _with_cores)
MODEL: Said[str | None] = Said(lambda one: one.model, _with_model)


def wanted(context: PrimitiveContext, name: str) -> Workflow | None:
    """Return the workflow as the application has it; None: a service may outlive its workflow's place in it."""
    try:
        return context.workflow(name)[1]
    except NotFoundError:
        return None


def keep(context: PrimitiveContext, name: str, said: Said[V], values: Values[V]) -> None:
    """Have the application say so from now on, where it still has the workflow."""
    try:
        context.keep(name, lambda workflow: said.written(workflow, values(workflow)))
    except NotFoundError:
        return


def given_back(
    context: PrimitiveContext, name: str, said: Said[V], there: Values[V], back: Values[V]
) -> dict[str, Any]:
    """Return what an inverse has to be told besides, so that the application then says what it says now.

    It is ``nodes`` with what those say now that would not have it again, where the action writes what is ``there``, and
    its inverse by itself what is given ``back``; nothing, where all would."""
    workflow = wanted(context, name)
    if workflow is None:
        return {}
    changed = said.written(workflow, there(workflow))
    undone = {one.name: said.get(one) for one in said.written(changed, back(changed)).services}
    lost = {one.name: said.get(one) for one in workflow.services if said.get(one) != undone[one.name]}
    return {"nodes": lost} if lost else {}


def each(workflow: Workflow, value: T) -> dict[str, T]:
    return {one.name: value for one in workflow.services}


def with_services(workflow: Workflow, changed: Mapping[str, Service]) -> Workflow:
    return workflow.replace(nodes=tuple(changed.get(one.name, one) for one in workflow.nodes))


def served_models(record: ServiceRecord) -> dict[str, str]:
    """Return, for each node that is a registered model, the version that is served."""
    return {} if record.current is None else dict(record.current.models)


def canary_of(record: ServiceRecord) -> RevisionRecord | None:
    return next((one for one in record.revisions if one.role != "current"), None)


def mine(context: PrimitiveContext, name: str) -> ServiceRecord:
    """Return a service of the application that it is done for, and of no other."""
    record = context.deployer.service(name)
    if (record.app, record.team) != (context.app, context.team):
        raise UsageError(
            f"The service {name!r} is of the application {record.app!r} of the team {record.team!r}, and not of "
            f"{context.app!r} of {context.team!r}. An agent changes what is its own application's."
        )
    return record


def found(context: PrimitiveContext, name: str) -> ServiceRecord | None:
    """Return it; None: there is none of that name."""
    return mine(context, name) if any(one.name == name for one in context.deployer.services()) else None


def cut_of(record: ServiceRecord) -> dict[str, Any]:
    """Return how a service is cut, as arguments; what is not limited is left out."""
    shape = record.shape
    cut = {"instances": shape.instances, "cores": shape.cores, "affinity": shape.affinity}
    return {"workflow": record.name, **given_only(cut)}


def summary_of(record: ServiceRecord) -> dict[str, Any]:
    shape = record.shape
    return {
        "service": record.name,
        "state": record.state,
        "instances": shape.instances,
        "cores": shape.cores,
        "affinity": shape.affinity,
    }


def in_effect(
    deployer: Deployer, asked: ServiceRecord, still: Callable[[ServiceRecord], bool], *, patience_s: float = PATIENCE_S
) -> ServiceRecord:
    """Return the service once what was wanted of it is wholly in effect, for which ``patience_s`` are waited.

    ``asked`` is the service as it was found, with the change asked for; ``still`` says whether that is still wanted of
    it: a change that cannot be is undone."""
    give_up, record = time.monotonic() + patience_s, asked
    # A service of which nothing was in effect yet is being deployed; whoever does that waits for it.
    while asked.settled and record.settled < asked.generation and still(record):
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"The change of {asked.name!r} is not in effect after {patience_s:.0f} s; it goes on. Watch it: "
                f"scanflow services {asked.name}"
            )
        time.sleep(_POLL_S)
        record = deployer.service(asked.name)
    if not still(record):
        why = record.error or "another client has changed it since"
        raise UsageError(f"The change of {asked.name!r} was undone, and what served before serves on: {why}")
    return record
