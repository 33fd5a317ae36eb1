"""The desired state of a service in its folder: ``service.json``, replaced atomically under a lock."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from scanflow.backends.local.services.layout import ServiceFolder, ServicesHome
from scanflow.backends.service_desired import DesiredState
from scanflow.errors import InternalError, UnavailableError
from scanflow.processes.files import hold_lock, write_atomically


def read_desired(folder: ServiceFolder) -> DesiredState | None:
    try:
        return _parse(folder.desired.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(f"{str(folder.desired)!r} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InternalError(f"{str(folder.desired)!r} cannot be read: {error}") from error


@lru_cache(maxsize=64)  # it is read each second, and seldom changes
def _parse(text: bytes) -> DesiredState:
    return DesiredState.model_validate_json(text)


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
        write_atomically(folder.desired, after.model_dump_json(indent=1).encode(), safely=True)
        return after


def list_used_ports(home: ServicesHome, excluded: str) -> set[int]:
    """Return the ports of all services of this home but one, including stopped ones."""
    ports: set[int] = set()
    for name in home.list_names():
        desired = None if name == excluded else read_desired(home.service(name))
        if desired is not None:
            ports |= {desired.port, *([desired.grpc_port] if desired.grpc_port else [])}
    return ports
