"""Granularity selection: the workers and nodes that a job is divided into (thesis 6.3.1, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scanflow.app.mpi import MPIPolicy, MPIProfile, MPIWorkload
from scanflow.errors import InvalidError
from scanflow.placement.mpi.groups import ClusterNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Granularity:
    """The granularity of a job: N_n, N_w and N_g of Table 6.1."""

    nodes: int
    workers: int
    groups: int
    """Groups of workers; the workers of a group are kept on one node where possible."""


def select_granularity(
    n_tasks: int, *, nodes: int, workers: int = 1, profile: MPIProfile | None, policy: MPIPolicy
) -> Granularity:
    """Return Algorithm 2's choice.

    Args:
        n_tasks: N_t, the MPI processes.
        nodes: N_n, the nodes that there are for the job.
        workers: N_w, what the user asked for; it counts under the policy ``none`` only.
        profile: The resource that limits the program.
        policy: What the administrator chose.

    Raises:
        InvalidError: a policy needs a profile, or a number is below one.
    """
    for what, number in (("tasks", n_tasks), ("nodes", nodes), ("workers", workers)):
        if number < 1:
            raise InvalidError(f"An MPI job cannot have {number} {what}. Write a whole number above zero.")
    if policy == "none":
        return Granularity(nodes=1, workers=workers, groups=1)
    if profile is None:
        raise InvalidError(
            f"The policy {policy!r} cuts a job by its bottleneck, which is unknown. Write profile='cpu', 'memory' or "
            "'network', or policy='none'."
        )
    if profile == "network":
        return Granularity(nodes=1, workers=1, groups=1)
    used = min(nodes, n_tasks)
    return Granularity(nodes=used, workers=used if policy == "scale" else n_tasks, groups=used)


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
