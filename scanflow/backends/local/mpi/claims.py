"""CPU claims of running MPI jobs on this machine, in addition to those of services: files below the home.

A job's file is valid while its process holds the lock, which the kernel releases when it ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from scanflow.app.mpi import MPIProfile
from scanflow.backends.local.services.grants import read_service_cpus
from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.errors import InvalidError
from scanflow.files.private import create_private_folder
from scanflow.instance_messages import decode, encode
from scanflow.placement.mpi.colocation import Neighbour
from scanflow.placement.mpi.job_plan import MPIPlan
from scanflow.processes.shared_files import hold_driver_lock, hold_lock, is_locked, write_atomically

JOBS_FOLDER: Final = "jobs"


def list_neighbours(home: Path) -> list[Neighbour]:
    """Return the services and jobs of a home with their CPUs."""
    services = [Neighbour(name=name, cpus=cpus) for name, cpus in read_service_cpus(_open_services(home)).items()]
    return services + [
        job for file in sorted((home / JOBS_FOLDER).glob("*.json")) if (job := _read_running_job(file)) is not None
    ]


@contextmanager
def claim_cpus(
    home: Path, name: str, profile: MPIProfile | None, plan: Callable[[Sequence[Neighbour]], MPIPlan]
) -> Iterator[MPIPlan]:
    """Plan a job beside running ones, and hold its CPUs inside the context; services and other jobs choose after it."""
    file = home / JOBS_FOLDER / f"{os.getpid()}.json"
    with ExitStack() as stack:
        with hold_lock(_open_services(home).lock):
            mpi_plan = plan(list_neighbours(home))
            cpus = tuple(sorted({cpu for rank in mpi_plan.ranks for cpu in rank.cpus}))
            create_private_folder(home / JOBS_FOLDER)
            stack.enter_context(hold_driver_lock(file.with_suffix(".lock"), name))
            write_atomically(file, encode(Neighbour(name=name, cpus=cpus, service=False, profile=profile)))
        try:
            yield mpi_plan
        finally:
            file.unlink(missing_ok=True)
            file.with_suffix(".lock").unlink(missing_ok=True)


def _open_services(home: Path) -> ServicesHome:
    return ServicesHome(home / "services")


def _read_running_job(file: Path) -> Neighbour | None:
    if not is_locked(file.with_suffix(".lock")):
        return None
    try:
        return decode(Neighbour, file.read_bytes())
    except (FileNotFoundError, InvalidError):
        return None  # it has just ended
