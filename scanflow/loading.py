"""The user's own files as modules, functions and applications. Loading runs the user's code, so only programs that are
asked to run it call this."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from scanflow.app.application import Application
from scanflow.app.files import load_json, load_yaml
from scanflow.app.workflow import Workflow
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UsageError, did_you_mean
from scanflow.failures import failure_from_text
from scanflow.names import slug

__all__ = ["file_being_loaded", "find_file", "load_application", "load_function", "load_module"]

_loading: ContextVar[Path | None] = ContextVar("scanflow_file_being_loaded", default=None)
_MARK = "__loaded_by_scanflow__"
DEFAULT_FILES = ("app.py", "scanflow.yaml", "scanflow.yml")


def load_module(path: Path) -> ModuleType:
    """Run a Python file as the module of its name, its folder first on the path; once a process.

    A file named as a module of the standard library, or as another one that is loaded, gets another name, so that it
    does not hide that one.
    """
    path = path.resolve()
    name = path.stem
    if name in sys.stdlib_module_names or (name in sys.modules and not _is_users(sys.modules[name], path)):
        name = f"_user_{name}"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidError(f"The file {str(path)!r} is not a Python file.")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    vars(module)[_MARK] = True
    sys.modules[name] = module
    token = _loading.set(path)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _loading.reset(token)
    return module


def file_being_loaded() -> Path | None:
    """Return the user's file whose top level is being run at this moment, if one is."""
    return _loading.get()


def _is_users(module: ModuleType, path: Path) -> bool:
    return _MARK in vars(module) or getattr(module, "__file__", None) == str(path)


def load_function(name: str, file: Path | None) -> Callable[..., Any]:
    """Return the function named ``file.py:name`` (whose file is ``file``) or ``package.module:name``.

    Raises:
        NotFoundError: the file, the module or the name is not there.
    """
    module_name, _, attribute = name.partition(":")
    if file is not None:
        module = load_module(file)
    else:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise NotFoundError(f"The function {name!r} cannot be found: {error}.") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise NotFoundError(f"{module_name!r} has no {attribute!r}.{did_you_mean(attribute, vars(module))}")
        found = getattr(found, part)
    if not callable(found):
        raise InvalidError(f"{name!r} is not a function.")
    function: Callable[..., Any] = found
    return function


def find_file(name: str, folders: Iterable[Path]) -> Path:
    """Return the first of ``folders`` / ``name`` that is a file.

    Raises:
        NotFoundError: none is; the message says where it was looked for.
    """
    tried = list(dict.fromkeys(folder / name for folder in folders))
    for path in tried:
        if path.is_file():
            return path
    siblings = [path.name for folder in {path.parent for path in tried} if folder.is_dir() for path in folder.iterdir()]
    hint = did_you_mean(name, siblings) if len(siblings) > 12 else did_you_mean(name, siblings).partition(" Known")[0]
    raise NotFoundError(f"There is no file {name!r} in {', '.join(str(path.parent) for path in tried)}.{hint}")


def load_application(target: str | None, *, folder: Path | None = None) -> tuple[Application, Path, str | None]:
    """Return the application that ``target`` names, the file it came from, and the workflow named with it.

    ``target`` is ``FILE[:WORKFLOW]``; a Python file that makes one ``Application`` (or, without one, ``Workflow``s), or
    a YAML or JSON file. Without a target, ``app.py`` or ``scanflow.yaml`` of the folder. ``app_dir`` comes back
    absolute.

    Raises:
        NotFoundError: no such file, or nothing to run in it.
        UsageError: the file cannot be loaded.
    """
    here = (folder or Path.cwd()).resolve()
    name, _, workflow = (target or "").partition(":")
    path = here / name if name else next((here / file for file in DEFAULT_FILES if (here / file).is_file()), None)
    if path is None:
        raise NotFoundError(f"There is no {' or '.join(DEFAULT_FILES[:2])} in {str(here)!r}. Make one: scanflow init")
    if path.is_dir():
        return load_application(f":{workflow}" if workflow else None, folder=path)
    if not path.is_file():
        files = [file.name for file in path.parent.glob("*.*")] if path.parent.is_dir() else []
        raise NotFoundError(f"There is no file {name!r}.{did_you_mean(path.name, files).partition(' Known')[0]}")
    app = _from_python(path) if path.suffix == ".py" else _from_text(path)
    app_dir = (path.parent / app.app_dir).resolve()
    return app.replace(app_dir=str(app_dir)), path, workflow or None


def _from_text(path: Path) -> Application:
    try:
        text = path.read_text(encoding="utf-8-sig")
        return load_json(text) if path.suffix == ".json" else load_yaml(text)
    except UnicodeDecodeError as error:
        raise InvalidError(f"{path.name}: byte {error.start} is not UTF-8 text. Save the file as UTF-8.") from error
    except InvalidError as error:
        raise InvalidError(f"{path.name}: {error}") from error


def _from_python(path: Path) -> Application:
    try:
        module = load_module(path)
    except ScanflowError as error:
        where = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        raise UsageError(f"{path.name}, line {where[-1] if where else '?'}: {error}") from error
    except (
        Exception,
        SystemExit,
    ) as error:  # whatever a user's file raises is the user's to see, without our frames around it
        failure = failure_from_text(traceback.format_exc(), summary="", own_folder=str(Path(__file__).parent))
        raise UsageError("\n  ".join([f"{path.name} cannot be loaded:", *failure.lines()])) from error
    apps = {id(value): value for value in vars(module).values() if isinstance(value, Application)}
    if len(apps) == 1:
        return next(iter(apps.values()))
    if apps:
        raise UsageError(
            f"{path.name} makes {len(apps)} applications: {', '.join(app.name for app in apps.values())}. Keep one."
        )
    workflows = {id(value): value for value in vars(module).values() if isinstance(value, Workflow)}
    if not workflows:
        raise NotFoundError(
            f"{path.name} makes no sf.Application and no sf.Workflow at its top level. See: scanflow init"
        )
    return Application(name=slug(path.stem) or "app", workflows=list(workflows.values()))
