"""Ways to run jobs on a cluster that the thesis compares: its Table 6.2, and the frameworks of 6.4.4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scanflow.app.mpi import MPIPolicy, MPIWorkload
from scanflow.errors import InvalidError
from scanflow.placement.mpi.groups import ClusterNode, place_groups
from scanflow.placement.mpi.job_plan import Placing
from scanflow.placement.mpi.task_allocation import MPIWorker
from scanflow_research.simulation.programs import SubmittedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentScheme:
    name: str
    pinned: bool = True
    """Whether the kubelet gives containers exclusive CPUs, of one socket where possible."""

    policy: MPIPolicy = "none"
    """The policy of Algorithm 2; ``none``: ``workers`` applies."""

    one_worker_per_task: bool = False
    """Under the policy ``none``: one worker per task, instead of one for all tasks."""

    task_groups: bool = False
    """Whether Algorithms 4 and 5 place workers. Otherwise each is placed on any node with enough resources."""

    in_order: bool = True
    """Whether waiting jobs are considered in the order of submission. Otherwise in any order, as by a scheduler that
    retries pods after their back-off."""

    start_s: float = 3.6
    """Time from a job's placement until it runs; each of its workers adds ``start_worker_s``."""

    start_worker_s: float = 0.4

    release_s: float = 36.0
    """Time from a job's end until its cores are free: containers that ignore SIGTERM are killed after 30 s."""

    def build_workload(self, job: SubmittedJob) -> MPIWorkload:
        """Return the job as its user, or the framework, defines it."""
        by_hand = job.n_tasks if self.one_worker_per_task else 1
        return MPIWorkload(
            name=job.name,
            mainfile=job.program.name,
            n_tasks=job.n_tasks,
            n_nodes=job.n_nodes,
            profile=job.program.profile,
            policy=self.policy,
            n_workers=by_hand if self.policy == "none" else None,
        )

    def choose_placing(self, random: Random) -> Placing:
        """Return the function that chooses nodes."""
        return place_groups if self.task_groups else _RandomPlacement(random)


class _RandomPlacement:
    """Places each worker on any node with enough resources, as the thesis describes the default scheduler (6.4.3)."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def __call__(
        self, workers: Sequence[MPIWorker], groups: Sequence[Sequence[int]], nodes: Sequence[ClusterNode]
    ) -> tuple[str, ...]:
        del groups  # it knows of none
        free = {node.name: node.cores for node in nodes}
        placed: list[str] = []
        for worker in workers:
            fitting = [name for name, cores in free.items() if cores >= worker.cores]
            if not fitting:
                raise InvalidError(f"Worker {worker.index} needs {worker.cores:g} cores, but no node has them free.")
            placed.append(self._random.choice(fitting))
            free[placed[-1]] -= worker.cores
        return tuple(placed)


NONE = DeploymentScheme(name="NONE", pinned=False)
CM = DeploymentScheme(name="CM")
CM_S = DeploymentScheme(name="CM_S", policy="scale")
CM_G = DeploymentScheme(name="CM_G", policy="granularity")
CM_S_TG = DeploymentScheme(name="CM_S_TG", policy="scale", task_groups=True)
CM_G_TG = DeploymentScheme(name="CM_G_TG", policy="granularity", task_groups=True)
KUBEFLOW = DeploymentScheme(name="Kubeflow", in_order=False, start_s=1.6, release_s=8.0)
VOLCANO = DeploymentScheme(name="Volcano", one_worker_per_task=True)

SCENARIOS = (NONE, CM, CM_S, CM_G, CM_S_TG, CM_G_TG, KUBEFLOW, VOLCANO)
