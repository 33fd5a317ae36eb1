"""Which cores each instance of a service gets: :mod:`scanflow.placement`, with what other services hold already.

Services of one home choose one at a time, under the home's lock. CPUs that nobody has are preferred, then those that
are shared; the old and the new instances of a service that is replaced share CPUs only where there are no others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scanflow.backends.local.services.layout import ServiceFolder, ServicesHome
from scanflow.backends.service_records import Shape
from scanflow.errors import InvalidError, UnavailableError
from scanflow.placement.place import Grant, place
from scanflow.placement.threads import POOLS, check_overrides, thread_variables
from scanflow.placement.topology import Topology
from scanflow.processes.files import hold_lock, write_atomically
from scanflow.wire import decode, encode


@dataclass(frozen=True, slots=True)
class _Grants:
    shared: bool = False
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class UsedCpus:
    """The CPUs that instances hold."""

    exclusive: tuple[Grant, ...] = ()  # grants that no other pinned instance may share
    shared: tuple[Grant, ...] = ()


def planned(topology: Topology, shape: Shape, count: int, others: UsedCpus) -> tuple[Grant, ...]:
    """Return the grants of ``count`` instances of that shape, beside those of ``others``.

    With ``any``, the least used CPUs are shared with whoever else is there; otherwise they are an instance's own.

    Raises:
        InvalidError: there are not enough; the message says how many there are.
    """
    shared = shape.affinity == "any"

    def beside(grants: Sequence[Grant]) -> tuple[Grant, ...]:
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
        return beside([*others.exclusive, *others.shared])
    except InvalidError:
        if shared or not others.shared:
            raise
        return beside(others.exclusive)


def threads_of(topology: Topology, shape: Shape, env: dict[str, str]) -> dict[str, str]:
    """Return the thread variables of an instance; the user's own are among them."""
    cores = shape.cores or (1.0 if shape.affinity != "any" else float(topology.effective_count))
    known = {*POOLS, "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"}
    overrides = {} if shape.pool_threads is None else dict.fromkeys(POOLS, str(shape.pool_threads))
    overrides |= {name: value for name, value in env.items() if name in known}
    check_overrides(overrides, cores)
    return thread_variables(cores, overrides)


def choose(
    folder: ServiceFolder,
    topology: Topology,
    shape: Shape,
    count: int,
    own: Sequence[Grant],
    leaving: Sequence[Grant] = (),
) -> Grant:
    """Choose and write down the grant of one more instance of a service of ``count``.

    ``own``: grants of the instances that stay; ``leaving``: of those that are replaced, avoided where that is possible.

    Raises:
        InvalidError: there are not enough cores.
        UnavailableError: the choice cannot be written down.
    """
    home, shared = ServicesHome(folder.path.parent), shape.affinity == "any"
    with hold_lock(home.lock):
        others = grants_of_others(home, folder.path.name)
        if shared:
            chosen = _shared(topology, shape, max(count, 1), own, others, leaving)
        else:
            try:
                chosen = _exclusive(topology, shape, count, own, others, leaving)
            except InvalidError:
                chosen = _exclusive(topology, shape, count, own, others, ())
        write_atomically(folder.grants, encode(_Grants(shared, (*own, chosen))))
        return chosen


def _shared(
    topology: Topology, shape: Shape, count: int, own: Sequence[Grant], others: UsedCpus, leaving: Sequence[Grant]
) -> Grant:
    """Return the CPUs that all instances of a service share: those of its others, while they are as many as needed."""
    if shape.cores is not None:
        needed = min(math.ceil(count * shape.cores), topology.effective_count)
        if own and len(own[0].cpus) == needed:
            return own[0]
    return planned(topology, shape, count, UsedCpus(others.exclusive, (*others.shared, *leaving)))[0]


def _exclusive(
    topology: Topology, shape: Shape, count: int, own: Sequence[Grant], others: UsedCpus, leaving: Sequence[Grant]
) -> Grant:
    beside = UsedCpus((*others.exclusive, *own, *leaving), others.shared)
    # The first of them is placed as all of them together would be.
    return planned(topology, shape, 1 if own else max(count, 1), beside)[0]


def grants_of_others(home: ServicesHome, name: str) -> UsedCpus:
    found = [_read(home.service(other).grants) for other in home.names() if other != name]
    exclusive, shared = (
        [grant for one in found if one.shared is kind for grant in one.grants] for kind in (False, True)
    )
    return UsedCpus(tuple(exclusive), tuple(shared))


def service_cpus(home: ServicesHome) -> dict[str, tuple[int, ...]]:
    """Return the CPUs that the instances of each service hold, by its name; those that hold none are left out."""
    found = {
        name: {cpu for one in _read(home.service(name).grants).grants for cpu in one.cpus} for name in home.names()
    }
    return {name: tuple(sorted(cpus)) for name, cpus in found.items() if cpus}


def cpus_avoiding(home: ServicesHome, services: Sequence[str], topology: Topology) -> tuple[int, ...]:
    """Return the CPUs for what is to be apart from these services: on cores that none of their instances has; else
    CPUs that none has; else all there are."""
    held = {cpu for name in services for grant in _read(home.service(name).grants).grants for cpu in grant.cpus}
    cpus = topology.effective_cpus
    free = [cpu for cpu in cpus if cpu not in held]
    whole = [cpu for cpu in free if held.isdisjoint(topology.core_of[cpu].cpus)]
    return tuple(whole or free or cpus)


def _read(path: Path) -> _Grants:
    try:
        return decode(_Grants, path.read_bytes())
    except (FileNotFoundError, InvalidError):
        return _Grants()
    except OSError as error:
        raise UnavailableError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
