"""The application of a running script, notebook or tool."""

from __future__ import annotations

import sys
from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow


def resolve_application(what: Application | Workflow) -> Application:
    """Return an application with its folder resolved from the running program; a single workflow is wrapped in one."""
    if isinstance(what, Application):
        return what.replace(app_dir=str(_get_program_folder() / what.app_dir))
    return Application(name=what.name, workflows=[what], app_dir=str(_get_program_folder()))


def _get_program_folder() -> Path:
    """Return the folder of the running script, as ``scanflow run`` does; in a notebook or a tool, the current one."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = None if file is None else Path(file).absolute().parent
    return Path.cwd() if folder is None or folder.is_relative_to(sys.prefix) else folder
