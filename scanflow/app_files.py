"""Locates an application's files."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.declarations import list_module_names, read_declaration
from scanflow.app.executor import Executor, Target
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.errors import NotFoundError, did_you_mean


def get_file(name: str, folders: Iterable[Path]) -> Path:
    tried = list(dict.fromkeys(folder / name for folder in folders))
    for path in tried:
        if path.is_file():
            return path
    siblings = [path.name for folder in {path.parent for path in tried} if folder.is_dir() for path in folder.iterdir()]
    hint = did_you_mean(name, siblings) if len(siblings) > 12 else did_you_mean(name, siblings).partition(" Known")[0]
    raise NotFoundError(f"There is no file {name!r} in {', '.join(str(path.parent) for path in tried)}.{hint}")


def declare_functions(app: Application, workflow: Workflow) -> Workflow:
    """Return a workflow with the parameters of its functions known, as far as their files say, without loading them."""
    files = AppFiles(app, workflow)
    if all(node.target is None or node.target.declared is not None for node in workflow.steps):
        return workflow
    nodes = [files.declare_function(node) if isinstance(node, Executor) else node for node in workflow.nodes]
    return workflow.replace(nodes=nodes)


class AppFiles:
    """Locates an application's files."""

    def __init__(self, app: Application, workflow: Workflow) -> None:
        self.app_dir = Path(app.app_dir)
        self._workflow = workflow.name

    def list_folders(self, node: str) -> list[Path]:
        """Return the folders of a node's files: the application's, the prototype's ``workflows/<node>`` layouts."""
        below = self.app_dir / "workflows"
        names = dict.fromkeys([node, node.replace("-", "_")])
        return [
            self.app_dir,
            *(below / name for name in names),
            *(below / self._workflow / name for name in names),
            below / self._workflow,
        ]

    def find(self, name: str, node: str) -> Path:
        """Return a node's file.

        Raises:
            NotFoundError: it is in none of the folders.
        """
        return get_file(name, self.list_folders(node))

    def find_component_file(self, service: Service) -> Path | None:
        """Return the file of a component's class; None if the class is found by module, or is a registered model.

        Raises:
            NotFoundError: the file is in none of the folders, or does not have the class, by its text.
        """
        module, _, attribute = (service.implementation or "").partition(":")
        if not module.endswith(".py"):
            return None
        file = self.find(module, service.name)
        with suppress(OSError, UnicodeDecodeError):  # who loads it says why
            names = list_module_names(file.read_text("utf-8"))
            if names is not None and attribute.partition(".")[0] not in names:
                raise NotFoundError(f"{module!r} has no {attribute!r}.{did_you_mean(attribute, sorted(names))}")
        return file

    def declare_function(self, node: Executor) -> Executor:
        """Return a step with the parameters of its function known, if a file that is here says them."""
        if (target := node.target) is None or target.declared is not None:
            return node
        with suppress(NotFoundError, OSError, UnicodeDecodeError):
            file = self.find_function_file(target, node.name)
            declared = None if file is None else read_declaration(file.read_text("utf-8"), target.partition(":")[2])
            return node.replace(function=Target(target, declared=declared))
        return node

    def find_function_file(self, target: Target, node: str) -> Path | None:
        """Return the file that a function is loaded from; None if it is found by module, or has no file."""
        module = target.partition(":")[0]
        if not module.endswith(".py"):
            return None
        # Not the file of a function's global variables, which of a decorated one is the decorator's.
        own = getattr(sys.modules.get(getattr(target.call, "__module__", None) or ""), "__file__", None)
        return Path(own).resolve() if own else self.find(module, node)
