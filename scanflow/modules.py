"""The user's own files as modules and functions, for processes without the application model."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from scanflow.errors import InvalidError, NotFoundError, did_you_mean

_loading: ContextVar[Path | None] = ContextVar("scanflow_file_being_loaded", default=None)
user_folders: set[Path] = set()
_MARK = "__loaded_by_scanflow__"
_OWN = "scanflow"  # our packages stay, also where an application's folder is a checkout of ours
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_LIBRARIES = frozenset({*(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")), Path(__file__).parent})
_RENAMED = "_user_"
"""Begin of the name of a module that would have the name of another."""


@lru_cache(maxsize=4096)
def is_library_file(name: str) -> bool:
    """Whether a file or folder is of the standard library, an installed package or this one, and not of a user."""
    path = Path(name)
    return name.startswith("<frozen") or bool(_INSTALLED & set(path.parts) or _LIBRARIES & {path, *path.parents})


def load_module(path: Path) -> ModuleType:
    """Run a Python file as the module of its name, its folder first on the path; once per process.

    A file named as a module of the standard library, or as another that is loaded, gets another name. What it imports
    from beside it is what is beside it, also where another folder has files of the same names.
    """
    path = path.resolve()
    name = path.stem
    if name in sys.stdlib_module_names or (name in sys.modules and not _is_users(sys.modules[name], path)):
        name = f"{_RENAMED}{name}"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidError(f"The file {str(path)!r} is not a Python file.")
    _prepend_to_path(path.parent)
    module = importlib.util.module_from_spec(spec)
    vars(module)[_MARK] = read_file_version(path)
    sys.modules[name] = module
    try:
        with mark_loading(path):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def read_file_version(path: Path) -> tuple[int, ...]:
    """Return what changes whenever a file is written."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def find_loaded_version(module: ModuleType) -> tuple[int, ...] | None:
    """Return the version of its file that :func:`load_module` ran; None: something else loaded it."""
    version: tuple[int, ...] | None = vars(module).get(_MARK)
    return version


@contextmanager
def mark_loading(path: Path) -> Iterator[None]:
    token = _loading.set(path)
    try:
        yield
    finally:
        _loading.reset(token)


def find_loading_file() -> Path | None:
    return _loading.get()


def _prepend_to_path(folder: Path) -> None:
    """Prepend a folder to the path, and unload modules of other such folders that would hide one of its own."""
    own = {path.stem for path in folder.iterdir()}
    for name, module in list(sys.modules.items()):
        top, file = name.partition(".")[0], getattr(module, "__file__", None)
        if top not in own or top.startswith(_OWN) or file is None:
            continue
        places = {Path(file).with_suffix(""), *Path(file).parents}
        if any(other / top in places for other in user_folders - {folder}):
            del sys.modules[name]
    user_folders.add(folder)
    sys.path[:] = [str(folder), *(other for other in sys.path if other != str(folder))]


def is_renamed(module: ModuleType) -> bool:
    """Return whether a file's module has another name than its file, as what it would hide is loaded."""
    return hasattr(module, _MARK) and module.__name__.startswith(_RENAMED)


def _is_users(module: ModuleType, path: Path) -> bool:
    return _MARK in vars(module) or getattr(module, "__file__", None) == str(path)


def use_folder(folder: Path) -> None:
    """Put an application's folder first on the path, as loading a file of it does."""
    if folder.is_dir():
        _prepend_to_path(folder.resolve())


def import_module(name: str) -> None:
    """Import a module as steps do: as a file of one of the folders that files are loaded from, else from the path."""
    if name in sys.modules:
        return
    file = f"{name.removeprefix(_RENAMED)}.py"
    places = [Path(entry) / file for entry in sys.path if Path(entry) in user_folders]
    if (path := next(filter(Path.is_file, places), None)) is not None:
        load_module(path)
    else:
        importlib.import_module(name)


def load_function(name: str, file: Path | None) -> Callable[..., Any]:
    """Return the function named ``file.py:name`` (whose file is ``file``) or ``package.module:name``."""
    module_name, _, attribute = name.partition(":")
    if file is not None:
        module = load_module(file)
    else:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise NotFoundError(f"The function {name!r} cannot be found: {error}.") from error
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise NotFoundError(f"{module_name!r} has no {attribute!r}.{did_you_mean(attribute, vars(module))}")
        value = getattr(value, part)
    if not callable(value):
        raise InvalidError(f"{name!r} is not a function.")
    function: Callable[..., Any] = value
    return function
