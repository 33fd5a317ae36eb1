"""NVIDIA's Multi-Process Service: whether its control daemon runs, and how a process is bounded by it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DEFAULT_DIRECTORY: Final = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own default
PID_FILE: Final = "nvidia-cuda-mps-control.pid"
SERVER_NAME: Final = "nvidia-cuda-mps"
"""The beginning of the names of its own processes, as the kernel shortens them."""

START: Final = "nvidia-cuda-mps-control -d"
"""The command that starts it, as the user of the steps or as root."""


def find_mps_directory(environ: Mapping[str, str]) -> str | None:
    """Return the pipe directory of a running control daemon; None: there is none.

    The sockets in it stay behind when the daemon ends, so its process counts.
    """
    folder = Path(environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_DIRECTORY)
    try:
        pid = int((folder / PID_FILE).read_text(encoding="ascii"))
        os.kill(pid, 0)
    except (OSError, ValueError, OverflowError) as error:
        if not isinstance(error, PermissionError):  # it is another user's
            return None
    return str(folder) if (folder / "control").exists() else None


def build_mps_variables(directory: str, share: float, memory_bytes: int | None) -> dict[str, str]:
    """Return the variables that bound a process of one device: its part of the processors, and its memory.

    The limits are NVIDIA's ``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`` and ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``, whose 0 is
    the only device that the process sees.
    """
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": directory,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, math.floor(share * 100 + 1e-9))),
    }
    if memory_bytes is not None:
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, memory_bytes // 2**20)}M"
    return variables
