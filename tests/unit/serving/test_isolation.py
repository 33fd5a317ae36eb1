"""Requests do not reach each other: by memory that a component keeps, or by clients that have gone."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.instance_messages import Recording
from scanflow.protos import get_message_class
from scanflow_serving.grpc_api import read_request
from scanflow_serving.messages import InferRequest, Tensor
from scanflow_serving.oip import OCTETS
from tests.unit.serving.serving_harness import instance, node, wait_in_loop, write_class
from tests.waiting import PATIENCE_S

CLASSES = '''
import asyncio
import threading

import numpy as np

gate = threading.Event()
inside = threading.Event()
calls = []


class Buffer:
    """Returns the same array each time."""

    def __init__(self, size=1):
        self.out = np.zeros((1, size))

    def predict(self, X):
        self.out[:] = X[0, 0]
        return self.out


class QuickBuffer(Buffer):
    blocking = False


class Later:
    async def transform_output(self, X):
        return X


class Held:
    def predict(self, X):
        calls.append(float(X[0, 0]))
        inside.set()
        assert gate.wait(600)
        return X


class Waiting:
    async def predict(self, X):
        calls.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            calls.append("ended")


class Talker(Buffer):
    spoken = {"said": [0]}

    def metrics(self):
        return [self.spoken]

    def tags(self):
        self.spoken["said"][0] += 1
        return self.spoken
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_class(tmp_path, CLASSES)


def module() -> Any:
    return sys.modules["user"]


@pytest.mark.parametrize("size", [1, 20_000])
async def test_an_answer_that_is_written_later_is_no_others(path: Path, size: int) -> None:
    async with instance(path.parent, node("m", path, "Buffer", parameters={"size": size})) as here:

        def infer(number: float) -> Any:
            request = InferRequest([Tensor("x", "FP64", np.array([[number]]))])
            return here.application.infer("wf", "", request, PATIENCE_S)

        first, second = await infer(1), await infer(2)
        assert [answer.outputs[0].data[0, 0] for answer in (first, second)] == [1, 2]
        raw = [here.infer([number], headers={"accept": OCTETS}) for number in (3, 4)]
        bodies = [answer.body for answer in await asyncio.gather(*raw)]
        assert [np.frombuffer(body)[0] for body in bodies] == [3, 4]


async def test_large_answers_of_a_graph_on_the_loop_are_no_others(path: Path) -> None:
    nodes = [
        node("late", path, "Later", role="OUTPUT_TRANSFORMER"),
        node("m", path, "QuickBuffer", parents=("late",), parameters={"size": 50_000}),
    ]
    async with instance(path.parent, *nodes) as here:
        answers = await asyncio.gather(*(here.infer([number]) for number in range(4)))
        assert [answer.outputs[0][0] for answer in answers] == [0, 1, 2, 3]


async def test_what_is_recorded_is_the_answer_that_was_given(path: Path, tmp_path: Path) -> None:
    recording = Recording(folder=str(tmp_path / "kept"), fraction=1.0)
    async with instance(path.parent, node("m", path, "Buffer"), recording=recording) as here:
        await asyncio.gather(*(here.infer([number]) for number in (1, 2, 3)))
    (file,) = (tmp_path / "kept").glob("*.npz")
    arrays = np.load(file)
    assert arrays["output:output-0"].ravel().tolist() == arrays["input:x"].ravel().tolist() == [1, 2, 3]


async def test_a_tensor_in_raw_bytes_may_be_changed_in_place() -> None:
    request = get_message_class("ModelInferRequest")(model_name="m")
    request.inputs.add(name="x", datatype="FP64", shape=[1])
    request.raw_input_contents.append(np.ones(1).tobytes())
    data = read_request(request, allow_nan=False).inputs[0].data
    data *= 2
    assert data.tolist() == [2]


async def test_a_request_of_a_client_that_has_gone_is_dropped_from_the_queue(path: Path) -> None:
    async with instance(path.parent, node("m", path, "Held")) as here:
        running = here.infer([1])
        await wait_in_loop(module().inside.is_set)
        gone, live = here.infer([2]), here.infer([3])
        await wait_in_loop(lambda: here.application.engine.waiting == 2)
        gone.cancel()
        await asyncio.wait([gone])
        assert here.application.engine.in_flight == 2
        module().gate.set()
        assert [answer.status for answer in await asyncio.gather(running, live)] == [200, 200]
        assert module().calls == [1, 3]
        figures = (await here.ask("/metrics")).body.decode()
        assert 'scanflow_requests_total{code="499",revision="r1",service="wf"} 1.0' in figures


async def test_an_asynchronous_component_is_cancelled_with_its_client(path: Path) -> None:
    async with instance(path.parent, node("m", path, "Waiting")) as here:
        request = here.infer([1])
        await wait_in_loop(lambda: module().calls)
        request.cancel()
        await asyncio.wait([request])
        assert module().calls == ["begun", "ended"]
        assert here.application.engine.in_flight == 0


async def test_tags_are_those_of_the_call(path: Path) -> None:
    nodes = [node("m", path, "Talker"), node("late", path, "Later", role="OUTPUT_TRANSFORMER", parents=("m",))]
    async with instance(path.parent, *nodes) as here:
        body = b'{"data": {"ndarray": [[1]]}}'
        asked = [here.ask("/api/v1.0/predictions", body) for _ in range(3)]
        values = [answer.json["meta"]["tags"]["said"] for answer in await asyncio.gather(*asked)]
        assert values == [[1], [2], [3]]


async def test_features_of_feedback_are_a_nodes_own(tmp_path: Path) -> None:
    source = """
    seen = []

    class Model:
        def predict(self, X):
            return X

        def send_feedback(self, features, names, reward, truth):
            seen.append(features.tolist())
            features *= 0

    class After(Model):
        pass
    """
    path = write_class(tmp_path, source, "learners.py")
    async with instance(tmp_path, node("a", path, "Model"), node("b", path, "After", parents=("a",))) as here:
        body = b'{"request": {"data": {"ndarray": [[1]]}}, "reward": 1}'
        assert (await here.ask("/api/v1.0/feedback", body)).status == 200
        assert sys.modules["learners"].seen == [[[1]], [[1]]]
