"""The operation primitives of thesis Table 5.4, in snake_case: what they are (:data:`CATALOGUE`), and the models by
which a strategy says what it wants done. Making one checks its arguments; it does nothing.

Twenty rows over seventeen names: ``upgrade_workflow``, ``update_workflow_affinity`` and ``update_workflow_resource``
are there for batch workflows and for online ones, told apart by their argument ``kind``. Three more are for MPI
workflows: ``run_workflow`` and ``stop_workflow`` take those too, and ``run_autoconfig_workflow`` is theirs alone.
``tune_workflow`` is none of the thesis': it has the search of 4.2 and 4.4 made for a service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scanflow.agent.primitive_model import Act, AsWritten, Primitive, PrimitiveModel, installed_primitive
from scanflow.agent.primitives import batch, jobs, online, tuning, workflows
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.plugins import plugin_names

run_workflow = batch.RunWorkflow
stop_workflow = batch.StopWorkflow
run_autoconfig_workflow = jobs.RunAutoconfigWorkflow
upgrade_workflow = workflows.UpgradeWorkflow
update_workflow_affinity = workflows.UpdateWorkflowAffinity
update_workflow_resource = workflows.UpdateWorkflowResource
run_executor = batch.RunExecutor
stop_executor = batch.StopExecutor
upgrade_executor = batch.UpgradeExecutor
update_executor_affinity = batch.UpdateExecutorAffinity
update_executor_resource = batch.UpdateExecutorResource
deploy_workflow = online.DeployWorkflow
delete_workflow = online.DeleteWorkflow
update_workflow_replica = online.UpdateWorkflowReplica
update_workflow_traffic = online.UpdateWorkflowTraffic
apply_workflow_instance = online.ApplyWorkflowInstance
delete_workflow_instance = online.DeleteWorkflowInstance
duplicate_workflow_instance = online.DuplicateWorkflowInstance
tune_workflow = tuning.TuneWorkflow

_BUILT_IN: Mapping[str, Any] = {
    name: found
    for name, found in list(globals().items())
    if isinstance(found, type) and issubclass(found, PrimitiveModel) and getattr(found, "name", None) == name
}
CATALOGUE: tuple[Primitive, ...] = tuple(row for model in _BUILT_IN.values() for row in model.rows())
"""The twenty rows of thesis Table 5.4, those for MPI workflows (chapter 6), and ``tune_workflow``."""


def act_of(primitive: str, arguments: Mapping[str, Any], *, inverse: bool = False) -> Act:
    """Return the primitive of that name with these arguments, checked: what was sent or kept as JSON, read back.

    Some arguments only an ``inverse`` may have, which undoes an action."""
    model: Any = _BUILT_IN.get(primitive) or installed_primitive(primitive)
    if model is None:
        raise NotFoundError(
            f"There is no primitive {primitive!r}.{did_you_mean(primitive, _BUILT_IN)} See: scanflow strategies "
            "primitives"
        )
    act: PrimitiveModel = model(AsWritten(arguments))
    if act.inverse_arguments and not inverse:
        raise InvalidError(f"The primitive {primitive!r} has no argument {act.inverse_arguments[0]!r}.")
    return act


def catalogue() -> tuple[Primitive, ...]:
    """Return all primitives: those of the thesis, and those that installed packages add."""
    installed = [installed_primitive(name) for name in plugin_names("primitives")]
    return (*CATALOGUE, *(row for model in installed if model is not None for row in model.rows()))


if not TYPE_CHECKING:  # else a checker would take any name for a primitive

    def __getattr__(name: str) -> type[PrimitiveModel]:
        if name.startswith("_") or (model := installed_primitive(name)) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return model
