from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import InvalidError
from scanflow.placement.threads import (
    INTER_OP,
    INTRA_OP,
    POOLS,
    SCANFLOW_THREADS,
    build_thread_variables,
    check_overrides,
    compute_pool_size,
)
from tests.waiting import patient

SIZES = st.integers(1, 64)


@pytest.mark.parametrize(
    ("cores", "size"), [(0.001, 1), (0.5, 1), (1, 1), (1.5, 2), (2.0, 2), (3 * 0.1 * 10, 3), (36, 36)]
)
def test_a_part_of_a_core_counts_as_one(cores: float, size: int) -> None:
    assert compute_pool_size(cores) == size


def test_every_pool_is_as_large_as_the_cores_allocated() -> None:
    variables = build_thread_variables(3.5)
    assert {variables[name] for name in POOLS} == {"4"}
    assert (variables[INTER_OP], variables[INTRA_OP]) == ("1", "4")
    assert variables["OMP_NUM_THREADS"] == variables[SCANFLOW_THREADS] == "4"
    assert variables["MALLOC_ARENA_MAX"] == "4"
    assert (variables["OMP_PROC_BIND"], variables["KMP_AFFINITY"]) == ("false", "disabled")


def test_a_user_may_choose_how_openmp_waits() -> None:
    assert build_thread_variables(2)["OMP_WAIT_POLICY"] == "passive"
    assert build_thread_variables(2, {"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"


@pytest.mark.processes
def test_an_openmp_runtime_that_is_loaded_leaves_the_mask_alone() -> None:
    """With OMP_PROC_BIND=true, loading scikit-learn puts the process onto one core."""
    pytest.importorskip("sklearn")
    code = (
        "import os; own = os.sched_getaffinity(0); import sklearn.utils._openmp_helpers; "
        "assert os.sched_getaffinity(0) == own"
    )
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **build_thread_variables(2)}, timeout=patient(120), check=True
    )


@pytest.mark.parametrize(
    ("overrides", "inter", "intra"),
    [({}, "1", "8"), ({INTER_OP: "2"}, "2", "4"), ({INTRA_OP: "2"}, "4", "2"), ({INTER_OP: "3"}, "3", "2")],
)
def test_tensorflows_two_pools_share_the_cores(overrides: dict[str, str], inter: str, intra: str) -> None:
    variables = build_thread_variables(8, overrides)
    assert (variables[INTER_OP], variables[INTRA_OP]) == (inter, intra)


@given(SIZES, st.dictionaries(st.sampled_from([*POOLS, INTER_OP, INTRA_OP]), SIZES))
def test_what_is_accepted_stays_within_the_budget(cores: int, sizes: dict[str, int]) -> None:
    overrides = {name: str(number) for name, number in sizes.items()}
    try:
        check_overrides(overrides, cores)
    except InvalidError:
        return
    variables = build_thread_variables(cores, overrides)
    assert overrides.items() <= variables.items()
    assert all(1 <= int(variables[name]) <= cores for name in POOLS)
    assert int(variables[INTER_OP]) * int(variables[INTRA_OP]) <= cores


def test_an_override_beyond_the_budget_is_refused_by_name() -> None:
    with pytest.raises(InvalidError) as caught:
        check_overrides({"HOME": "/", "OMP_NUM_THREADS": "8"}, 2)
    assert str(caught.value) == (
        "The variable OMP_NUM_THREADS=8 requests 8 threads on 2 cores. Write OMP_NUM_THREADS=2 or less, omit it "
        "(it is then 2), or request more cores."
    )
    with pytest.raises(InvalidError, match=r"2 x 4 = 8 threads on 4 cores\. Write TF_NUM_INTRAOP_THREADS=2"):
        check_overrides({INTER_OP: "2", INTRA_OP: "4"}, 4)
    check_overrides({"OMP_NUM_THREADS": "2,2"}, 4)  # nested pools multiply


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("OMP_NUM_THREADS", "all", "is not a number of threads"),
        ("OMP_NUM_THREADS", "", "is not a number of threads"),
        ("OMP_NUM_THREADS", "2,2", "requests 4 threads on 2 cores"),
        ("MKL_NUM_THREADS", "-1", "is not a number of threads"),
        ("TF_NUM_INTRAOP_THREADS", "0", "0 means one for each core of the machine"),
        ("OPENBLAS_NUM_THREADS", "1.5", "is not a number of threads"),
        (SCANFLOW_THREADS, "3", "requests 3 threads on 2 cores"),
    ],
)
def test_what_is_no_allowed_number_is_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(InvalidError, match=f"{name}.*{words}"):
        check_overrides({name: text}, 2)
