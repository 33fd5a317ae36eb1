"""The one node of an MPI workflow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.errors import InvalidError
from tests.unit.app.making import made, message


@given(st.integers(1, 200), st.integers(1, 200), st.none() | st.integers(1, 200))
def test_there_are_at_least_as_many_tasks_as_nodes_and_workers(tasks: int, nodes: int, workers: int | None) -> None:
    if nodes <= tasks and (workers or 1) <= tasks:
        job = sf.MPIWorkload(name="dgemm", mainfile="dgemm", n_tasks=tasks, n_nodes=nodes, n_workers=workers)
        assert (job.n_tasks, job.n_nodes, job.n_workers) == (tasks, nodes, workers)
    else:
        with pytest.raises(
            InvalidError, match=rf"MPIWorkload 'dgemm' has {tasks} tasks for .* Write n_.*={tasks} or less."
        ):
            sf.MPIWorkload(name="dgemm", mainfile="dgemm", n_tasks=tasks, n_nodes=nodes, n_workers=workers)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"n_tasks": 0}, "MPIWorkload 'dgemm': n_tasks cannot be 0: it should be greater than or equal to 1."),
        ({"n_tasks": True}, "MPIWorkload 'dgemm': n_tasks cannot be True: it should be a number."),
        ({"n_nodes": True}, "MPIWorkload 'dgemm': n_nodes cannot be True: it should be a number."),
        ({"n_tasks": 1.5}, "MPIWorkload 'dgemm': n_tasks cannot be 1.5"),
        ({"n_task": 1}, "MPIWorkload 'dgemm' has no field 'n_task'. Did you mean 'n_tasks'?"),
        (
            {"profile": "net"},
            "MPIWorkload 'dgemm': profile cannot be 'net': it should be 'cpu', 'memory' or 'network'.",
        ),
        ({"parameters": {"m": {1}}}, "MPIWorkload 'dgemm': the parameter 'm' is a set, which cannot be written down."),
        ({"resources_per_task": {"cpu": 0}}, "MPIWorkload 'dgemm': Resources: cpu 0 is not above zero."),
        ({"affinity": "near"}, "MPIWorkload 'dgemm': affinity 'near' is not known."),
        ({"name": "hpcc_dgemm"}, "The MPI workload name 'hpcc_dgemm' cannot be used"),
    ],
)
def test_a_wrong_field_is_refused_with_what_to_write(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError) as error:
        made(sf.MPIWorkload, **{"name": "dgemm", "mainfile": "dgemm", "n_tasks": 4, **fields})
    assert message(error).startswith(told)
