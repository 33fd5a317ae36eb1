"""An instance's GPU: libraries that cannot use it are refused, and one that is full is no dead service."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scanflow.errors import UnsupportedError, UsageError
from scanflow.instance_messages import ModelFiles, Node, Revision
from scanflow.testing.accelerators import GIB
from scanflow_serving.components import load_component, make_component_problem
from scanflow_serving.flavors import open_model
from scanflow_serving.instance_gpu import (
    choose_onnx_providers,
    is_out_of_device_memory,
    prepare_pytorch,
    prepare_tensorflow,
)
from scanflow_serving.signature import NodeSignature
from tests.unit.serving.serving_harness import Instance, instance, make_desired_state, node, wait_in_loop, write_class

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def allocated_device(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("SCANFLOW_DEVICES_OF", "services/w/instances/1/1")
    monkeypatch.delenv("SCANFLOW_GPU_MEMORY_BYTES", raising=False)
    monkeypatch.delenv("SCANFLOW_GPU_SHARE", raising=False)
    return monkeypatch


def make_error(module: str, name: str, text: str) -> Exception:
    error: Exception = type(name, (RuntimeError,), {"__module__": module})(text)
    return error


def test_onnx_runs_on_the_allocated_gpu_within_its_share(allocated_device: pytest.MonkeyPatch) -> None:
    (cuda, options), cpu = choose_onnx_providers(CUDA, "1.30", "The model 'm'")
    assert (cuda, cpu) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert "gpu_mem_limit" not in options
    allocated_device.setenv("SCANFLOW_GPU_MEMORY_BYTES", str(8 * GIB))
    assert "gpu_mem_limit" not in choose_onnx_providers(CUDA, "1.30", "The model 'm'")[0][1]  # a whole one
    allocated_device.setenv("SCANFLOW_GPU_SHARE", "0.1")
    limit = choose_onnx_providers(CUDA, "1.30", "The model 'm'")[0][1]["gpu_mem_limit"]
    assert limit == str(8 * GIB - GIB // 2)  # less what CUDA itself takes
    allocated_device.delenv("SCANFLOW_DEVICES_OF")
    assert choose_onnx_providers(CUDA, "1.30", "The model 'm'") == ["CPUExecutionProvider"]


def test_an_onnx_runtime_without_cuda_is_refused_on_a_gpu(allocated_device: pytest.MonkeyPatch, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    (tmp_path / "MLmodel").write_text("flavors: {onnx: {data: model.onnx}}")
    with pytest.raises(
        UnsupportedError, match=r"is built without CUDA. Install onnxruntime-gpu in place of onnxruntime"
    ):
        open_model(ModelFiles(name="m", version=1, path=str(tmp_path)), {}, threads=1)


@pytest.mark.parametrize(
    ("cuda", "why"), [(None, "is built without CUDA"), ("13.0", "is built for CUDA 13.0, and finds no GPU")]
)
def test_a_pytorch_that_finds_no_gpu_is_refused_on_one(
    allocated_device: pytest.MonkeyPatch, tmp_path: Path, cuda: str | None, why: str
) -> None:
    torch: Any = SimpleNamespace(
        __version__="2.11", version=SimpleNamespace(cuda=cuda), cuda=SimpleNamespace(is_available=lambda: False)
    )
    allocated_device.setitem(sys.modules, "torch", torch)
    (tmp_path / "MLmodel").write_text("flavors: {pytorch: {}, python_function: {loader_module: mlflow.pytorch}}")
    with pytest.raises(UnsupportedError, match=f"this PyTorch 2.11 {why}. Install its build for the CUDA"):
        open_model(ModelFiles(name="m", version=1, path=str(tmp_path)), {}, threads=1)


def test_a_tensorflow_that_finds_no_gpu_is_refused_on_one(allocated_device: pytest.MonkeyPatch) -> None:
    devices: list[str] = []
    config = SimpleNamespace(list_physical_devices=lambda _: devices)
    tensorflow = SimpleNamespace(__version__="2.21", config=config)
    with pytest.raises(
        UnsupportedError, match=r"this TensorFlow 2.21 finds none. Install tensorflow.and-cuda. in place"
    ):
        prepare_tensorflow(tensorflow, "The model 'm'")
    devices.append("GPU:0")
    prepare_tensorflow(tensorflow, "The model 'm'")
    devices.clear()
    allocated_device.delenv("SCANFLOW_DEVICES_OF")
    prepare_tensorflow(tensorflow, "The model 'm'")


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (make_error("torch", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB."), True),
        (make_error("tensorflow.python.framework.errors_impl", "ResourceExhaustedError", "OOM when allocating"), True),
        (
            make_error("onnxruntime.capi.onnxruntime_pybind11_state", "RuntimeException", "Failed to allocate memory"),
            True,
        ),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("the shapes differ"), False),
        (MemoryError("out of memory"), False),
        (make_error("shop", "OutOfMemoryError", "of coffee"), False),
    ],
)
def test_a_full_gpu_is_distinguished_from_other_errors(
    allocated_device: pytest.MonkeyPatch, error: Exception, full: bool
) -> None:
    assert is_out_of_device_memory(error) is full
    problem = make_component_problem("The node 'm'", error)
    assert problem.status == (503 if full else 500)
    if full:
        assert "needs more memory than its GPU has left" in problem.detail
        assert str(error) in problem.detail
        assert problem.retry_after_s == 1.0


async def test_a_service_with_a_full_gpu_answers_the_next_request(tmp_path: Path) -> None:
    model = write_class(
        tmp_path,
        """
        class Full:
            def predict(self, X):
                if len(X) > 1:
                    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.")
                return X
        """,
    )
    async with instance(tmp_path, node("m", model, "Full")) as here:
        full = await here.infer([1.0], [2.0])
        assert (full.status, full.headers["retry-after"]) == (503, "1")
        assert "Tried to allocate 20.00 GiB" in full.detail
        assert (await here.infer([1.0])).outputs == [[1.0]]


class ToyDevice:
    """A GPU of ten units, as PyTorch's allocator has it: what models free is kept until the cache is emptied."""

    def __init__(self) -> None:
        self.allocated = self.reserved = self.peak = self.emptied = 0
        self.held: list[object] = []
        """What something refers to until the cache is emptied for the first time."""

    def load(self, holder: object, size: int) -> None:
        if self.allocated + size > 10:
            raise make_error("torch", "OutOfMemoryError", f"CUDA out of memory. Tried to allocate {size}.00 GiB.")
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak = max(self.peak, self.allocated)
        weakref.finalize(holder, self.free, size)

    def free(self, size: int) -> None:
        self.allocated -= size

    @property
    def cuda(self) -> SimpleNamespace:
        def empty_cache() -> None:
            self.reserved = self.allocated
            self.emptied += 1
            self.held.clear()

        def reset_peak_memory_stats(_: int) -> None:
            self.peak = self.allocated

        return SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 1,
            empty_cache=empty_cache,
            reset_peak_memory_stats=reset_peak_memory_stats,
            memory_reserved=lambda _: self.reserved,
            max_memory_allocated=lambda _: self.peak,
        )


TOY = """
import sys

class Weights:
    def __init__(self, size):
        self.itself = self  # only the collector frees it
        sys.modules["torch"].device.load(self, size)

class Model:
    def __init__(self, size, parts=1):
        self.size, self.parts = size, parts

    def load(self):
        self.weights = [Weights(self.size) for _ in range(self.parts)]

    def predict(self, X):
        return [self.size]
"""


@pytest.fixture
def toy_device(allocated_device: pytest.MonkeyPatch) -> ToyDevice:
    device = ToyDevice()
    allocated_device.setitem(sys.modules, "torch", SimpleNamespace(cuda=device.cuda, device=device))
    allocated_device.setattr("scanflow_serving.revisions.DROP_S", 0.0)
    return device


def describe_memory(here: Instance) -> int:
    unused: int = here.application.describe_state()["unused_device_bytes"]
    return unused


@pytest.mark.parametrize("beside", [False, True])
async def test_a_second_version_that_does_not_fit_leaves_the_first_and_gives_its_memory_back(
    toy_device: ToyDevice, tmp_path: Path, beside: bool
) -> None:
    path = write_class(tmp_path, TOY)
    first = Revision(id="r1", nodes=(node("m", path, "Model", parameters={"size": 6}),))
    second = Revision(id="r2", nodes=(node("m", path, "Model", parameters={"size": 3, "parts": 2}),))
    async with instance(tmp_path, apply=make_desired_state(first)) as here:
        revisions = (replace(first, weight=0.5), replace(second, weight=0.5)) if beside else (second,)
        with pytest.raises(UsageError) as caught:
            await here.application.apply(make_desired_state(*revisions, generation=2))
        assert str(caught.value).startswith(
            "The node 'm' cannot be loaded: it needs more memory than its GPU has left. Ask for a larger gpu= or "
            "gpu_memory=. torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB."
        )
        assert (await here.infer([0.0])).outputs == [[6]]
        assert here.application.describe_state()["generation"] == 1
        assert (toy_device.allocated, toy_device.reserved) == (6, 6)


async def test_a_replaced_version_gives_its_memory_back(toy_device: ToyDevice, tmp_path: Path) -> None:
    path = write_class(tmp_path, TOY)
    first, second = (
        Revision(id=f"r{size}", nodes=(node("m", path, "Model", parameters={"size": size}),)) for size in (6, 4)
    )
    async with instance(tmp_path, apply=make_desired_state(first)) as here:
        toy_device.held.append(here.application.revisions.loaded["r6"])  # as its last caller, for a moment longer
        await here.application.apply(make_desired_state(second, generation=2))
        await wait_in_loop(lambda: toy_device.reserved == 4)
        assert (toy_device.allocated, describe_memory(here)) == (4, 0)
        assert toy_device.emptied > 1, "it is tried again"
        toy_device.reserved = 9  # what a large request took, and PyTorch keeps
        assert describe_memory(here) == 5


async def test_a_model_that_its_gpu_has_no_memory_to_warm_up_is_refused(
    allocated_device: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> object:
        raise make_error("torch", "OutOfMemoryError", "CUDA out of memory.")

    inputs = '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}]'
    (tmp_path / "MLmodel").write_text(
        f"flavors: {{python_function: {{loader_module: x}}}}\nsignature: {{inputs: '{inputs}'}}\n"
    )
    model = SimpleNamespace(raw=None, predict=fail)
    allocated_device.setattr("scanflow.knowledge.mlflow.pyfunc.load_pyfunc", lambda *_: model)
    with pytest.raises(UsageError, match="The node 'm' cannot be loaded: it needs more memory than its GPU has left"):
        load_component(Node(name="m", model=ModelFiles(name="m", version=1, path=str(tmp_path))), threads=1)


TENSORFLOW = """
import tensorflow as tf
from tensorflow.python.eager import context

from scanflow_serving.instance_gpu import prepare_tensorflow

gpu = tf.config.PhysicalDevice(name="/physical_device:GPU:0", device_type="GPU")
tf.config.list_physical_devices()
context.context()._physical_devices.append(gpu)
for _ in range(2):  # for the second model as well
    prepare_tensorflow(tf, "The model 'm'")
configuration = tf.config.get_logical_device_configuration(gpu)
print("limits", None if configuration is None else [device.memory_limit for device in configuration])
"""


@pytest.mark.parametrize(("share", "limits"), [("0.1", f"[{8 * 1024 - 512}]"), (None, "None")])
def test_tensorflows_memory_is_bounded_by_the_share(share: str | None, limits: str) -> None:
    """By TensorFlow itself, which is told of a GPU that is not there."""
    pytest.importorskip("tensorflow")
    variables = {"SCANFLOW_DEVICES_OF": "a", "SCANFLOW_GPU_MEMORY_BYTES": str(8 * GIB), "TF_CPP_MIN_LOG_LEVEL": "3"}
    if share is not None:
        variables["SCANFLOW_GPU_SHARE"] = share
    ran = subprocess.run(
        [sys.executable, "-c", TENSORFLOW], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"limits {limits}\n"


def test_a_tensorflow_that_computed_before_is_not_bounded_and_says_so(
    allocated_device: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("Virtual devices cannot be modified after being initialized")

    config = SimpleNamespace(
        list_physical_devices=lambda _: ["GPU:0"],
        LogicalDeviceConfiguration=lambda memory_limit: memory_limit,
        set_logical_device_configuration=refuse,
    )
    allocated_device.setenv("SCANFLOW_GPU_MEMORY_BYTES", str(8 * GIB))
    allocated_device.setenv("SCANFLOW_GPU_SHARE", "0.1")
    prepare_tensorflow(SimpleNamespace(config=config), "The model 'm'")
    assert "The model 'm' is not bounded to its share of the GPU" in caplog.text


@pytest.mark.parametrize(
    ("share", "limit", "fraction"),
    [("0.25", 20 * GIB, 19.5 / 80), ("0.01", GIB // 2, 0.25 / 80), (None, 80 * GIB, None)],
)
def test_pytorchs_memory_is_bounded_by_the_share(
    allocated_device: pytest.MonkeyPatch, share: str | None, limit: int, fraction: float | None
) -> None:
    fractions: list[float] = []
    cuda = SimpleNamespace(
        is_available=lambda: True,
        get_device_properties=lambda _: SimpleNamespace(total_memory=80 * GIB),
        set_per_process_memory_fraction=fractions.append,
    )
    allocated_device.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    allocated_device.setenv("SCANFLOW_GPU_MEMORY_BYTES", str(limit))
    if share is not None:
        allocated_device.setenv("SCANFLOW_GPU_SHARE", share)
    prepare_pytorch("The model 'm'")
    assert fractions == ([] if fraction is None else [fraction])


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("CUDA error: out of memory", 503),
        ("CUDA error: device-side assert triggered", 500),
        ("mat1 and mat2 shapes cannot be multiplied (1x3 and 4x2)", 422),
    ],
)
async def test_a_fault_of_a_gpu_is_not_taken_for_a_wrong_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, status: int
) -> None:
    class Broken:
        platform, signature, notes, input_errors = "pyfunc", NodeSignature(), (), (RuntimeError,)

        def predict(self, *_: object) -> object:
            raise RuntimeError(text)

    monkeypatch.setattr("scanflow_serving.flavors.open_model", lambda *_, **__: Broken())
    files = ModelFiles(name="m", version=1, path=str(tmp_path))
    async with instance(tmp_path, Node(name="m", model=files)) as here:
        answer = await here.infer([1.0])
        assert (answer.status, text in answer.detail) == (status, True)


@pytest.mark.parametrize("has_gpu", [True, False])
async def test_an_instance_that_can_use_its_gpu_no_more_is_to_be_replaced(
    allocated_device: pytest.MonkeyPatch, tmp_path: Path, has_gpu: bool
) -> None:
    if not has_gpu:
        allocated_device.delenv("SCANFLOW_DEVICES_OF")
    model = write_class(
        tmp_path,
        """
        class Asserting:
            def predict(self, X):
                raise RuntimeError("CUDA error: device-side assert triggered")
        """,
    )
    async with instance(tmp_path, node("m", model, "Asserting")) as here:
        answer = await here.infer([1.0])
        assert (answer.status, "device-side assert" in answer.detail) == (500, True)
        assert here.application.engine.unhealthy is has_gpu
        assert here.application.ready() is not has_gpu
