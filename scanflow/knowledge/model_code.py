"""The modules that travel with a version of a registered model: MLflow's ``code_paths``.

A process has one module of a name. Without care the second version that it loads is answered by the first one's code.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from scanflow.errors import UnsupportedError
from scanflow.modules import is_library_file, use_folder

_lock = Lock()
used_folders: dict[Path, str] = {}
"""The folders whose modules models of this process were loaded with, the newest last, and what each model is called."""


def list_code_folders(folder: Path, flavors: Mapping[str, Any]) -> list[Path]:
    """Return the folders of modules of a model, by the flavors of the ``MLmodel`` in its folder."""
    codes = (flavor.get("code") for flavor in flavors.values() if isinstance(flavor, Mapping))
    return list(dict.fromkeys(folder / str(code) for code in codes if code))


def use_code(folder: Path, who: str) -> None:
    """Have what is imported next come from a model's folder of modules, whatever other models brought by these names.

    Their modules stay those of the models that were loaded with them, which hold them.

    Raises:
        UnsupportedError: a function imports such a module when it is called, and would get another version's.
    """
    with _lock:
        own = _read_modules(folder)
        others = {other: _read_modules(other) for other in used_folders if other != folder}
        who_before = {other: f"{name[:1].lower()}{name[1:]}".rstrip(",") for other, name in used_folders.items()}
        rivals = {other: _list_rivals(own, modules) for other, modules in others.items()}
        for place, names in ((folder, set().union(*rivals.values())), *rivals.items()):
            if late := next(_iterate_late_imports(place, names), None):
                is_own = place == folder
                where = "this version" if is_own else f"{who_before[place]}, which was loaded before,"
                remedy = (
                    "Import it at the top of its file and log the model again, or deploy this version alone:"
                    if is_own
                    else "Deploy this version without that one:"
                )
                raise UnsupportedError(
                    f"{who} cannot be loaded beside another version: {late} of {where} imports a module of its own "
                    f"within a function, and both versions have such a module. {remedy} scanflow delete, "
                    "scanflow models promote, scanflow deploy, in this order."
                )
        use_folder(folder)
        used_folders.pop(folder, None)
        used_folders[folder] = who


def warn_of_borrowed_code(loaded: Iterable[str], folder: Path, who: str) -> str:
    """Return a warning if modules of users that were loaded with a model are not in its own folder; else nothing.

    The next edit of such a file changes what an old version answers, and plain MLflow cannot load that version.
    """
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in loaded}
    tops = {
        name.partition(".")[0]
        for name, file in files.items()
        if file and not is_library_file(file) and folder.resolve() not in Path(file).resolve().parents
    }
    if not tops:
        return ""
    code = ", ".join(repr(top if hasattr(sys.modules.get(top), "__path__") else f"{top}.py") for top in sorted(tops))
    return (
        f"{who} uses code that is not saved with it, so that it answers otherwise once that is edited. Log it with it: "
        f"log_model(..., code_paths=[{code}])."
    )


def _read_modules(folder: Path) -> dict[str, bytes]:
    """Return the modules and packages of a folder, each with a digest of its files."""
    modules: dict[str, bytes] = {}
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        files = [entry] if entry.suffix == ".py" else sorted(entry.rglob("*.py")) if entry.is_dir() else []
        if files:
            texts = [f"{file.relative_to(folder)}\0".encode() + file.read_bytes() for file in files]
            modules[entry.stem] = hashlib.sha256(b"\0".join(texts)).digest()
    return modules


def _list_rivals(own: Mapping[str, bytes], others: Mapping[str, bytes]) -> set[str]:
    """Return the names by which two folders have other modules."""
    return {name for name, digest in own.items() if others.get(name, digest) != digest}


def _iterate_late_imports(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield the files of a folder in which a function imports a module of one of these names."""
    wanted = set(names)
    for file in sorted(folder.rglob("*.py")) if wanted else ():
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, RecursionError):  # whoever imports it says so
            continue
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        if any(_imports(node, wanted) for function in functions for node in ast.walk(function)):
            yield file.name


def _imports(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] in names for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.level > 0 or str(node.module).partition(".")[0] in names)
