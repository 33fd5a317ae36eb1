"""Cached Python environments for steps with requirements, one for each distinct content, created by uv."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scanflow.errors import InvalidError, MissingExtraError, UnavailableError
from scanflow.files.private import create_private_folder, open_private
from scanflow.installation import explain_install
from scanflow.processes.shared_files import try_lock

BUILD_TIMEOUT_S = 1800.0
POLL_S = 0.2
_LIBRARY = Path(__file__).parents[2]
# What a function step needs beside its own requirements: the library that loads it. Scripts have only their own.
_RUNTIME = ("pydantic", "cloudpickle", "pyyaml")
SERVING_RUNTIME = ("msgspec", "httptools", "uvloop", "numpy", "prometheus-client", "grpcio", "protobuf", "pydantic")
"""Requirements of the model server in a service's own environment."""

_PACKAGES = ("scanflow", "scanflow_serving")
"""Our packages that are linked into environments: the code that runs now."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def normalise_requirements(
    requirements: Sequence[str], *, with_runtime: bool, runtime: Sequence[str] = _RUNTIME
) -> tuple[str, ...]:
    """Return requirement lines without comments and blank lines; for a function step, add its runtime.

    Packages of ``runtime`` that the requirements name keep the version required there.

    Raises:
        InvalidError: they refer to another file, whose content would not be part of the environment's key.
    """
    lines = [line.partition(" #")[0].strip() for line in requirements]
    kept_lines = [line for line in lines if line and not line.startswith("#")]
    for line in kept_lines:
        if line.startswith(("-r", "--requirement", "-c", "--constraint")):
            raise InvalidError(f"The requirements refer to another file ({line!r}). Write all of them in one file.")
    named = {_canonicalize(match[0]) for line in kept_lines if (match := _NAME.match(line))}
    missing = [name for name in runtime if name not in named] if with_runtime else []
    return (*kept_lines, *(f"{name}=={importlib.metadata.version(name)}" for name in missing))


def _canonicalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locate_python(folder: Path, requirements: Sequence[str]) -> Path:
    described = "\n".join([sys.version, sys.executable, str(_LIBRARY), *requirements])
    return folder / hashlib.sha256(described.encode()).hexdigest()[:24] / "bin" / "python"


def is_ready(python: Path) -> bool:
    """Return whether an environment exists; it is created atomically."""
    return python.exists()


class Patience:
    """The time limit and cancellation of creating an environment."""

    def __init__(self, limit_s: float = BUILD_TIMEOUT_S, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._give_up = clock() + limit_s
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def check(self) -> None:
        """Raise if waiting should end.

        Raises:
            UnavailableError: it took too long, or was cancelled.
        """
        if self._cancelled.is_set():
            raise UnavailableError("The environment was not created, because the run was stopped.")
        if self._clock() > self._give_up:
            raise UnavailableError(
                f"The environment was not ready after {self._limit_s:.0f} s. Resume the run to continue."
            )


def make_environment(python: Path, requirements: Sequence[str], *, base: Path, patience: Patience) -> None:
    """Create the environment of ``python``, unless another process has just created it.

    ``base`` is the folder that relative paths in the requirements are relative to.

    Raises:
        MissingExtraError: uv is not installed.
        InvalidError: the requirements cannot be installed; the message is uv's.
        UnavailableError: it took too long, or was cancelled.
    """
    uv = _get_uv()
    home = python.parent.parent
    create_private_folder(home.parent)
    with _hold_lock(home.with_suffix(".lock"), patience):
        if is_ready(python):
            return
        unfinished = home.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            _install(uv, requirements, base, unfinished, patience)
            unfinished.rename(home)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def _install(uv: str, requirements: Sequence[str], base: Path, environment: Path, patience: Patience) -> None:
    _run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(environment)], base, patience)
    requirements_file = environment / "requirements.txt"
    requirements_file.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    if requirements:
        target = str(environment / "bin" / "python")
        _run([uv, "pip", "install", "--quiet", "--python", target, "-r", str(requirements_file)], base, patience)
    _link_scanflow(environment)


def _link_scanflow(environment: Path) -> None:
    """Make ``import scanflow`` work in an environment: link only the code that runs now."""
    packages = next((environment / "lib").glob("python3*")) / "site-packages"
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations and not (packages / name).exists():
            (packages / name).symlink_to(Path(spec.submodule_search_locations[0]), target_is_directory=True)


def _get_uv() -> str:
    neighbour = Path(sys.executable).with_name("uv")
    uv = str(neighbour) if neighbour.exists() else shutil.which("uv")
    if uv is None:
        raise MissingExtraError(
            f"A step with requirements needs uv to create its environment. {explain_install('local')}"
        )
    return uv


def _run(command: Sequence[str], base: Path, patience: Patience) -> None:
    unwanted = {"VIRTUAL_ENV", "PYTHONPATH", "UV_PYTHON"}  # of this process' environment
    clean = {name: value for name, value in os.environ.items() if name not in unwanted}
    with subprocess.Popen(
        command,
        cwd=base,
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # its builds end with it
    ) as process:
        errors = _wait(process, patience)
    if process.returncode:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        raise InvalidError("The requirements cannot be installed: " + " ".join(lines[-4:]))


def _wait(process: subprocess.Popen[str], patience: Patience) -> str:
    """Return a process' standard error; if waiting is interrupted, kill its process group."""
    try:
        while True:
            try:
                return process.communicate(timeout=POLL_S)[1]
            except subprocess.TimeoutExpired:
                patience.check()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise


@contextmanager
def _hold_lock(path: Path, patience: Patience) -> Iterator[None]:
    with open_private(path, "w") as file:
        while not try_lock(file.fileno(), fcntl.LOCK_EX):
            patience.check()
            time.sleep(POLL_S)
        yield
