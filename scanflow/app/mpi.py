"""The one node of an MPI workflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from scanflow.app.edges import Linkable
from scanflow.app.model import Whole, as_tuple
from scanflow.app.parameters import FrozenDict, Parameters
from scanflow.app.quantities import Duration
from scanflow.app.resources import Affinity, AffinityMode, AffinityOrMode, Resources
from scanflow.app.secrets import iterate_secrets
from scanflow.errors import InvalidError
from scanflow.names import check_name

MPIProfile = Literal["cpu", "memory", "network"]
"""The resource that limits the program's speed (thesis 6.3.1); it decides how many workers the job is split into."""

MPIPolicy = Literal["scale", "granularity", "none"]
MPIFlavor = Literal["openmpi", "mpich"]
MPIRuntime = Literal["podman", "apptainer", "singularity"]
"""The container runtime on one machine (thesis 3.3)."""


class MPIWorkload(Linkable):
    """An MPI program: its tasks, nodes, and the resources of each task."""

    kind: Literal["mpi"] = "mpi"
    """What tells nodes apart in files."""

    name: Annotated[str, AfterValidator(lambda name: check_name(name, "MPI workload"))]
    """Unique in the workflow; lower-case letters, digits and ``-``."""

    mainfile: str
    """The program, relative to the application's folder or an absolute path on the machines it runs on; or a YAML file
    with ``program`` and fields of the workload."""

    args: Annotated[Sequence[str], AfterValidator(as_tuple)] = ()
    """Arguments of the program, before those built from ``parameters``."""

    parameters: Parameters = Field(default_factory=FrozenDict)
    """Arguments of the program, as ``--name value``."""

    n_tasks: Whole = Field(ge=1)
    """MPI processes (N_t of thesis Table 6.1), as ``mpirun -np``."""

    n_nodes: Whole = Field(default=1, ge=1)
    """The maximum number of machines (N_n)."""

    n_workers: Whole | None = Field(default=None, ge=1)
    """The number of workers that the tasks are divided among (N_w). Unset: ``policy`` and ``profile`` decide (thesis
    Algorithm 2)."""

    policy: MPIPolicy = "scale"
    """How Algorithm 2 splits a job without ``n_workers``: one worker per node (``scale``), one per task
    (``granularity``), or a single one (``none``). A network-bound job is never split."""

    resources_per_task: Resources = Resources(cpu=1)
    """The cores and memory of each MPI process."""

    profile: Literal["cpu", "memory", "network", "auto"] | None = None
    """The resource that limits the program's speed. ``auto``: on one machine, a run of at most 30 s before the job
    determines it. Unset: unknown, and the job is not split."""

    flavor: MPIFlavor | None = None
    """The MPI implementation. Unset: the installed one; Open MPI if both are installed."""

    oversubscribe: bool = False
    """Allow more tasks than cores."""

    timeout: Duration = None
    """The timeout of the job; then it is terminated, and the ranks that were still running are reported."""

    image: str | None = None
    """A container image with the program and MPI."""

    runtime: MPIRuntime | None = None
    """On one machine, it runs each rank in a container of ``image``, in which ``mainfile`` is a path. Unset: ranks
    are processes of the machine."""

    volume: Annotated[str | None, AfterValidator(lambda name: name and check_name(name, "volume"))] = None
    """On Kubernetes: the PersistentVolumeClaim of the environment that ``$SCANFLOW_OUTPUT_DIR`` of all ranks is on;
    ``scanflow-outputs`` is the claim of batch steps. Unset: files that ranks write are lost with their pods. On one
    machine it is the run's own folder."""

    affinity: AffinityOrMode = None
    """Where the ranks may run. None: anywhere."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        who = f"MPIWorkload {self.name!r}"
        if (secret := next(iterate_secrets(self.parameters), None)) is not None:
            raise InvalidError(
                f"{who} has {secret!r} in its parameters, which become arguments that every user of the machines can "
                "read. Give it the path of a file that only the job's user can read, as a parameter."
            )
        if self.n_nodes > self.n_tasks:
            raise InvalidError(
                f"{who} has {self.n_tasks} tasks for {self.n_nodes} nodes. Write n_nodes={self.n_tasks} or less."
            )
        if self.runtime is not None and self.image is None:
            raise InvalidError(f"{who} has a runtime for containers, but no image. Add image='...'.")
        if self.n_workers is not None and self.n_workers > self.n_tasks:
            raise InvalidError(
                f"{who} has {self.n_tasks} tasks for {self.n_workers} workers. Write n_workers={self.n_tasks} or less."
            )
        return self

    @property
    def timeout_s(self) -> float | None:
        """Its timeout in seconds. None: it has none."""
        return None if self.timeout is None else float(self.timeout)

    @property
    def memory_bytes(self) -> int | None:
        """The memory of all its tasks; None: the tasks request no memory."""
        task_bytes = self.resources_per_task.memory_bytes
        return None if task_bytes is None else task_bytes * self.n_tasks

    @property
    def mode(self) -> AffinityMode:
        """Where its ranks may run."""
        return self.affinity.mode if isinstance(self.affinity, Affinity) else "any"
