"""The step cache: keys over all that a step's outputs depend on, why a key is new, and copies of cached outputs."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanflow.app.annotations import Exact
from scanflow.app.executor import Executor
from scanflow.app.parameters import select_secrets, select_texts
from scanflow.backends.digests import FileDigests, UnknownContentError, ValueDigests, list_names
from scanflow.backends.own_code import OwnCode, TracedCode
from scanflow.backends.parameter_secrets import take_secrets

__all__ = [
    "CacheKey",
    "CacheKeys",
    "CodeLocation",
    "UnknownContentError",
    "copy_outputs",
    "describe_changed_file",
    "describe_changes",
    "describe_unknown",
]

MAX_FILES = 16
"""Files of a key that are parts of their own; more are one part."""

MAX_CHANGES = 3
"""Changed parts that are named."""

_SCHEME = 3
_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """Where the code of a step is, and what of it is known here."""

    name: str
    """The function, or the script."""

    file: Path | None = None
    pickled: bytes | None = None
    """The function, if it is stored by value."""

    modules: Sequence[str] = ()
    """The dotted names of the modules that it is in."""

    defaults: Mapping[str, Any] | None = None
    """The values of parameters that are not given; None: this process does not have the function, and looks at its
    text."""

    installed: Sequence[Path] | None = None
    """The folders of its packages; None: they are this process' own."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """The key of a task's outputs."""

    text: str
    parts: Mapping[str, str]
    """A short digest of each thing that it is made of, by what people call it."""

    read: Mapping[str, str]
    """The digests of all files that were looked at, by path."""

    code: Collection[str]
    """The paths of the files of its code."""


class CacheKeys:
    """Computes the keys of an application's tasks. Not thread-safe."""

    def __init__(self, app_dir: Path) -> None:
        self._app_dir, self._files = app_dir, FileDigests()
        self._code = OwnCode(app_dir, self._files)

    def compute(
        self,
        node: Executor,
        code: CodeLocation,
        parameters: Mapping[str, Any],
        *,
        exact: Exact = False,
        requirements: Iterable[str],
        requirements_folder: Path,
        outputs: Path,
    ) -> CacheKey:
        """Return the key of a task.

        Args:
            node: Its step, of which ``env`` and ``cache`` count.
            code: Its code.
            parameters: Its parameters, with references resolved.
            exact: Which parts of them its annotations do not change.
            requirements: What its packages are installed from: lines, of which folders and files count by content.
            requirements_folder: What paths among them are relative to.
            outputs: The folder of the run's outputs.

        Raises:
            UnknownContentError: something that counts cannot be known.
        """
        values = ValueDigests(self._files, app_dir=self._app_dir, outputs=outputs, step=node.name)
        parts = {
            "the name of its code": code.name,
            "the version in cache": node.cache if isinstance(node.cache, str) else "",
            "the version of Python": f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}",
            "requirements": _digest(sorted(requirements)),
        }
        # Of a secret, where it is: its value is in no key, and another value of it makes no other outputs.
        parts |= {f"the variable {name}": values.compute([value]) for name, value in select_texts(node.env).items()}
        parts |= {f"the variable {name}": _digest([value]) for name, value in select_secrets(node.env).items()}
        for name, value in {**self._list_defaults(code), **parameters}.items():
            rest, places = take_secrets(value) if node.secrets else (value, [])
            if places:
                parts[f"the secrets in the parameter {name}"] = _digest(places)
            try:
                parts[f"the parameter {name}"] = values.compute(rest)
            except UnknownContentError as error:
                raise UnknownContentError(f"the parameter {name!r}: {error}") from error
        if isinstance(exact, dict):
            parts |= {f"the source of the parameter {name}": _digest(mark) for name, mark in exact.items()}
        values.compute(_list_local_requirements(requirements, requirements_folder))
        if code.pickled is not None:
            parts["its function"] = hashlib.sha256(code.pickled).hexdigest()
        traced = self.trace(node, code, modules=values.modules, trusting=isinstance(node.cache, str))
        parts |= {f"the code of {name}": digest for name, digest in traced.digests.items()}
        contents = {f"the content of {name}": digest for name, digest in values.contents.items()}
        parts |= contents if len(contents) <= MAX_FILES else {"the content of its files": _digest(contents)}
        return CacheKey(
            _digest([_SCHEME, parts]),
            {name: _digest(part)[:_DIGEST_CHARS] for name, part in parts.items()},
            {**values.read, **traced.read},
            tuple(traced.read),
        )

    def trace(self, node: Executor, code: CodeLocation, *, modules: Iterable[str] = (), trusting: bool) -> TracedCode:
        """Return the own files that a step's code is in; ``OwnCode.trace`` says the rest."""
        path = [self._app_dir / entry for entry in select_texts(node.env).get("PYTHONPATH", "").split(":") if entry]
        return self._code.trace(
            code.file,
            {*code.modules, *modules},
            names=() if code.pickled is None else list_names(code.pickled),
            path=path,
            installed=code.installed,
            trusting=trusting,
        )

    def _list_defaults(self, code: CodeLocation) -> Mapping[str, Any]:
        if code.defaults is None and code.file is not None:
            return self._code.list_default_texts(code.file, code.name.rpartition(":")[2])
        return code.defaults or {}

    def digest_outputs(self, folder: Path) -> str:
        """Return a digest of a task's outputs.

        Raises:
            UnknownContentError: they cannot be read.
        """
        return self._files.compute(folder)

    def is_unchanged(self, path: Path, digest: str) -> bool:
        """Return whether what is at a path still has a digest."""
        try:
            return self._files.compute(path) == digest
        except UnknownContentError:
            return False

    def find_changed_file(self, key: CacheKey) -> str | None:
        """Return a file that was changed, made or deleted since a key was computed; None: there is none."""
        return next((path for path, digest in key.read.items() if not self.is_unchanged(Path(path), digest)), None)


def describe_unknown(error: UnknownContentError) -> str:
    """Return why outputs without a key are not cached, and what to do."""
    advice = ". If that does not matter: cache='v1', and another text when it does" if error.trustable else ""
    return f"not cached: {error}{advice}"


def describe_changed_file(path: str) -> str:
    """Return why outputs are not put into the cache."""
    return f"not cached: {path} changed while it ran"


def describe_changes(parts: Mapping[str, str], earlier: Iterable[Mapping[str, str]]) -> str | None:
    """Return why outputs are not reused: what differs from the most similar earlier key; None: there is none."""
    differences = [_list_changes(parts, others) for others in earlier]
    if not differences:
        return None
    changes = min(differences, key=len)
    more = len(changes) - MAX_CHANGES
    return f"not reused: {', '.join(changes[:MAX_CHANGES])}{f', and {more} more' if more > 0 else ''}"


def _list_changes(parts: Mapping[str, str], earlier: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {'was added' if name not in earlier else 'is gone' if name not in parts else 'changed'}"
        for name in sorted(parts.keys() | earlier.keys())
        if parts.get(name) != earlier.get(name)
    ]


def _list_local_requirements(requirements: Iterable[str], folder: Path) -> list[Path]:
    """Return the files and folders that are installed: ``./package``, ``-e .[dev]``, ``package @ file:///...``."""
    named = [line.partition("file://")[2] or line.removeprefix("-e").strip() for line in requirements]
    return [path for name in named if name and (path := folder / name.partition("[")[0]).exists()]


def _digest(described: Any) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def copy_outputs(source: Path, target: Path) -> None:
    """Copy a task's outputs into another run atomically."""
    unfinished = target.with_name(f"{target.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        shutil.copytree(source, unfinished, symlinks=True)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
