"""The step cache: keys over all inputs of a step, and copies of cached outputs."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import cloudpickle

_BLOCK = 1 << 20


def cache_key(
    *, code: Path | bytes, name: str, parameters: Mapping[str, Any], requirements: str, version: str, outputs: Path
) -> str:
    """Return the cache key of a task: its own file, its parameters, the content of its input files, its requirements.

    Other files that its code imports are not part of it; change ``cache="v2"`` when they change.
    """
    own_code = hashlib.sha256(code).hexdigest() if isinstance(code, bytes) else compute_path_digest(code)
    described = [2, name, own_code, _normalize(parameters, outputs), requirements, version]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def compute_path_digest(path: Path) -> str:
    """Return a digest of a file's bytes, or of all names and files below a folder; ``missing``: there is none."""
    if path.is_dir():
        inner = [
            (str(file.relative_to(path)), compute_path_digest(file))
            for file in sorted(path.rglob("*"))
            if file.is_file()
        ]
        return hashlib.sha256(json.dumps(inner).encode()).hexdigest()
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except FileNotFoundError:
        return "missing"
    return digest.hexdigest()


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


def _normalize(value: Any, outputs: Path) -> Any:
    """Return a value whose text is the same in every run: a run's files are represented by their content."""
    if isinstance(value, PurePath) or (isinstance(value, str) and value.startswith(f"{outputs}/")):
        return {"$file": compute_path_digest(Path(value))}
    if isinstance(value, Mapping):
        return {str(key): _normalize(inner, outputs) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize(inner, outputs) for inner in value]
    if isinstance(value, str | int | float | bool | None):
        return value
    return {"$pickle": hashlib.sha256(cloudpickle.dumps(value)).hexdigest()}
