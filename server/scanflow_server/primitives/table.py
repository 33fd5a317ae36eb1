"""All operations of thesis Table 5.4 by their names, and the one function that carries one out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scanflow.agent.primitive_model import PrimitiveResult, installed_primitive
from scanflow.agent.records import PrimitiveCall
from scanflow.app.workflow import WorkflowType
from scanflow.deployer import Deployer
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError, UsageError, did_you_mean
from scanflow_server.primitives import definitions, replicas, runs, services
from scanflow_server.primitives.action_context import ActionContext, Applications, Runs

Primitive = Callable[[ActionContext, Mapping[str, Any]], PrimitiveResult]

BATCH: Mapping[str, Primitive] = {
    "run_workflow": runs.run_workflow,
    "stop_workflow": runs.stop_workflow,
    "upgrade_workflow": definitions.upgrade_batch,
    "update_workflow_affinity": definitions.update_batch_affinity,
    "update_workflow_resource": definitions.update_batch_resource,
    "run_executor": runs.run_executor,
    "stop_executor": runs.stop_executor,
    "upgrade_executor": definitions.upgrade_executor,
    "update_executor_affinity": definitions.update_executor_affinity,
    "update_executor_resource": definitions.update_executor_resource,
}

ONLINE: Mapping[str, Primitive] = {
    "deploy_workflow": services.deploy_workflow,
    "delete_workflow": services.delete_workflow,
    "upgrade_workflow": services.upgrade_service,
    "update_workflow_affinity": services.update_service_affinity,
    "update_workflow_resource": services.update_service_resource,
    "update_workflow_replica": replicas.update_workflow_replica,
    "update_workflow_traffic": services.update_workflow_traffic,
    "apply_workflow_instance": services.apply_workflow_instance,
    "delete_workflow_instance": replicas.delete_workflow_instance,
    "duplicate_workflow_instance": replicas.duplicate_workflow_instance,
}

_TABLES: Mapping[WorkflowType, Mapping[str, Primitive]] = {"batch": BATCH, "online": ONLINE, "mpi": {}}


def do(
    deployer: Deployer,
    applications: Applications,
    call: PrimitiveCall,
    *,
    app: str,
    team: str,
    key: str = "",
    runs: Runs | None = None,
    noted: PrimitiveCall | None = None,
    note: Callable[[PrimitiveCall], None] | None = None,
) -> PrimitiveResult:
    """Carry out one call.

    Args:
        deployer: Who runs and serves.
        applications: Where applications are kept as they are wanted.
        call: The primitive and its arguments.
        app: Whose workflow it is.
        team: Whose application it is.
        key: Idempotency key. PrimitiveResult again with the same key and ``noted``, it is as if it was done once.
        runs: Who begins runs. None: they are driven here, to their end.
        noted: The inverse that an earlier try has noted, if one was cut off.
        note: Is given the inverse before anything is changed.

    Raises:
        ScanflowError: it cannot be done; nothing was changed.
    """
    more: dict[str, Any] = {} if note is None else {"note": note}
    context = ActionContext(
        deployer=deployer,
        applications=applications,
        runs=runs or _inline(deployer),
        app=app,
        team=team,
        key=key,
        noted=noted,
        **more,
    )
    return carry_out(context, call)


def carry_out(context: ActionContext, call: PrimitiveCall) -> PrimitiveResult:
    """Carry out one call in this context."""
    if call.primitive not in BATCH and call.primitive not in ONLINE:
        installed = installed_primitive(call.primitive)
        if installed is not None:
            arguments: dict[str, Any] = dict(call.arguments)
            return installed(**arguments).carry_out(context)
        raise NotFoundError(
            f"There is no primitive {call.primitive!r}.{did_you_mean(call.primitive, [*BATCH, *ONLINE])} See: scanflow "
            "strategies primitives"
        )
    return _table_for(context, call)[call.primitive](context, call.arguments)


def _table_for(context: ActionContext, call: PrimitiveCall) -> Mapping[str, Primitive]:
    """Return the half of the table that a call means: that of its workflow's type, for names that are in both."""
    own = [table for table in (BATCH, ONLINE) if call.primitive in table]
    name = call.arguments.get("workflow")
    if not isinstance(name, str):
        if len(own) == 1:
            return own[0]
        raise InvalidError(f"{call.primitive} needs 'workflow', the name of one.")
    try:
        kind = context.workflow(name)[1].type
    except NotFoundError:
        if len(own) == 1:
            return own[0]  # a service or a run may outlive its workflow's place in the application
        raise
    asked = call.arguments.get("kind", kind)
    table = _TABLES[kind]
    if not table:
        raise UnsupportedError(f"{call.primitive}: the embedded backend runs no workflow of type {kind!r}.")
    if asked != kind or call.primitive not in table:
        wanted = asked if asked != kind else "online" if kind == "batch" else "batch"
        raise UsageError(
            f"{call.primitive} is asked for a workflow of type {str(wanted)!r}, and {name!r} is of type {kind!r}. "
            f"For that there is: {', '.join(table)}."
        )
    return table


def _inline(deployer: Deployer) -> Runs:
    from scanflow_server.primitives.runs import InlineRuns

    return InlineRuns(deployer)
