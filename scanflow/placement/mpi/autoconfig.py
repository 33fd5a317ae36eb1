"""Configures an MPI job for its author (thesis 6.3.1): N_n from the available nodes, and with Algorithm 2 the
workers and groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from scanflow.app.mpi import MPIPolicy, MPIProfile, MPIWorkload
from scanflow.errors import InvalidError
from scanflow.placement.mpi.groups import ClusterNode


def autoconfigure(
    workload: MPIWorkload,
    nodes: Sequence[ClusterNode],
    *,
    policy: MPIPolicy | None = None,
    profile: MPIProfile | Literal["auto"] | None = None,
    most_nodes: int | None = None,
    measurable: bool = False,
) -> MPIWorkload:
    """Return the job spread over the available nodes, its workers chosen by Algorithm 2.

    Args:
        workload: The job as it was written.
        nodes: Those that it may be put on.
        policy: The administrator's; None: the workload's own.
        profile: The resource that limits the program; None: what the workload says.
        most_nodes: Nodes at most.
        measurable: Whether an unknown profile can be measured before the job.

    Raises:
        InvalidError: there is no node.
    """
    if not nodes:
        raise InvalidError(f"There is no node for {workload.name!r}.")
    effective_policy, effective_profile = policy or workload.policy, profile or workload.profile
    if effective_profile is None and measurable and effective_policy != "none":
        effective_profile = "auto"
    cut = effective_profile is not None and effective_policy != "none"
    return workload.replace(
        n_nodes=min(len(nodes), workload.n_tasks, most_nodes or len(nodes)),
        n_workers=None if cut else workload.n_workers,
        policy=effective_policy,
        profile=effective_profile,
    )
