"""What a planner decides of an MPI job in place of who wrote it (thesis 6.3.1): N_n from the nodes that there are, and
with Algorithm 2 the workers and groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from scanflow.app.mpi import MPIPolicy, MPIProfile, MPIWorkload
from scanflow.errors import InvalidError
from scanflow.placement.mpi.groups import ClusterNode


def autoconfigured(
    workload: MPIWorkload,
    nodes: Sequence[ClusterNode],
    *,
    policy: MPIPolicy | None = None,
    profile: MPIProfile | Literal["auto"] | None = None,
    most_nodes: int | None = None,
    measurable: bool = False,
) -> MPIWorkload:
    """Return the job as it is to be cut: over as many nodes as there are, its workers left to Algorithm 2.

    Args:
        workload: The job as it was written.
        nodes: Those that it may be put on.
        policy: The administrator's; None: the workload's own.
        profile: What bounds the program; None: what the workload says.
        most_nodes: Nodes at most.
        measurable: Whether a profile that nobody knows can be measured, before the job.

    Raises:
        InvalidError: there is no node.
    """
    if not nodes:
        raise InvalidError(f"There is no node to put {workload.name!r} on.")
    chosen, known = policy or workload.policy, profile or workload.profile
    if known is None and measurable and chosen != "none":
        known = "auto"
    cut = known is not None and chosen != "none"
    return workload.replace(
        n_nodes=min(len(nodes), workload.n_tasks, most_nodes or len(nodes)),
        n_workers=None if cut else workload.n_workers,
        policy=chosen,
        profile=known,
    )
