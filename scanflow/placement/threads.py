"""Sizes the thread pools of libraries by the cores granted.

Left alone, a library starts a thread for each core of the machine, whatever it was granted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scanflow.app.quantities import format_cores, format_count
from scanflow.errors import InvalidError

SCANFLOW_THREADS = "SCANFLOW_THREADS"
"""For libraries without a variable of their own: code that opens an ONNX model sets its session's options."""

INTER_OP = "TF_NUM_INTEROP_THREADS"
INTRA_OP = "TF_NUM_INTRAOP_THREADS"

POOLS = (
    "OMP_NUM_THREADS",  # OpenMP: Torch, scikit-learn, MKL, oneDNN
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",  # what OpenBLAS reads if that is missing
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "VECLIB_MAXIMUM_THREADS",  # Accelerate, on macOS
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",  # tokenizers and others written in Rust
    "POLARS_MAX_THREADS",
    "LOKY_MAX_CPU_COUNT",  # joblib's n_jobs=-1
    SCANFLOW_THREADS,
)
"""Each sizes one pool, whose threads may all be busy at once."""

_FIXED_VARIABLES = {
    # A runtime that binds threads binds the one that loads it to its first core, and every thread which that one starts
    # later inherits this: all of an instance ends up on one core. Instances are bound from outside, thread by thread.
    "OMP_PROC_BIND": "false",
    "KMP_AFFINITY": "disabled",
    # OpenMP's threads wait for one another by spinning. Where another process has one of their cores for a moment, all
    # of them spin through it: scikit-learn was seen to take ten times as long.
    "OMP_WAIT_POLICY": "passive",
}


def compute_pool_size(cores: float) -> int:
    """Return the size of a thread pool for a number of cores, rounded up."""
    return max(1, math.ceil(round(cores, 6)))


def build_thread_variables(cores: float, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables to set before anything is imported, so that no pool outgrows the cores granted.

    TensorFlow's two pools multiply: one operation at a time gets all cores, unless an override asks for several, which
    then share them. ``overrides``, checked by :func:`check_overrides`, are in the result.
    """
    size, own = compute_pool_size(cores), dict(overrides or {})
    sizes: dict[str, int] = dict.fromkeys(POOLS, size)
    if INTER_OP in own:
        sizes[INTRA_OP] = max(1, size // _parse_threads(own[INTER_OP], INTER_OP))
    else:
        sizes[INTRA_OP] = size
        sizes[INTER_OP] = max(1, size // _parse_threads(own[INTRA_OP], INTRA_OP)) if INTRA_OP in own else 1
    derived = {name: str(number) for name, number in sizes.items()}
    # One arena of memory for each thread that may work, and not eight for each core of the machine.
    derived["MALLOC_ARENA_MAX"] = str(max(2, size))
    return {**_FIXED_VARIABLES, **derived, **own}


def check_overrides(overrides: Mapping[str, str], cores: float) -> None:
    """Reject the user's variables that let a pool outgrow the cores granted."""
    size = compute_pool_size(cores)
    for name in (*POOLS, INTER_OP, INTRA_OP):
        if name in overrides:
            number = _parse_threads(overrides[name], name)
            if number > size:
                raise InvalidError(
                    f"The variable {name}={overrides[name]} requests {format_count(number, 'thread')} on "
                    f"{format_cores(cores)}. Write {name}={size} or less, omit it (it is then {size}), or request "
                    "more cores."
                )
    if INTER_OP in overrides and INTRA_OP in overrides:
        inter, intra = _parse_threads(overrides[INTER_OP], INTER_OP), _parse_threads(overrides[INTRA_OP], INTRA_OP)
        if inter * intra > size:
            raise InvalidError(
                f"The variables {INTER_OP}={inter} and {INTRA_OP}={intra} request {inter} x {intra} = {inter * intra} "
                f"threads on {format_cores(cores)}. "
                f"Write {INTRA_OP}={max(1, size // inter)}, or omit one of them."
            )


def _parse_threads(text: str, name: str) -> int:
    """Parse the number of threads in a variable; OpenMP writes levels of nested pools as ``4,2``, which multiply."""
    parts = text.split(",") if name == "OMP_NUM_THREADS" else [text]
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in parts]
    if not all(numbers):
        why = ": 0 means one for each core of the machine" if 0 in numbers and text.strip() == "0" else ""
        raise InvalidError(f"The variable {name}={text!r:.40} is not a number of threads{why}. Write 1 or more.")
    return math.prod(numbers)
