"""Which cores each instance of a service gets: :mod:`scanflow.placement`, with what other services hold already.

Services of one home choose one at a time, under the home's lock. The old and the new instances of a service that is cut
anew share cores for a moment, so a service does not count its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from scanflow.backends.local.services.layout import ServiceFolder, ServicesHome
from scanflow.backends.local.services.stored import held, write_atomically
from scanflow.backends.service_records import Shape
from scanflow.placement.place import Grant, place
from scanflow.placement.threads import POOLS, check_overrides, thread_variables
from scanflow.placement.topology import Topology

__all__ = ["choose", "grants_of_others", "planned", "release", "threads_of"]

_FILE = "grants.json"


def planned(topology: Topology, shape: Shape, count: int, others: Sequence[Grant]) -> tuple[Grant, ...]:
    """Return the grants of ``count`` instances of that shape, beside those of ``others``.

    With ``any``, cores are shared with whoever else is there; otherwise they are an instance's own.

    Raises:
        InvalidError: there are not enough; the message says how many there are.
    """
    shared = shape.affinity == "any"
    return place(
        topology,
        count,
        shape.cores,
        shape.affinity,
        beside=() if shared else others,
        oversubscribe=shared,
        memory_bytes=shape.memory_bytes,
    )


def threads_of(topology: Topology, shape: Shape, env: dict[str, str]) -> dict[str, str]:
    """Return the thread variables of an instance; the user's own are among them.

    Raises:
        InvalidError: one of the user's asks for more threads than the cores granted.
    """
    cores = shape.cores or (1.0 if shape.affinity != "any" else float(topology.effective_count))
    known = {*POOLS, "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"}
    overrides = {name: value for name, value in env.items() if name in known}
    check_overrides(overrides, cores)
    return thread_variables(cores, overrides)


def choose(folder: ServiceFolder, topology: Topology, shape: Shape, count: int, own: Sequence[Grant]) -> Grant:
    """Choose and write down the grant of one more instance of a service of ``count``; ``own``: those of its others.

    Raises:
        InvalidError: there are not enough cores.
    """
    home = ServicesHome(folder.path.parent)
    with held(home.lock):
        if shape.affinity == "any":
            _write(folder, ())
            return planned(topology, shape, max(count, 1), ())[0]
        others = grants_of_others(home, folder.path.name)
        if own:
            chosen = planned(topology, shape, 1, [*others, *own])[0]
        else:  # the first of them: spread as all of them together would be
            chosen = planned(topology, shape, max(count, 1), others)[0]
        _write(folder, [*own, chosen])
        return chosen


def release(folder: ServiceFolder) -> None:
    """Hold no cores any more."""
    (folder.path / _FILE).unlink(missing_ok=True)


def grants_of_others(home: ServicesHome, name: str) -> list[Grant]:
    """Return what the other services of this home hold as their own."""
    return [grant for other in home.names() if other != name for grant in _read(home.service(other).path / _FILE)]


def _write(folder: ServiceFolder, grants: Sequence[Grant]) -> None:
    write_atomically(folder.path / _FILE, json.dumps([asdict(grant) for grant in grants]).encode())


def _read(path: Path) -> list[Grant]:
    try:
        return [
            Grant(
                cpus=tuple(one["cpus"]),
                memory_nodes=tuple(one["memory_nodes"]),
                thread_cpus=tuple(one["thread_cpus"]),
                cores=one["cores"],
                part=one["part"],
            )
            for one in json.loads(path.read_bytes())
        ]
    except FileNotFoundError:
        return []
