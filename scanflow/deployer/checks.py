"""What every deployer checks before it does anything."""

from __future__ import annotations

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.deployer.port import RunRequest
from scanflow.errors import UnsupportedError, UsageError
from scanflow.loading import file_being_loaded


def application_of(request: RunRequest) -> Application:
    if request.app is None:
        raise UsageError("It names neither an application nor a run. Give one.")
    return request.app


def requested_workflow(request: RunRequest) -> Workflow:
    """Return the named workflow, or the only batch one, with its parameters set.

    Raises:
        NotFoundError: there is no such workflow, or no such parameter.
    """
    app = application_of(request)
    batches = [one.name for one in app.workflows if one.type == "batch"]
    name = batches[0] if request.workflow is None and len(batches) == 1 else request.workflow
    return app.workflow(name).with_parameters(request.parameters)


def runnable(request: RunRequest) -> Workflow:
    """Return the requested workflow.

    Raises:
        UnsupportedError: it is served, not run.
    """
    chosen = requested_workflow(request)
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
