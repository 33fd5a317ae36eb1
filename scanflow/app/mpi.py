"""The one node of an MPI workflow."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from scanflow.app.edges import Linkable
from scanflow.app.model import Whole
from scanflow.app.parameters import Fixed, Parameters
from scanflow.app.resources import Affinity, Resources
from scanflow.errors import InvalidError
from scanflow.names import check_name

MPIProfile = Literal["cpu", "memory", "network"]
"""What bounds the program (thesis 6.3.1); it decides into how many workers the job is cut."""


class MPIWorkload(Linkable):
    """An MPI program: how many tasks, on how many nodes, with what each."""

    kind: Literal["mpi"] = "mpi"

    name: Annotated[str, AfterValidator(lambda name: check_name(name, "MPI workload"))]
    mainfile: str
    """The program, relative to the application's folder or an absolute path on the machines it runs on."""

    parameters: Parameters = Field(default_factory=Fixed)
    n_tasks: Whole = Field(ge=1)
    """MPI processes (N_t of thesis Table 6.1), as ``mpirun -np``."""

    n_nodes: Whole = Field(default=1, ge=1)
    """Machines at most (N_n)."""

    n_workers: Whole | None = Field(default=None, ge=1)
    """Workers the tasks are spread over (N_w). Unset: chosen from the profile (thesis Algorithm 2)."""

    resources_per_task: Resources = Resources(cpu=1)
    profile: MPIProfile | None = None
    """What bounds the program. Unset: found by a short profiling run."""

    oversubscribe: bool = False
    """Allow more tasks than cores."""

    image: str | None = None
    affinity: Annotated[Affinity | str | None, BeforeValidator(Affinity.coerce)] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        who = f"MPIWorkload {self.name!r}"
        if self.n_nodes > self.n_tasks:
            raise InvalidError(
                f"{who} has {self.n_tasks} tasks for {self.n_nodes} nodes. Write n_nodes={self.n_tasks} or less."
            )
        if self.n_workers is not None and self.n_workers > self.n_tasks:
            raise InvalidError(
                f"{who} has {self.n_tasks} tasks for {self.n_workers} workers. Write n_workers={self.n_tasks} or less."
            )
        return self
