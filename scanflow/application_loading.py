"""The user's own files as applications. Loading runs the user's code."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from scanflow.app.application import Application
from scanflow.app.application_files import load_json, load_yaml
from scanflow.app.executor import Executor, Target
from scanflow.app.parameters import refuse_mask
from scanflow.app.steps import check_node, is_found_by_name
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UsageError, did_you_mean
from scanflow.modules import find_loading_file, load_function, load_module, use_folder
from scanflow.names import build_slug
from scanflow.text.failures import parse_failure
from scanflow.text.printable import make_one_line

__all__ = ["load_application", "load_function", "load_module", "refuse_while_loading"]

_T = TypeVar("_T")
DEFAULT_FILES = ("app.py", "scanflow.yaml", "scanflow.yml")


def refuse_while_loading() -> None:
    """Reject a run from a file that is being loaded: it would run again each time a step loads that file.

    Raises:
        UsageError: this process is loading one.
    """
    if (path := find_loading_file()) is not None:
        raise UsageError(
            f"{path.name} runs a workflow while the file is being loaded. Move that call below: if __name__ == "
            "'__main__':"
        )


def load_application(
    target: str | None, *, folder: Path | None = None, with_functions: bool = True
) -> tuple[Application, Path, str | None]:
    """Return the application that ``target`` names, the file it came from, and the workflow named with it.

    ``target`` is ``FILE[:WORKFLOW]``: a Python file that makes one ``Application`` (or, without one, ``Workflow``s), or
    a YAML or JSON file; None: ``app.py`` or ``scanflow.yaml`` of the folder. ``app_dir`` comes back absolute.

    ``with_functions``: whether functions that a YAML or JSON file names are loaded and checked, which runs their files.
    """
    here = (folder or Path.cwd()).resolve()
    name, _, workflow = (target or "").partition(":")
    path = here / name if name else next((here / file for file in DEFAULT_FILES if (here / file).is_file()), None)
    if path is None:
        raise NotFoundError(f"There is no {' or '.join(DEFAULT_FILES[:2])} in {str(here)!r}. Create one: scanflow init")
    if path.is_dir():
        return load_application(f":{workflow}" if workflow else None, folder=path, with_functions=with_functions)
    if not path.is_file():
        files = [file.name for file in path.parent.glob("*.*")] if path.parent.is_dir() else []
        near = did_you_mean(path.name, files).partition(" Known")[0]
        advice = near or " Name another, or write an example: scanflow init"
        raise NotFoundError(f"There is no file {make_one_line(name, 300)!r}.{advice}")
    app = _from_python(path) if path.suffix == ".py" else _from_text(path)
    app = app.replace(app_dir=str((path.parent / app.app_dir).resolve()))
    if with_functions and path.suffix != ".py":
        app = _bind_functions(app, path)
    return app, path, workflow or None


def _from_text(path: Path) -> Application:
    try:
        text = path.read_text(encoding="utf-8-sig")
        app = load_json(text) if path.suffix == ".json" else load_yaml(text)
        refuse_mask(app.model_dump(mode="json", exclude_defaults=True))
        return app
    except UnicodeDecodeError as error:
        raise InvalidError(f"{path.name}: byte {error.start} is not UTF-8 text. Save the file as UTF-8.") from error
    except InvalidError as error:
        raise InvalidError(f"{path.name}: {error}") from error


def _bind_functions(app: Application, path: Path) -> Application:
    """Return an application of a text file with the functions that its steps name, so that they are checked as those of
    a Python file are.

    Raises:
        UsageError: a function is not in its file, or does not take its parameters; or its file cannot be loaded.
    """
    if not any(node.target is not None for workflow in app.workflows for node in workflow.steps):
        return app
    use_folder(Path(app.app_dir))
    workflows = [
        workflow.replace(nodes=tuple(_bind_function(app, workflow, node, path) for node in workflow.nodes))
        for workflow in app.workflows
    ]
    return app.replace(workflows=workflows)


def _bind_function(app: Application, workflow: Workflow, node: Any, path: Path) -> Any:
    if not isinstance(node, Executor) or (target := node.target) is None or not _is_in_module(target):
        return node
    try:
        file = AppFiles(app, workflow).find_function_file(target, node.name)
    except NotFoundError:  # whoever runs it says so
        return node
    try:
        call = load_function(str(target), file)
        bound = node.model_copy(update={"function": Target(str(target), call)})
        check_node(bound)
    except ImportError:  # of a package that may be where the step runs
        return node
    except ScanflowError as error:
        who = "" if str(error).startswith("Step ") else f"Step {node.name!r}: "
        raise UsageError(f"{path.name}: {who}{error}") from error
    except (Exception, SystemExit) as error:
        raise _build_loading_error(file or path, error, check=path.name) from error
    own = getattr(sys.modules.get(call.__module__), "__file__", None)
    is_there = file is None or (own is not None and Path(own).resolve() == file.resolve())
    return bound if is_there and is_found_by_name(getattr(call, "function", call)) else node


def _is_in_module(target: Target) -> bool:
    """Return whether a function is in a file or module, and not of a program or notebook, or stored by value."""
    module = target.partition(":")[0]
    return module != "__main__" and not module.endswith(".pickle")


def _build_loading_error(path: Path, error: BaseException, *, check: str) -> UsageError:
    """Say what a user's file raised, without our frames around it."""
    text = "".join(traceback.format_exception(error))
    failure = parse_failure(text, summary="", own_folder=str(Path(__file__).parent))
    lines = [f"{path.name} cannot be loaded:", *(f"  {line}" for line in failure.lines())]
    return UsageError("\n".join([*lines, f"After a change, check it: scanflow check {check}"]))


def _from_python(path: Path) -> Application:
    try:
        module = load_module(path)
    except ScanflowError as error:
        where = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        raise UsageError(f"{path.name}, line {where[-1] if where else '?'}: {error}") from error
    except (Exception, SystemExit) as error:
        raise _build_loading_error(path, error, check=path.name) from error
    apps = _list_objects(module, Application)
    if len(apps) == 1:
        return apps[0]
    if apps:
        raise UsageError(
            f"{path.name} makes {len(apps)} applications: {', '.join(app.name for app in apps)}. Keep one."
        )
    workflows = _list_objects(module, Workflow)
    if not workflows:
        raise NotFoundError(
            f"{path.name} makes no sf.Application and no sf.Workflow at its top level. See: scanflow init"
        )
    return Application(name=build_slug(path.stem) or "app", workflows=workflows)


def _list_objects(module: ModuleType, kind: type[_T]) -> list[_T]:
    """Return the objects of a kind at the top level of a module; if it defines some, without those that it imports."""
    objects = list({id(value): value for value in vars(module).values() if isinstance(value, kind)}.values())
    if len(objects) < 2:
        return objects
    imported_ids = {
        id(value)
        for other in list(sys.modules.values())
        if other is not module
        for value in list(getattr(other, "__dict__", {}).values())
    }
    return [value for value in objects if id(value) not in imported_ids] or objects
