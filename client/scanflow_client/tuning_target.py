"""The workflow that a search tunes, or whose resources are characterized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scanflow.app.service import Service
from scanflow.application_loading import load_application
from scanflow.backends.shapes import compute_shape
from scanflow.errors import InvalidError, NotFoundError, UsageError

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.app.workflow import Workflow, WorkflowType
    from scanflow.backends.service_records import ServiceRecord, Shape
    from scanflow.deployer import Deployer


@dataclass(frozen=True, kw_only=True)
class TuningTarget:
    """The workflow to tune, deployed or not."""

    app: Application
    workflow: Workflow
    source: Path | None
    record: ServiceRecord | None = None
    """The service, where it is deployed."""

    @classmethod
    def find(cls, deployer: Deployer, target: str, *, types: Sequence[WorkflowType] = ("online",)) -> TuningTarget:
        """Return a deployed service by its name, or a workflow of these types by ``app.py:NAME``.

        Raises:
            NotFoundError: there is neither, or the service's file is gone.
            UsageError: the service's file is not recorded.
        """
        services = {service.name: service for service in deployer.services(instances=False)}
        record = services.get(target)
        if record is not None and record.source is None:
            raise UsageError(
                f"The file that {target!r} was deployed from is unknown. Name it: scanflow tune app.py:{target}"
            )
        file = target if record is None else f"{record.source}:{target}"
        try:
            app, path, name = load_application(file)
        except NotFoundError as error:
            if record is not None:
                raise NotFoundError(f"{error} Deploy it again.") from error
            cause = str(error).partition(". ")[0].rstrip(".")
            advice = f"There is no service {target!r} either. List them: scanflow services"
            raise NotFoundError(f"{cause}. {advice}") from error
        candidates = [workflow for workflow in app.workflows if workflow.type in types]
        workflow = app.workflow(candidates[0].name if name is None and len(candidates) == 1 else name)
        if workflow.type not in types:
            kinds = " or ".join(types)
            raise InvalidError(f"{workflow.name!r} is a {workflow.type} workflow. Name one of type {kinds}.")
        served = services.get(workflow.name)
        if served is None or (served.app, served.team) != (app.name, app.team):
            return cls(app=app, workflow=workflow, source=path)
        workflow = apply_served_models(workflow, served)
        return cls(app=app, workflow=workflow, source=path, record=served)

    @property
    def shape(self) -> Shape:
        """The shape with which it is served, or would be."""
        return compute_shape(self.workflow) if self.record is None else self.record.shape


def apply_served_models(workflow: Workflow, record: ServiceRecord) -> Workflow:
    """Return a workflow with the model versions that its service serves now, in place of those that its file names."""
    models = {} if record.current is None else record.current.models
    nodes = [
        node.replace(model=models[node.name]) if isinstance(node, Service) and node.name in models else node
        for node in workflow.nodes
    ]
    return workflow.replace(nodes=nodes)
