"""CPU grants of instances: :mod:`scanflow.placement`, with the grants of other services.

Services of one home choose one at a time, under the home's lock. Unused CPUs are preferred, then shared ones; old and
new instances of a service that is replaced share CPUs only if there are no others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scanflow.backends.local.services.service_layout import ServiceFolder, ServicesHome
from scanflow.backends.service_records import Shape
from scanflow.errors import InvalidError, UnavailableError
from scanflow.instance_messages import decode, encode
from scanflow.placement.place import Grant, place
from scanflow.placement.threads import POOLS, build_thread_variables, check_overrides
from scanflow.placement.topology import Topology
from scanflow.processes.shared_files import hold_lock, write_atomically


@dataclass(frozen=True, slots=True)
class _Grants:
    shared: bool = False
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class UsedCpus:
    """The CPUs that instances use."""

    exclusive: tuple[Grant, ...] = ()  # grants that no other pinned instance may share
    shared: tuple[Grant, ...] = ()


def plan_grants(topology: Topology, shape: Shape, count: int, used: UsedCpus) -> tuple[Grant, ...]:
    """Return the grants of ``count`` instances of a shape, beside the ``used`` CPUs.

    With affinity ``any``, the least used CPUs are shared with others; else they are exclusive.

    Raises:
        InvalidError: there are not enough; the message says how many there are.
    """
    shared = shape.affinity == "any"

    def place_beside(grants: Sequence[Grant]) -> tuple[Grant, ...]:
        return place(
            topology,
            count,
            shape.cores,
            shape.affinity,
            beside=grants,
            oversubscribe=shared,
            memory_bytes=shape.memory_bytes,
        )

    try:
        return place_beside([*used.exclusive, *used.shared])
    except InvalidError:
        if shared or not used.shared:
            raise
        return place_beside(used.exclusive)


def derive_thread_variables(topology: Topology, shape: Shape, env: dict[str, str]) -> dict[str, str]:
    """Return the thread variables of an instance, with the user's own as overrides."""
    cores = shape.cores or (1.0 if shape.affinity != "any" else float(topology.effective_count))
    variable_names = {*POOLS, "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"}
    overrides = {} if shape.pool_threads is None else dict.fromkeys(POOLS, str(shape.pool_threads))
    overrides |= {name: value for name, value in env.items() if name in variable_names}
    check_overrides(overrides, cores)
    return build_thread_variables(cores, overrides)


def choose_grant(
    folder: ServiceFolder,
    topology: Topology,
    shape: Shape,
    count: int,
    own: Sequence[Grant],
    leaving: Sequence[Grant] = (),
) -> Grant:
    """Choose and record the grant of one more instance of a service of ``count``.

    ``own``: grants of the instances that stay; ``leaving``: of those that are replaced, avoided if possible.

    Raises:
        InvalidError: there are not enough cores.
        UnavailableError: the choice cannot be recorded.
    """
    home, shared = ServicesHome(folder.path.parent), shape.affinity == "any"
    with hold_lock(home.lock):
        used = read_used_cpus(home, folder.path.name)
        if shared:
            grant = _choose_shared_grant(topology, shape, max(count, 1), own, used, leaving)
        else:
            try:
                grant = _choose_exclusive_grant(topology, shape, count, own, used, leaving)
            except InvalidError:
                grant = _choose_exclusive_grant(topology, shape, count, own, used, ())
        write_atomically(folder.grants, encode(_Grants(shared, (*own, grant))))
        return grant


def _choose_shared_grant(
    topology: Topology, shape: Shape, count: int, own: Sequence[Grant], used: UsedCpus, leaving: Sequence[Grant]
) -> Grant:
    """Return the CPUs that all instances of a service share: the existing grant, if it has the right size."""
    if shape.cores is not None:
        needed = min(math.ceil(count * shape.cores), topology.effective_count)
        if own and len(own[0].cpus) == needed:
            return own[0]
    return plan_grants(topology, shape, count, UsedCpus(used.exclusive, (*used.shared, *leaving)))[0]


def _choose_exclusive_grant(
    topology: Topology, shape: Shape, count: int, own: Sequence[Grant], used: UsedCpus, leaving: Sequence[Grant]
) -> Grant:
    avoided = UsedCpus((*used.exclusive, *own, *leaving), used.shared)
    # The first instance is placed as all of them together would be.
    return plan_grants(topology, shape, 1 if own else max(count, 1), avoided)[0]


def read_used_cpus(home: ServicesHome, name: str) -> UsedCpus:
    records = [_read(home.service(other).grants) for other in home.list_names() if other != name]
    exclusive, shared = (
        [grant for record in records if record.shared is kind for grant in record.grants] for kind in (False, True)
    )
    return UsedCpus(tuple(exclusive), tuple(shared))


def read_service_cpus(home: ServicesHome) -> dict[str, tuple[int, ...]]:
    """Return the CPUs of each service's instances, by its name; services without CPUs are left out."""
    cpus_by_service = {
        name: {cpu for grant in _read(home.service(name).grants).grants for cpu in grant.cpus}
        for name in home.list_names()
    }
    return {name: tuple(sorted(cpus)) for name, cpus in cpus_by_service.items() if cpus}


def list_cpus_avoiding(home: ServicesHome, services: Sequence[str], topology: Topology) -> tuple[int, ...]:
    """Return the CPUs for a step that avoids these services: those on unused cores; else unused ones; else all."""
    used = {cpu for name in services for grant in _read(home.service(name).grants).grants for cpu in grant.cpus}
    cpus = topology.effective_cpus
    free = [cpu for cpu in cpus if cpu not in used]
    whole = [cpu for cpu in free if used.isdisjoint(topology.core_of[cpu].cpus)]
    return tuple(whole or free or cpus)


def _read(path: Path) -> _Grants:
    try:
        return decode(_Grants, path.read_bytes())
    except (FileNotFoundError, InvalidError):
        return _Grants()
    except OSError as error:
        raise UnavailableError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
