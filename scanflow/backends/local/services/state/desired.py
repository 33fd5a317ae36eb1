"""The desired state of a service in its folder: ``service.json``, replaced atomically under a lock.

The file holds paths of the home relative to it, as a home may be moved; :func:`read_desired` gives absolute ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from scanflow.backends.local.services.service_layout import ServiceFolder, ServicesHome
from scanflow.backends.service_desired import DesiredState
from scanflow.errors import InternalError, UnavailableError
from scanflow.files.home_paths import resolve_home_path, shorten_home_path
from scanflow.processes.shared_files import hold_lock, write_atomically


def read_desired(folder: ServiceFolder) -> DesiredState | None:
    try:
        return _parse(folder.desired.read_bytes(), folder.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(f"{str(folder.desired)!r} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InternalError(f"{str(folder.desired)!r} cannot be read: {error}") from error


@lru_cache(maxsize=64)  # it is read each second, and seldom changes
def _parse(text: bytes, folder: Path) -> DesiredState:
    home = folder.parent.parent
    document = _convert_paths(json.loads(text), lambda path: str(resolve_home_path(home, path)))
    document["recorder"] = _place_recorder(document.get("recorder") or (), folder, home)
    return DesiredState.model_validate_json(json.dumps(document))


def _dump(state: DesiredState, folder: Path) -> bytes:
    home = folder.parent.parent
    document = _convert_paths(json.loads(state.model_dump_json()), lambda path: shorten_home_path(home, Path(path)))
    return json.dumps(document, indent=1).encode()


def _convert_paths(document: Any, convert: Callable[[str], str]) -> Any:
    """Return a document in which the paths of models' files, and of certificates, are converted."""
    if isinstance(document, list):
        return [_convert_paths(item, convert) for item in document]
    if not isinstance(document, dict):
        return document
    converted = {key: _convert_paths(value, convert) for key, value in document.items()}
    model = converted.get("model")
    if isinstance(model, dict) and model.get("path"):
        converted["model"] = {**model, "path": convert(str(model["path"]))}
    tls = converted.get("tls")
    if isinstance(tls, dict):
        files = {name: convert(path) for name, path in tls.items() if path and name != "name"}
        converted["tls"] = tls | files
    return converted


def _place_recorder(command: Sequence[str], folder: Path, home: Path) -> tuple[str, ...]:
    """Return the recorder's command for this home, whichever home it was written for."""
    if not command:
        return ()
    *program, _, locator, options = command
    placed = json.dumps({**json.loads(options), "home": str(home)})
    return (*program, str(ServiceFolder(folder).recorded), locator, placed)


def update_desired(
    folder: ServiceFolder, make: Callable[[DesiredState | None], DesiredState | None]
) -> DesiredState | None:
    """Replace the desired state by the result of ``make``, unless that is None; return the resulting state.

    Raises:
        UnavailableError: another process holds the lock for too long, or the disk cannot be written.
    """
    with hold_lock(folder.lock):
        before = read_desired(folder)
        after = make(before)
        if after is None:
            return before
        write_atomically(folder.desired, _dump(after, folder.path), safely=True)
        return after


def list_used_ports(home: ServicesHome, excluded: str) -> set[int]:
    """Return the ports of all services of this home but one, including stopped ones."""
    ports: set[int] = set()
    for name in home.list_names():
        desired = None if name == excluded else read_desired(home.service(name))
        if desired is not None:
            ports |= {desired.port, *([desired.grpc_port] if desired.grpc_port else [])}
    return ports
