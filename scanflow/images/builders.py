"""Image builders: buildah, podman and docker behind one protocol."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from scanflow.errors import InvalidError, MissingExtraError, UsageError, did_you_mean

Say: TypeAlias = Callable[[str], None]
"""Receives a line of a builder's output."""

Program: TypeAlias = Literal["buildah", "podman", "docker"]
PROGRAMS: Final[tuple[Program, ...]] = ("buildah", "podman", "docker")
"""In order of preference: builders without a daemon come first."""

_LAST_LINES: Final = 12


class Builder(Protocol):
    """Builds images from a folder, and pushes them."""

    name: str

    def build(self, context: Path, image: str, say: Say, *, pull: bool = False) -> None:
        """Build the folder's ``Dockerfile`` as ``image``; what is printed goes to ``say``, line by line.

        ``pull``: take the newest base image of its registry, not the one that was pulled before.

        Raises:
            UsageError: it failed; the message has its last lines.
        """
        ...

    def push(self, image: str, say: Say) -> None:
        """Push an image to the registry in its name.

        Raises:
            UsageError: it failed; the message has its last lines.
        """
        ...


class CommandBuilder:
    """A :class:`Builder` that runs one of these programs."""

    def __init__(self, name: Program, *, insecure: bool = False, options: Sequence[str] = ()) -> None:
        self.name: str = name
        self._program: Program = name
        self._insecure, self._options = insecure, tuple(options)

    def build(self, context: Path, image: str, say: Say, *, pull: bool = False) -> None:
        options = [*(["--pull"] if pull else []), *self._options]
        command = build_command(self._program, context, image, insecure=self._insecure, options=options)
        _run(command, f"The image {image!r} cannot be built", say)

    def push(self, image: str, say: Say) -> None:
        command = push_command(self._program, image, insecure=self._insecure)
        _run(command, f"The image {image!r} cannot be pushed", say)


def build_command(
    program: Program, context: Path, image: str, *, insecure: bool = False, options: Sequence[str] = ()
) -> list[str]:
    """Return the command that builds ``context/Dockerfile``; steps that did not change come from the cache. Pure."""
    plain = [] if program == "docker" or not insecure else ["--tls-verify=false"]
    layers = [] if program == "docker" else ["--layers"]
    return [program, "build", *layers, *plain, *options, "-f", str(context / "Dockerfile"), "-t", image, str(context)]


def push_command(program: Program, image: str, *, insecure: bool = False) -> list[str]:
    """Return the command that pushes an image. Docker asks its daemon whether a registry may be plain HTTP. Pure."""
    return [program, "push", *([] if program == "docker" or not insecure else ["--tls-verify=false"]), image]


def get_builder(name: str | None = None, *, insecure: bool = False, options: str = "") -> Builder:
    """Return the builder of that name, or the first that is installed. ``options``: extra command-line arguments.

    Raises:
        InvalidError: the name is not known, or the options are no words of a command line.
        MissingExtraError: it, or any, is not installed; the message says how to install it.
    """
    if name is not None and name not in PROGRAMS:
        raise InvalidError(f"There is no builder {name!r}.{did_you_mean(name, PROGRAMS)}")
    installed: list[Program] = [
        program for program in PROGRAMS if name in {None, program} and shutil.which(program) is not None
    ]
    if not installed:
        subject = f"{name} is not" if name is not None else "None of buildah, podman and docker is"
        raise MissingExtraError(
            f"{subject} installed, but images need one to be built. On Debian or Ubuntu: sudo apt-get install "
            f"{'docker.io' if name == 'docker' else name or 'buildah'}"
        )
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise InvalidError(f"The options of the builder, {options!r}, cannot be read: {error}.") from error
    return CommandBuilder(installed[0], insecure=insecure, options=words)


def _run(command: Sequence[str], problem: str, say: Say) -> None:
    last_lines: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_build_environment(),
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                last_lines.append(line.rstrip())
                say(line.rstrip())
    except OSError as error:
        raise UsageError(f"{problem}: {command[0]} does not start: {error}") from error
    if process.returncode != 0:
        output = "".join(f"\n  {line}" for line in last_lines if line)
        raise UsageError(f"{problem}: `{' '.join(command[:2])}` exited with {process.returncode}.{output}")


def _build_environment() -> dict[str, str]:
    """Return a builder's environment variables; a process that may not create namespaces isolates by ``chroot``."""
    return {"BUILDAH_ISOLATION": "chroot", **os.environ} if _is_contained() else dict(os.environ)


def _is_contained() -> bool:
    return os.geteuid() == 0 and not Path("/run/systemd/system").exists()
