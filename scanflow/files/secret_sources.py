"""Reads secrets from where references say they are, in the process that uses them. Standard library only."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from scanflow.errors import InvalidError

MAX_BYTES = 1024 * 1024
"""The size of a file with a secret: a larger one is something else."""

_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}


def read_secret_source(source: str, folder: Path, variables: Mapping[str, str] | None = None) -> str:
    """Return the secret at ``env:NAME``, ``file:PATH`` or ``k8s:SECRET/KEY``; a file's last line end is left out.

    Args:
        source: The reference.
        folder: The folder that a relative path of a file is relative to.
        variables: The environment. None: this process's.

    Raises:
        InvalidError: there is none; the message says what to set, and never the value.
    """
    kind, _, place = source.partition(":")
    variables = os.environ if variables is None else variables
    if kind == "env":
        value = variables.get(place, "")
        where = "in the Secret scanflow-env of the namespace" if _is_in_pod() else "where the server or run starts"
        advice = f"Set the variable {place} {where}."
    elif kind == "file":
        value = _read_file(source, folder / Path(place).expanduser())
        advice = "Write the secret into that file."
    elif kind == "k8s":
        value = variables.get(format_pod_variable(source), "")
        name, _, key = place.partition("/")
        advice = f"On Kubernetes: kubectl create secret generic {name} --from-literal={key}=... ; elsewhere write env:."
    else:
        raise InvalidError("A secret is env:NAME, file:PATH or k8s:SECRET/KEY, and this is none of them.")
    if not value:
        raise InvalidError(f"There is no secret in {source!r}. {advice}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidError(f"The secret in {source!r} is not text (UTF-8). Encode it, as with base64.") from None
    if "\0" in value:
        raise InvalidError(f"The secret in {source!r} has a zero byte, which no variable can hold. Encode it as text.")
    return value


def get_secret_variable(source: str) -> str:
    """Return the variable in which this process has the secret of a reference; empty: it is in a file."""
    kind, _, place = source.partition(":")
    return {"env": place, "k8s": format_pod_variable(source)}.get(kind, "")


def is_secret_source(text: str) -> bool:
    """Return whether a text is a reference to a secret; ``file://`` begins an address."""
    return text.startswith(("env:", "file:", "k8s:")) and not text.startswith("file://")


def _is_in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ


def _read_file(source: str, path: Path) -> str:
    try:
        _check_is_regular(path.stat().st_mode)  # before it is opened, as a device may act on that
        with open(path, "rb", opener=_open_at_once) as file:
            _check_is_regular(os.fstat(file.fileno()).st_mode)
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidError(
            f"The secret in {source!r} cannot be read: {error.strerror}. Write it into {str(path)!r}."
        ) from None
    if len(content) > MAX_BYTES:
        raise InvalidError(f"The secret in {source!r} has more than {MAX_BYTES:,} bytes. Refer to a smaller file.")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidError(f"The secret in {source!r} is not text (UTF-8). Encode it, as with base64.") from None
    return text.removesuffix("\n").removesuffix("\r")


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting: a FIFO that has taken its place would wait for a writer for ever."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _check_is_regular(mode: int) -> None:
    """Refuse what is no regular file, and could be read without an end, or act on being read."""
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise OSError(errno.EINVAL, f"it is {kind}, and no regular file")


def read_secret_sources(sources: Iterable[str], folder: Path) -> dict[str, str]:
    """Return the secrets by their references.

    Raises:
        InvalidError: there is none in one of them.
    """
    return {source: read_secret_source(source, folder) for source in sorted(set(sources))}


def read_secrets(sources: Iterable[str], folder: Path) -> dict[str, str]:
    """Return the secrets by their references, as far as there are any."""
    secrets = {}
    for source in sources:
        with suppress(InvalidError):
            secrets[source] = read_secret_source(source, folder)
    return secrets


def check_secret_sources(sources: Iterable[str], folder: Path, *, who: str) -> None:
    """Check that there is a secret in each reference, on this machine.

    Raises:
        InvalidError: there is none in one of them, or it is one of Kubernetes; the message begins with ``who``.
    """
    for source in sources:
        if source.startswith("k8s:"):
            raise InvalidError(
                f"{who} uses the secret {source!r}, and Secrets of Kubernetes are on the backend 'kubernetes' only. "
                "Here, write env:NAME or file:PATH."
            )
        try:
            read_secret_source(source, folder)
        except InvalidError as error:
            raise InvalidError(f"{who}: {error}") from None


def format_pod_variable(source: str) -> str:
    """Return the variable by which a pod gets the secret ``k8s:SECRET/KEY``."""
    return f"SCANFLOW_SECRET_{hashlib.sha256(source.encode()).hexdigest()[:16].upper()}"
