"""An application's folder as a ConfigMap, for pods whose image has no code of its own.

The ConfigMap is named by its content and never changes: pods that run keep the code that they were started with. What
they see is the folder itself: real files, as on a laptop.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final, NamedTuple

from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.backends.pickles import is_inside
from scanflow.errors import InvalidError, UsageError
from scanflow.files.disk import build_disk_error
from scanflow.files.private import create_private_folder, write_private
from scanflow.images.code_files import IGNORE_FILE, CodeFile, compute_digest, list_code_files

APP_DIR: Final = "/app"
"""The mount path of the application's folder."""

MAX_BYTES: Final = 900_000
"""Bytes of files and their names. An object may have 1 MiB, and more than its data counts towards it."""

CODE_VOLUME: Final = "code"
_FILES: Final = "..data"
"""The files themselves in a ConfigMap's volume, where every kubelet writes them. The volume itself has links into that
folder instead: a program that walks through it would see each file twice, and subfolders as links."""

_DIGITS: Final = 16
_MAX_KEY_LENGTH: Final = 200
_NAME: Final = re.compile(r"code-[0-9a-f]{16}")


class CodeConfigMap(NamedTuple):
    """An application's folder, for pods to mount."""

    config_map: Manifest
    volume: Manifest
    """An entry of a pod's ``volumes``."""

    mount: Manifest
    """An entry of a container's ``volumeMounts``: the folder's files at ``/app``, read-only."""

    digest: str
    """The code's digest."""

    @property
    def name(self) -> str:
        """The ConfigMap's: ``code-<hash>``."""
        return str(self.config_map["metadata"]["name"])


def build_code(app: str, team: str, namespace: str, app_dir: Path) -> CodeConfigMap:
    """Return the ConfigMap of an application's folder, with its volume and mount.

    Files keep their executable bit. Which are excluded: see :func:`~scanflow.images.code_files.list_code_files`.

    Raises:
        UsageError: there are more than 900 kB of them.
    """
    files = list_code_files(app_dir)
    _check_size(files, app_dir)
    digest = compute_digest(files)
    name = f"code-{digest[:_DIGITS]}"
    metadata = {"name": name, "namespace": namespace, "labels": build_labels(app, team)}
    return CodeConfigMap(
        build_manifest("ConfigMap", metadata, immutable=True, **_build_data(files)),
        {"name": CODE_VOLUME, "configMap": {"name": name, "items": _build_items(files)}},
        {"name": CODE_VOLUME, "mountPath": APP_DIR, "subPath": _FILES, "readOnly": True},
        digest,
    )


def read_code_name(volume: Manifest) -> str:
    """Return the name of the ConfigMap of a volume of code.

    Raises:
        InvalidError: it is no such volume.
    """
    name = str((volume.get("configMap") or {}).get("name"))
    if _NAME.fullmatch(name) is None:
        raise InvalidError(f"The volume {name!r} has no code of an application that this version of scanflow sent.")
    return name


def unpack_code(config_map: Manifest, volume: Manifest, folder: Path) -> None:
    """Write the files of an application, as they were sent, to a folder that does not exist yet.

    Raises:
        InvalidError: they are not those that the ConfigMap is named by.
    """
    text, binary = config_map.get("data") or {}, config_map.get("binaryData") or {}
    create_private_folder(folder.parent)
    draft = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        for item in volume["configMap"].get("items") or ():
            key, path = item["key"], draft / item["path"]
            if (key not in text and key not in binary) or not is_inside(path, draft):
                continue  # its digest shows that it is missing
            create_private_folder(path.parent)
            write_private(path, text[key] if key in text else b64decode(binary[key]))
            path.chmod(0o700 if "mode" in item else 0o600)
        name = read_code_name(volume)
        if not name.endswith(compute_digest(list_code_files(draft))[:_DIGITS]):
            raise InvalidError(f"The files in the ConfigMap {name!r} are not those that it is named by.")
        draft.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # another process was first
            raise build_disk_error(error, folder) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _build_data(files: tuple[CodeFile, ...]) -> Manifest:
    """Return text files as ``data``, which people can read, and others as ``binaryData``."""
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    for file in files:
        content = file.path.read_bytes()
        try:
            text[_build_key(file.name)] = content.decode("utf-8")
        except UnicodeDecodeError:
            binary[_build_key(file.name)] = b64encode(content).decode("ascii")
    return {"data": text, **({"binaryData": binary} if binary else {})}


def _build_items(files: tuple[CodeFile, ...]) -> list[Manifest]:
    """Return the volume's items: the path of each key. Without any, all keys are mounted, which is the same."""
    return [
        {"key": _build_key(file.name), "path": file.name, **({"mode": 0o755} if file.executable else {})}
        for file in files
    ]


def _build_key(name: str) -> str:
    """Return the ConfigMap key of a path: its name where that is a valid key, else one with a hash."""
    plain = "".join(
        character if character.isascii() and (character.isalnum() or character in "-_.") else "_" for character in name
    )
    if plain == name and len(name) <= _MAX_KEY_LENGTH:
        return name
    return f"{plain[-_MAX_KEY_LENGTH:].lstrip('.')}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _check_size(files: tuple[CodeFile, ...], folder: Path) -> None:
    total = sum(file.size + 2 * len(file.name) for file in files)
    if total <= MAX_BYTES:
        return
    largest = sorted(files, key=lambda file: file.size, reverse=True)[:3]
    raise UsageError(
        f"The application's folder {str(folder)!r} has {total / 1e6:.1f} MB, and a ConfigMap holds "
        f"{MAX_BYTES / 1e6:.1f} MB. Put it into an image: scanflow build --push. Or list files that are not code in "
        f"{IGNORE_FILE}; the largest are {', '.join(f'{file.name} ({file.size / 1e6:.1f} MB)' for file in largest)}."
    )
