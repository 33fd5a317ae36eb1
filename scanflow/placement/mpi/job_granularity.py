"""Granularity selection: the number of workers a job is divided into, and of nodes (thesis 6.3.1, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

from scanflow.app.mpi import MPIPolicy, MPIProfile
from scanflow.errors import InvalidError


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
