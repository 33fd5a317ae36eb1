"""Cached Python environments for steps with requirements, one for each distinct content, made by uv."""

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scanflow.errors import InvalidError, MissingExtraError, UnavailableError
from scanflow.private import open_private, private_folder
from scanflow.processes.files import try_lock

BUILD_TIMEOUT_S = 1800.0
POLL_S = 0.2
_LIBRARY = Path(__file__).parents[2]
# What a function step needs beside its own requirements: the library that loads it. Scripts get only what they ask for.
_RUNTIME = ("pydantic", "cloudpickle", "pyyaml")
SERVING_RUNTIME = ("msgspec", "httptools", "uvloop", "numpy", "prometheus-client", "grpcio", "protobuf", "pydantic")
"""What the model server needs in an environment of a service's own."""

_PACKAGES = ("scanflow", "scanflow_serving")
"""What an environment gets of ours: the code that runs now."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def normalised(
    requirements: Sequence[str], *, with_runtime: bool, runtime: Sequence[str] = _RUNTIME
) -> tuple[str, ...]:
    """Return the lines that matter, without comments and blank lines; for a function step, with what loads it.

    Of ``runtime``, what the requirements name themselves keeps the version they ask for.

    Raises:
        InvalidError: they refer to another file, whose content would not be part of the environment's key.
    """
    lines = [line.partition(" #")[0].strip() for line in requirements]
    kept = [line for line in lines if line and not line.startswith("#")]
    for line in kept:
        if line.startswith(("-r", "--requirement", "-c", "--constraint")):
            raise InvalidError(f"The requirements refer to another file ({line!r}). Write all of them in one.")
    named = {_canonical(match[0]) for line in kept if (match := _NAME.match(line))}
    wanted = [name for name in runtime if name not in named] if with_runtime else []
    return (*kept, *(f"{name}=={importlib.metadata.version(name)}" for name in wanted))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def environment_python(folder: Path, requirements: Sequence[str]) -> Path:
    described = "\n".join([sys.version, sys.executable, str(_LIBRARY), *requirements])
    return folder / hashlib.sha256(described.encode()).hexdigest()[:24] / "bin" / "python"


def is_ready(python: Path) -> bool:
    """Say whether an environment is there; it appears whole or not at all."""
    return python.exists()


class Patience:
    """How long the making of an environment may go on, and whether anybody still wants it."""

    def __init__(self, limit_s: float = BUILD_TIMEOUT_S) -> None:
        self._limit_s = limit_s
        self._give_up = time.monotonic() + limit_s
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def check(self) -> None:
        """Go on waiting, or not.

        Raises:
            UnavailableError: it took too long, or nobody waits for it any more.
        """
        if self._cancelled.is_set():
            raise UnavailableError("The environment was not made, since the run was stopped.")
        if time.monotonic() > self._give_up:
            raise UnavailableError(
                f"The environment was not ready after {self._limit_s:.0f} s. Resume to go on with it."
            )


def make_environment(python: Path, requirements: Sequence[str], *, base: Path, patience: Patience) -> None:
    """Make the environment that ``python`` belongs to, unless another process just did.

    ``base`` is the folder that relative paths in the requirements start from.

    Raises:
        MissingExtraError: uv is not installed.
        InvalidError: the requirements cannot be met; the message has uv's own words.
        UnavailableError: it took too long, or was given up.
    """
    uv = _find_uv()
    home = python.parent.parent
    private_folder(home.parent)
    with _only_one(home.with_suffix(".lock"), patience):
        if is_ready(python):
            return
        unfinished = home.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        _run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(unfinished)], base, patience)
        wanted = unfinished / "requirements.txt"
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        target = str(unfinished / "bin" / "python")
        if requirements:
            _run([uv, "pip", "install", "--quiet", "--python", target, "-r", str(wanted)], base, patience)
        _link_scanflow(unfinished)
        unfinished.rename(home)


def _link_scanflow(environment: Path) -> None:
    """Make ``import scanflow`` work there: the very code that runs now, and nothing else of its environment."""
    packages = next((environment / "lib").glob("python3*")) / "site-packages"
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations and not (packages / name).exists():
            (packages / name).symlink_to(Path(found.submodule_search_locations[0]), target_is_directory=True)


def _find_uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise MissingExtraError(
            "A step with requirements needs uv to make its environment: pip install 'scanflow[local]'"
        )
    return found


def _run(command: Sequence[str], base: Path, patience: Patience) -> None:
    unwanted = {"VIRTUAL_ENV", "PYTHONPATH", "UV_PYTHON"}  # this process' own surroundings
    clean = {name: value for name, value in os.environ.items() if name not in unwanted}
    with subprocess.Popen(
        command,
        cwd=base,
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # it starts builds, which end with it
    ) as process:
        said = _wait(process, patience)
    if process.returncode:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        raise InvalidError("The requirements cannot be installed: " + " ".join(lines[-4:]))


def _wait(process: subprocess.Popen[str], patience: Patience) -> str:
    """Return what a process says on its standard error; if that is not waited for to the end, end its whole group."""
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
def _only_one(path: Path, patience: Patience) -> Iterator[None]:
    with open_private(path, "w") as file:
        while not try_lock(file.fileno(), fcntl.LOCK_EX):
            patience.check()
            time.sleep(POLL_S)
        yield
