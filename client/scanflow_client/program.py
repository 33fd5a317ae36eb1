"""The application that a running script, notebook or tool means."""

from __future__ import annotations

import sys
from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow


def application_of(what: Application | Workflow) -> Application:
    """Return an application with its folder as seen from the running program; a workflow alone becomes one."""
    if isinstance(what, Application):
        return what.replace(app_dir=str(_program_folder() / what.app_dir))
    return Application(name=what.name, workflows=[what], app_dir=str(_program_folder()))


def _program_folder() -> Path:
    """Return the folder of the script that runs, as for ``scanflow run``; in a notebook or a tool, the current one."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = None if file is None else Path(file).absolute().parent
    return Path.cwd() if folder is None or folder.is_relative_to(sys.prefix) else folder
