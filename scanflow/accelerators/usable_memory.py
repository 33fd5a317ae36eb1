"""How much of its bound of a device's memory a process can fill with arrays."""

from __future__ import annotations

from typing import Final

CUDA_BYTES: Final = 512 * 2**20
"""What CUDA and its kernels take in a process beside its arrays, about: a bound is of all that the process holds."""


def compute_usable_bytes(bound: int) -> int:
    """Return what a bound leaves for arrays, at least half of it."""
    return max(bound // 2, bound - CUDA_BYTES)
