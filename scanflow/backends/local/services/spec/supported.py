"""Checks of online workflows for fields that this backend does not support."""

from __future__ import annotations

from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.resources import Affinity
from scanflow.app.serving import Serving
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.errors import UnsupportedError


def list_requirements(app: Application, workflow: Workflow) -> tuple[Path, ...]:
    """Return the requirements file of the instances' environment, if any: all nodes share one."""
    places = AppFiles(app, workflow)
    services_by_file = {
        places.find(service.requirements, service.name): service
        for service in workflow.services
        if service.requirements is not None
    }
    if len(services_by_file) > 1:
        first, second = (service.name for service in list(services_by_file.values())[:2])
        raise UnsupportedError(
            f"Workflow {workflow.name!r}: the embedded backend does not support requirements: {first!r} and {second!r} "
            "name different files, but all nodes of a workflow run in one process. Merge them into one file, or split "
            "the workflow in two."
        )
    return tuple(services_by_file)


def check_supported(app: Application, workflow: Workflow) -> None:
    """Reject fields that this backend does not support."""
    for node in workflow.services:
        affinity = node.affinity if isinstance(node.affinity, Affinity) else Affinity()
        problems = {
            "affinity": (affinity.node_selector or affinity.apart_from or affinity.avoid_services)
            and "there is one machine, and only batch steps can avoid services. Remove all fields but mode."
        }
        for field, problem in problems.items():
            if problem:
                raise UnsupportedError(
                    f"Service {node.name!r}: the embedded backend does not support {field}: {problem}"
                )
    backup = (workflow.serving or Serving()).backup
    online = {other.name: other for other in app.workflows if other.type == "online"}
    if backup in online and (online[backup].serving or Serving()).backup is not None:
        raise UnsupportedError(
            f"Workflow {workflow.name!r}: the embedded backend does not support a chain of backups: {backup!r} has a "
            "backup itself. Remove one of the two."
        )
