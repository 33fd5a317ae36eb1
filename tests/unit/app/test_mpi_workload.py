"""The one node of an MPI workflow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.errors import InvalidError


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
