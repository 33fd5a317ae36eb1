"""What every deployer checks before it does anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.errors import UnsupportedError, UsageError
from scanflow.loading import file_being_loaded


def with_parameters(app: Application, workflow: str | None, parameters: Mapping[str, Any] | None) -> Workflow:
    """Return the workflow of that name, or the only batch one, with parameters set.

    Raises:
        NotFoundError: there is no such workflow, or no such parameter.
    """
    batches = [one.name for one in app.workflows if one.type == "batch"]
    name = batches[0] if workflow is None and len(batches) == 1 else workflow
    return app.workflow(name).with_parameters(parameters or {})


def online_workflow(app: Application, name: str | None) -> Workflow:
    """Return the workflow of that name, or the only online one.

    Raises:
        NotFoundError: there is none of that name, or none was named and there is not exactly one.
        UsageError: it is run, not served.
    """
    online = [workflow for workflow in app.workflows if workflow.type == "online"]
    chosen = online[0] if name is None and len(online) == 1 else app.workflow(name)
    if chosen.type != "online":
        raise UsageError(
            f"The workflow {chosen.name!r} is of type {chosen.type!r}: it runs to its end. Run it: scanflow run"
        )
    return chosen


def runnable(app: Application, name: str | None, parameters: Mapping[str, Any] | None) -> Workflow:
    """Return what :func:`with_parameters` does.

    Raises:
        UnsupportedError: it is served, not run.
    """
    chosen = with_parameters(app, name, parameters)
    if chosen.type == "online":
        raise UnsupportedError(
            f"The workflow {chosen.name!r} is of type 'online': it is served, and has no end. "
            "Deploy it: scanflow deploy"
        )
    return chosen


def refuse_while_loading() -> None:
    """Refuse to run from a file that is being loaded: it would run again each time a step of it loads that file.

    Raises:
        UsageError: this process is loading one.
    """
    if (path := file_being_loaded()) is not None:
        raise UsageError(
            f"{path.name} runs a workflow while it is only being loaded. Put that below: if __name__ == '__main__':"
        )
