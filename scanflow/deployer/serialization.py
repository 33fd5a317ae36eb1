"""Encodes an application for a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.app.application import Application
from scanflow.app.application_files import dump_document
from scanflow.app.executor import Executor
from scanflow.app.steps import get_exact_defaults
from scanflow.app.workflow import Workflow
from scanflow.deployer.functions_by_value import upload_functions

if TYPE_CHECKING:
    from scanflow.transport import ServerClient


def encode_application(app: Application | None, server: ServerClient, source: Path | None = None) -> dict[str, Any]:
    """Encode the application of a request; empty for None.

    Functions travel by the names of their files, which steps load them from; those that no file holds are kept on the
    server by value first. ``source`` is the file that the application itself came from.

    Raises:
        InvalidError: one of its functions cannot be sent.
    """
    if app is None:
        return {}
    app = upload_functions(app, server)
    # A relative folder is this process' business: the server has a working folder of its own.
    absolute = app.replace(
        app_dir=str(Path(app.app_dir).absolute()),
        workflows=tuple(_add_defaults(workflow) for workflow in app.workflows),
    )
    return {"application": dump_document(absolute), "source": None if source is None else str(source.absolute())}


def _add_defaults(workflow: Workflow) -> Workflow:
    """Add the defaults of functions to a workflow's parameters: the server does not know the functions, and clients may
    set these parameters in a run. Others stay the function's own, as JSON would change them."""
    nodes = []
    for node in workflow.nodes:
        call = node.target.call if isinstance(node, Executor) and node.target is not None else None
        more = {} if call is None else {k: v for k, v in get_exact_defaults(call).items() if k not in node.parameters}
        nodes.append(node.replace(parameters={**node.parameters, **more}) if more else node)
    return workflow.replace(nodes=tuple(nodes))
