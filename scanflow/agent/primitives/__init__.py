"""The operation primitives of thesis Table 5.4, in snake_case: their catalogue (:data:`CATALOGUE`), and the models that
strategies build as actions. Building one validates its arguments and has no other effect.

Twenty rows with seventeen names: ``upgrade_workflow``, ``update_workflow_affinity`` and ``update_workflow_resource``
exist for batch and for online workflows, selected by their argument ``kind``. Three more rows are for MPI workflows:
``run_workflow`` and ``stop_workflow`` take those too, and ``run_autoconfig_workflow`` takes only those.
``tune_workflow`` is not in the thesis: it runs the search of 4.2 and 4.4 for a service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scanflow.agent.primitive_model import Act, JsonArguments, Primitive, PrimitiveModel, load_primitive
from scanflow.agent.primitives import (
    batch_primitives,
    job_primitives,
    service_primitives,
    tuning_primitives,
    workflow_primitives,
)
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.plugins import list_plugins

run_workflow = batch_primitives.RunWorkflow
stop_workflow = batch_primitives.StopWorkflow
run_autoconfig_workflow = job_primitives.RunAutoconfigWorkflow
upgrade_workflow = workflow_primitives.UpgradeWorkflow
update_workflow_affinity = workflow_primitives.UpdateWorkflowAffinity
update_workflow_resource = workflow_primitives.UpdateWorkflowResource
run_executor = batch_primitives.RunExecutor
stop_executor = batch_primitives.StopExecutor
upgrade_executor = batch_primitives.UpgradeExecutor
update_executor_affinity = batch_primitives.UpdateExecutorAffinity
update_executor_resource = batch_primitives.UpdateExecutorResource
deploy_workflow = service_primitives.DeployWorkflow
delete_workflow = service_primitives.DeleteWorkflow
update_workflow_replica = service_primitives.UpdateWorkflowReplica
update_workflow_traffic = service_primitives.UpdateWorkflowTraffic
apply_workflow_instance = service_primitives.ApplyWorkflowInstance
delete_workflow_instance = service_primitives.DeleteWorkflowInstance
duplicate_workflow_instance = service_primitives.DuplicateWorkflowInstance
tune_workflow = tuning_primitives.TuneWorkflow

_BUILT_IN: Mapping[str, Any] = {
    name: model
    for name, model in list(globals().items())
    if isinstance(model, type) and issubclass(model, PrimitiveModel) and getattr(model, "name", None) == name
}
CATALOGUE: tuple[Primitive, ...] = tuple(row for model in _BUILT_IN.values() for row in model.rows())
"""The twenty rows of thesis Table 5.4, those for MPI workflows (chapter 6), and ``tune_workflow``."""


def parse_act(primitive: str, arguments: Mapping[str, Any], *, inverse: bool = False) -> Act:
    """Build the primitive of a name from JSON arguments, validated.

    Some arguments are reserved for an ``inverse``, which undoes an action."""
    model: Any = _BUILT_IN.get(primitive) or load_primitive(primitive)
    if model is None:
        raise NotFoundError(
            f"There is no primitive {primitive!r}.{did_you_mean(primitive, _BUILT_IN)} See: scanflow strategies "
            "primitives"
        )
    act: PrimitiveModel = model(JsonArguments(arguments))
    if act.inverse_arguments and not inverse:
        raise InvalidError(f"The primitive {primitive!r} has no argument {act.inverse_arguments[0]!r}.")
    return act


def catalogue() -> tuple[Primitive, ...]:
    """Return all primitives: the built-in ones and those of installed packages."""
    installed = [load_primitive(name) for name in list_plugins("primitives")]
    return (*CATALOGUE, *(row for model in installed if model is not None for row in model.rows()))


if not TYPE_CHECKING:  # else a checker would take any name for a primitive

    def __getattr__(name: str) -> type[PrimitiveModel]:
        if name.startswith("_") or (model := load_primitive(name)) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return model
