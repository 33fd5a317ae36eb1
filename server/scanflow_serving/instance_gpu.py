"""The GPU that this instance was granted: whether there is one, whether a library can use it, and when it is full."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from scanflow.accelerators.usable_memory import compute_usable_bytes
from scanflow.accelerators.visible import HOLDER_VARIABLE, MEMORY_VARIABLE, SHARE_VARIABLE
from scanflow.errors import UnsupportedError

_log = logging.getLogger(__name__)
_OUT_OF_MEMORY: Final = {"OutOfMemoryError", "ResourceExhaustedError"}
"""The exceptions of PyTorch and TensorFlow."""

_WORDS: Final = ("cuda out of memory", "cuda error: out of memory", "cudaerrormemoryallocation", "cuda failure 2:")
_ONNX_MODULES: Final = ("onnxruntime",)
_DEVICE_WORDS: Final = ("cuda error", "cuda driver error", "cudnn error", "cuda kernel errors")
_LASTING_WORDS: Final = ("cuda error", "cuda driver error")
_ONNX_WORDS: Final = ("failed to allocate memory", "out of memory")


def has_device(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this instance was granted a GPU."""
    return HOLDER_VARIABLE in environ


def find_memory_limit(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the bytes of its share of a GPU that models may use; None: it has whole GPUs, or no bound."""
    value = environ.get(MEMORY_VARIABLE, "")
    if SHARE_VARIABLE not in environ or not value.isdecimal():
        return None
    return compute_usable_bytes(int(value))


def choose_onnx_providers(available: list[str], version: str, who: str) -> list[Any]:
    """Return the execution providers of an ONNX session: the granted GPU first.

    Raises:
        UnsupportedError: there is a GPU, and this build of ONNX Runtime cannot use it.
    """
    cpu = "CPUExecutionProvider"
    if not has_device():
        return [cpu]
    if "CUDAExecutionProvider" not in available:
        raise UnsupportedError(
            f"{who} is to run on the GPU that was granted, and this ONNX Runtime {version} is built without CUDA. "
            "Install onnxruntime-gpu in place of onnxruntime, or remove gpu from its resources."
        )
    limit = find_memory_limit()
    options = {"arena_extend_strategy": "kSameAsRequested", **({} if limit is None else {"gpu_mem_limit": str(limit)})}
    return [("CUDAExecutionProvider", options), cpu]


def prepare_pytorch(who: str) -> None:
    """Check that PyTorch can use the GPU that was granted, and bound its memory; MLflow puts a model on it itself.

    Raises:
        UnsupportedError: it cannot, and would silently compute on cores.
    """
    if not has_device():
        return
    import torch  # pyright: ignore[reportMissingImports]  # the model's own requirement

    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "is built without CUDA" if built is None else f"is built for CUDA {built}, and finds no GPU"
        raise UnsupportedError(
            f"{who} is to run on the GPU that was granted, and this PyTorch {torch.__version__} {why}. Install its "
            "build for the CUDA of the driver (nvidia-smi), or remove gpu from its resources."
        )
    limit, total = find_memory_limit(), torch.cuda.get_device_properties(0).total_memory
    if limit is not None and limit < total:
        torch.cuda.set_per_process_memory_fraction(limit / total)


def prepare_tensorflow(tensorflow: Any, who: str) -> None:
    """Check that TensorFlow can use the GPU that was granted, and bound its memory before it is used.

    Raises:
        UnsupportedError: it cannot, and would silently compute on cores.
    """
    if not has_device():
        return
    config, limit = tensorflow.config, find_memory_limit()
    devices = config.list_physical_devices("GPU")
    if not devices:
        raise UnsupportedError(
            f"{who} is to run on the GPU that was granted, and this TensorFlow {tensorflow.__version__} finds none. "
            "Install tensorflow[and-cuda] in place of tensorflow-cpu, or remove gpu from its resources."
        )
    if limit is not None:
        bound = [config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)]
        try:
            config.set_logical_device_configuration(devices[0], bound)
        except RuntimeError:  # the user's code has computed with it before
            _log.warning("%s is not bounded to its share of the GPU, as TensorFlow was in use before.", who)


def is_out_of_device_memory(error: BaseException) -> bool:
    """Return whether an exception says that the memory of a GPU is used up; the process lives on."""
    kind = type(error)
    try:
        text = str(error).lower()
    except Exception:  # noqa: BLE001 - a user's own exception may fail to describe itself
        return False
    if kind.__name__ in _OUT_OF_MEMORY and kind.__module__.partition(".")[0] in {"torch", "tensorflow"}:
        return True
    if kind.__module__.startswith(_ONNX_MODULES) and any(word in text for word in _ONNX_WORDS):
        return has_device()
    return isinstance(error, RuntimeError) and any(word in text for word in _WORDS)


def is_of_device(error: RuntimeError) -> bool:
    """Return whether an exception is a GPU's, and says nothing of the input: PyTorch raises one type for both."""
    return is_out_of_device_memory(error) or str(error).lower().startswith(_DEVICE_WORDS)


def is_device_broken(error: BaseException) -> bool:
    """Return whether an exception says that this process can use its GPU no more: a fault of it, or of a program on it,
    as an index out of range. CUDA fails every later call of such a process."""
    if not has_device() or not isinstance(error, RuntimeError) or is_out_of_device_memory(error):
        return False
    return str(error).lower().startswith(_LASTING_WORDS)


def find_out_of_device_memory(error: BaseException) -> BaseException | None:
    """Return the exception that says that the memory of a GPU is used up, among an exception and its causes."""
    cause: BaseException | None = error
    while cause is not None and not is_out_of_device_memory(cause):
        cause = cause.__cause__ or cause.__context__
    return cause


def free_cached_memory() -> None:
    """Give back what PyTorch keeps of the device's memory without using it, so that others may have it."""
    cuda = _find_cuda()
    if cuda is not None:
        cuda.empty_cache()


def free_dropped_memory() -> None:
    """Give back what models held of the device that are not served any more, also where they refer to themselves, and
    measure anew what the others need."""
    cuda = _find_cuda()
    if cuda is not None and has_device():
        gc.collect()
        cuda.empty_cache()
        for device in range(cuda.device_count()):
            cuda.reset_peak_memory_stats(device)


def measure_unused_memory() -> int | None:
    """Return the bytes that PyTorch keeps of the device, and that were never needed since models changed; None: it does
    not compute on one. Other libraries do not say."""
    cuda = _find_cuda()
    if cuda is None or not has_device():
        return None
    devices = range(cuda.device_count())
    unused: int = sum(max(0, cuda.memory_reserved(device) - cuda.max_memory_allocated(device)) for device in devices)
    return unused


def _find_cuda() -> Any | None:
    """Return PyTorch's ``torch.cuda`` once it computes on a GPU; None before, also while a thread imports it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and getattr(cuda, "is_initialized", bool)() else None
