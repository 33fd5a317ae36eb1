"""Helpers of the primitives on services: read a service, change and restore the values of its application's nodes, and
wait for changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scanflow.agent.primitives.arguments import drop_none
from scanflow.app.resources import Affinity
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.errors import NotFoundError, UnavailableError, UsageError

if TYPE_CHECKING:
    from scanflow.agent.primitive_context import PrimitiveContext
    from scanflow.backends.service_records import RevisionRecord, ServiceRecord
    from scanflow.deployer.deployer_port import Deployer

PATIENCE_S = 120.0
"""The timeout of waiting for a change. The change continues afterwards, and the next attempt waits again."""

_POLL_S = 0.05

T = TypeVar("T")
V = TypeVar("V")
Values = Callable[[Workflow], Mapping[str, V]]
"""The values to set, by the names of a workflow's nodes; other nodes stay unchanged."""


@dataclass(frozen=True, slots=True)
class NodeField(Generic[V]):
    get: Callable[[Service], V]
    put: Callable[[Service, V], Service]

    def set_values(self, workflow: Workflow, values: Mapping[str, V]) -> Workflow:
        nodes = {node.name: self.put(node, values[node.name]) for node in workflow.services if node.name in values}
        return replace_services(workflow, nodes)


def _serialize_affinity(node: Service) -> Any:
    """Serialize the affinity of a node; None for an empty one."""
    return None if node.affinity in (None, Affinity()) else node.model_dump(mode="json")["affinity"]


def _with_affinity(node: Service, value: Any) -> Service:
    """Return the node with an affinity; an empty one counts as none."""
    changed = node.replace(affinity=value)
    return changed if changed.affinity != Affinity() else node.replace(affinity=None)


def _with_cores(node: Service, cores: float | None) -> Service:
    return node.replace(resources=node.resources.replace(cpu=cores))


def _with_model(node: Service, model: str | None) -> Service:
    return node if node.model is None else node.replace(model=model)


INSTANCES: NodeField[int] = NodeField(lambda node: node.instances, lambda node, value: node.replace(instances=value))
AFFINITY: NodeField[Any] = NodeField(_serialize_affinity, _with_affinity)
CORES: NodeField[float | None] = NodeField(lambda node: node.resources.cores, _with_cores)
MODEL: NodeField[str | None] = NodeField(lambda node: node.model, _with_model)


def find_workflow(context: PrimitiveContext, name: str) -> Workflow | None:
    """Return the workflow of the stored application; None: it was removed there, and only the service is left."""
    try:
        return context.workflow(name)[1]
    except NotFoundError:
        return None


def store_values(context: PrimitiveContext, name: str, field: NodeField[V], values: Values[V]) -> None:
    """Store values in the application, if it still has the workflow."""
    try:
        context.update_workflow(name, lambda workflow: field.set_values(workflow, values(workflow)))
    except NotFoundError:
        return


def build_restore_arguments(
    context: PrimitiveContext, name: str, field: NodeField[V], there: Values[V], back: Values[V]
) -> dict[str, Any]:
    """Return the arguments that an inverse needs besides the service's value, to restore the application's values.

    These are ``nodes``, with the current values of those that would have others after the action wrote the values
    ``there`` and its inverse the values ``back``; empty, where there are none."""
    workflow = find_workflow(context, name)
    if workflow is None:
        return {}
    changed = field.set_values(workflow, there(workflow))
    undone = {node.name: field.get(node) for node in field.set_values(changed, back(changed)).services}
    lost = {node.name: field.get(node) for node in workflow.services if field.get(node) != undone[node.name]}
    return {"nodes": lost} if lost else {}


def assign_to_nodes(workflow: Workflow, value: T) -> dict[str, T]:
    return {node.name: value for node in workflow.services}


def replace_services(workflow: Workflow, changed: Mapping[str, Service]) -> Workflow:
    return workflow.replace(nodes=tuple(changed.get(node.name, node) for node in workflow.nodes))


def get_served_models(record: ServiceRecord) -> dict[str, str]:
    """Return the served versions, by the names of nodes with a registered model."""
    return {} if record.current is None else dict(record.current.models)


def find_canary(record: ServiceRecord) -> RevisionRecord | None:
    return next((revision for revision in record.revisions if revision.role != "current"), None)


def get_own_service(context: PrimitiveContext, name: str) -> ServiceRecord:
    """Return a service of the context's application; raise ``UsageError`` if it is another application's."""
    record = context.deployer.service(name)
    if (record.app, record.team) != (context.app, context.team):
        raise UsageError(
            f"The service {name!r} belongs to the application {record.app!r} of the team {record.team!r}, not to "
            f"{context.app!r} of {context.team!r}. An agent can only change services of its own application."
        )
    return record


def find_own_service(context: PrimitiveContext, name: str) -> ServiceRecord | None:
    """Return a service of the context's application; None: there is none of that name."""
    names = {service.name for service in context.deployer.services()}
    return get_own_service(context, name) if name in names else None


def get_sizing(record: ServiceRecord) -> dict[str, Any]:
    """Return the sizing of a service as arguments, without unlimited values."""
    shape = record.shape
    cut = {"instances": shape.instances, "cores": shape.cores, "gpu": shape.gpu or None, "affinity": shape.affinity}
    return {"workflow": record.name, **drop_none(cut)}


def summarize_service(record: ServiceRecord) -> dict[str, Any]:
    shape = record.shape
    return {
        "service": record.name,
        "state": record.state,
        "models": {} if record.current is None else dict(record.current.models),
        "instances": shape.instances,
        "cores": shape.cores,
        "affinity": shape.affinity,
    }


def wait_until_in_effect(
    deployer: Deployer, requested: ServiceRecord, is_wanted: Callable[[ServiceRecord], bool]
) -> ServiceRecord:
    """Wait until a change of a service is in effect, at most :data:`PATIENCE_S`, and return the service.

    ``requested`` is the service with the requested change; ``is_wanted`` returns whether the change is still requested:
    one that fails is undone."""
    deadline, record = time.monotonic() + PATIENCE_S, requested
    # A service that was never settled is still being deployed; its deployment is waited for elsewhere.
    while requested.settled and record.settled < requested.generation and is_wanted(record):
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"The change of {requested.name!r} is not in effect after {PATIENCE_S:.0f} s; it continues. Watch it: "
                f"scanflow services {requested.name}"
            )
        time.sleep(_POLL_S)
        record = deployer.service(requested.name)
    if not is_wanted(record):
        why = record.error or "another client has changed it since"
        raise UsageError(
            f"The change of {requested.name!r} was undone, and the previous version is still served: {why}"
        )
    return record
