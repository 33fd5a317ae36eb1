"""Cached Python environments for steps with requirements, one for each distinct content, made by uv."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scanflow.errors import InvalidError, MissingExtraError, UnavailableError

__all__ = ["environment_python", "is_ready", "make_environment", "normalised"]

BUILD_TIMEOUT_S = 1800.0
_LIBRARY = Path(__file__).parents[2]
# What a function step needs beside its own requirements: the library that loads it. Scripts get only what they ask for.
_RUNTIME = ("pydantic", "cloudpickle", "pyyaml")


def normalised(requirements: Sequence[str], *, with_runtime: bool) -> tuple[str, ...]:
    """Return the lines that matter, without comments and blank lines; for a function step, with what loads it.

    Raises:
        InvalidError: they refer to another file, whose content would not be part of the environment's key.
    """
    lines = [line.partition(" #")[0].strip() for line in requirements]
    kept = [line for line in lines if line and not line.startswith("#")]
    for line in kept:
        if line.startswith(("-r", "--requirement", "-c", "--constraint")):
            raise InvalidError(f"The requirements refer to another file ({line!r}). Write all of them in one.")
    runtime = [f"{name}=={importlib.metadata.version(name)}" for name in _RUNTIME] if with_runtime else []
    return (*kept, *runtime)


def environment_python(folder: Path, requirements: Sequence[str]) -> Path:
    """Return where the interpreter of these requirements' environment is, or will be."""
    described = "\n".join([sys.version, sys.executable, str(_LIBRARY), *requirements])
    return folder / hashlib.sha256(described.encode()).hexdigest()[:24] / "bin" / "python"


def is_ready(python: Path) -> bool:
    """Say whether an environment is there; it appears whole or not at all."""
    return python.exists()


def make_environment(
    python: Path, requirements: Sequence[str], *, base: Path, timeout_s: float = BUILD_TIMEOUT_S
) -> None:
    """Make the environment that ``python`` belongs to, unless another process just did.

    ``base`` is the folder that relative paths in the requirements start from.

    Raises:
        MissingExtraError: uv is not installed.
        InvalidError: the requirements cannot be met; the message has uv's own words.
        UnavailableError: it took too long, or the disk is full.
    """
    uv = _find_uv()
    home = python.parent.parent
    home.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(home.with_suffix(".lock")):
        if is_ready(python):
            return
        unfinished = home.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        _run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(unfinished)], base, timeout_s)
        wanted = unfinished / "requirements.txt"
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        target = str(unfinished / "bin" / "python")
        if requirements:
            _run([uv, "pip", "install", "--quiet", "--python", target, "-r", str(wanted)], base, timeout_s)
        _link_scanflow(unfinished)
        unfinished.rename(home)


def _link_scanflow(environment: Path) -> None:
    """Make ``import scanflow`` work there: the very code that runs now, and nothing else of its environment."""
    packages = next((environment / "lib").glob("python3*")) / "site-packages"
    if not (packages / "scanflow").exists():
        (packages / "scanflow").symlink_to(_LIBRARY, target_is_directory=True)


def _find_uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise MissingExtraError(
            "A step with requirements needs uv to make its environment: pip install 'scanflow[local]'"
        )
    return found


def _run(command: Sequence[str], base: Path, timeout_s: float) -> None:
    clean = {
        name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH", "UV_PYTHON"}
    }
    try:
        done = subprocess.run(
            command,
            cwd=base,
            env=clean,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"The environment was not ready after {timeout_s:.0f} s. Run again to go on with it."
        ) from error
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise InvalidError("The requirements cannot be installed: " + " ".join(said[-4:]))


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
