"""An instance as its callers see it, without the HTTP around."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.instance_messages import Recording
from scanflow_serving.calls import LARGE
from scanflow_serving.component_threads import MAX_ABANDONED
from scanflow_serving.messages import Request
from scanflow_serving.oip import HEADER_LENGTH, OCTETS
from tests.unit.serving.serving_harness import (
    batching,
    instance,
    make_desired_state,
    node,
    tensor,
    wait_in_loop,
    write_class,
)
from tests.waiting import PATIENCE_S

CLASSES = '''
import os
import threading

import numpy as np

gate = threading.Event()
inside = threading.Event()


class Double:
    """Doubles."""

    def predict(self, X):
        return X * 2


class Same:
    def predict(self, X, names=None, meta=None):
        return X


class Async:
    async def predict(self, X):
        return X * 3


class Declared(Double):
    inputs = [{"name": "x", "datatype": "FP64", "shape": [-1, 2]}]
    outputs = [{"name": "y", "datatype": "FP64", "shape": [-1, 2]}]


class Two:
    def predict(self, X):
        return {"sum": X["a"] + X["b"], "text": "done"}


class Bad:
    row_wise = True

    def predict(self, X):
        match int(np.asarray(X).flat[0]):
            case 1:
                raise ValueError("the first number is 1")
            case 2:
                inside.set()
                assert gate.wait(600)
            case 3:
                raise SystemExit(3)
            case 4:
                return self.predict(X)
            case 5:
                return np.ones(10**15)
            case 6:
                return object()
            case 7:
                raise KeyboardInterrupt
        return X


class Quick:
    blocking = False
    threads = []

    def predict(self, X):
        self.threads.append(threading.current_thread().name)
        return X


class Route:
    def route(self, X, names):
        return int(X.flat[0])


class Mean:
    def aggregate(self, Xs):
        return np.mean(Xs, axis=0)


class Reverse:
    def predict(self, X):
        return X[::-1]


class Learner(Same):
    told = []

    def send_feedback(self, features, names, reward, truth):
        self.told.append((reward, threading.current_thread().name))


class Sick(Same):
    well = True

    def health_status(self):
        if not self.well:
            raise RuntimeError("the GPU fell off")


class Talker(Same):
    def tags(self):
        return {"mood": "good", "numbers": [1, 2]}

    def metrics(self):
        return [
            {"type": "COUNTER", "key": "words", "value": 2},
            {"type": "GAUGE", "key": "mood level", "value": 7},
            {"type": "TIMER", "key": "thinking", "value": 20},
            {"type": "WHAT", "key": "odd", "value": 1},
            {"key": "", "value": 1},
            "nonsense",
        ]
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_class(tmp_path, CLASSES)


def module() -> Any:
    import sys

    return sys.modules["user"]


async def test_an_inference_is_answered(path: Path) -> None:
    async with instance(path.parent, node("double", path, "Double")) as here:
        answer = await here.ask("/v2/models/wf/infer", tensor([1, 2], id="7"))
        assert answer.json == {
            "model_name": "wf",
            "model_version": "r1",
            "id": "7",
            "outputs": [{"name": "output-0", "datatype": "FP64", "shape": [1, 2], "data": [2, 4]}],
        }
        assert answer.headers == {"x-scanflow-instance": "wf-1", "x-scanflow-revision": "r1"}
        assert answer.content_type == "application/json"


async def test_a_node_is_called_alone_by_its_name_and_the_graph_by_an_alias(path: Path) -> None:
    nodes = [
        node("route", path, "Route", role="ROUTER"),
        node("double", path, "Double", parents=("route",)),
        node("triple", path, "Async", parents=("route",)),
        node("mean", path, "Mean", role="COMBINER", parents=("double", "triple")),
    ]
    async with instance(path.parent, *nodes, aliases=("primary",)) as here:
        assert (await here.infer([1])).outputs == [[3]]
        assert (await here.infer([1], model="primary")).json["model_name"] == "primary"
        assert (await here.infer([0])).outputs == [[0]]
        assert (await here.infer([-1])).outputs == [[-2.5]]
        assert (await here.infer([5], model="double")).outputs == [[10]]
        assert (await here.infer([5], model="triple")).outputs == [[15]]
        assert (await here.infer([1], model="route")).outputs == [[1]]
        assert (await here.infer([2], model="mean")).outputs == [[2]]


async def test_several_inputs_are_a_dictionary_and_so_may_the_outputs_be(path: Path) -> None:
    async with instance(path.parent, node("two", path, "Two")) as here:
        inputs = [{"name": name, "datatype": "INT32", "shape": [2], "data": [1, 2]} for name in "ab"]
        answer = await here.ask("/v2/models/wf/infer", json.dumps({"inputs": inputs}).encode())
        assert [(output["name"], output["data"]) for output in answer.json["outputs"]] == [
            ("sum", [2, 4]),
            ("text", ["done"]),
        ]
        only = json.dumps({"inputs": inputs, "outputs": [{"name": "text"}]}).encode()
        assert (await here.ask("/v2/models/wf/infer", only)).outputs == [["done"]]
        wrong = json.dumps({"inputs": inputs, "outputs": [{"name": "txet"}]}).encode()
        refused = await here.ask("/v2/models/wf/infer", wrong)
        assert (refused.status, "Did you mean 'text'?" in refused.detail) == (400, True)


async def test_a_body_may_be_one_raw_tensor_and_so_may_the_answer(path: Path) -> None:
    async with instance(path.parent, node("reverse", path, "Reverse")) as here:
        raw = {"content-type": OCTETS, "accept": OCTETS}
        for size in (0, 1, LARGE, LARGE + 1):
            body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
            answer = await here.ask("/v2/models/wf/infer", body, headers=raw)
            assert (answer.status, answer.content_type) == (200, OCTETS)
            assert answer.body == body[::-1]
        answer = await here.ask("/v2/models/wf/infer", b"\x01\x02", headers={"content-type": OCTETS})
        assert answer.outputs == [[2, 1]]


async def test_binary_tensors_go_both_ways(path: Path) -> None:
    async with instance(path.parent, node("double", path, "Double")) as here:
        for count in (3, LARGE):
            data = np.arange(count, dtype="f4")
            described = {"name": "x", "datatype": "FP32", "shape": [count]}
            head = json.dumps(
                {
                    "inputs": [described | {"parameters": {"binary_data_size": data.nbytes}}],
                    "parameters": {"binary_data_output": True},
                }
            ).encode()
            answer = await here.ask(
                "/v2/models/wf/infer", head + data.tobytes(), headers={HEADER_LENGTH: str(len(head))}
            )
            assert answer.status == 200
            rest = answer.body[int(answer.headers[HEADER_LENGTH]) :]
            np.testing.assert_array_equal(np.frombuffer(rest, "f4"), data * 2)


@pytest.mark.parametrize("model", ["wf", "declared"])
async def test_what_does_not_fit_is_refused_before_the_model_is_called(path: Path, model: str) -> None:
    async with instance(path.parent, node("declared", path, "Declared")) as here:
        for body, words in (
            (tensor([1, 2, 3]), "wrong shape: it is declared as FP64 [-1, 2], but is FP64 [1, 3]"),
            (tensor([1, 2]).replace(b"FP64", b"FP32"), "wrong datatype"),
            (tensor([1, 2]).replace(b'"x"', b'"z"'), "There is no input 'z'"),
            (tensor(*[[1, 2, 3]] * LARGE), f"is FP64 [{LARGE}, 3]"),
            (b"", "empty"),
        ):
            answer = await here.ask(f"/v2/models/{model}/infer", body)
            assert (answer.status, answer.headers["x-scanflow-revision"]) == (400, "r1")
            assert words in answer.detail
        assert len((await here.infer(*[[1, 2]] * LARGE, model=model)).outputs[0]) == 2 * LARGE


@pytest.mark.parametrize("waits", [False, True])
async def test_a_component_that_misbehaves_answers_for_itself_alone(path: Path, waits: bool) -> None:
    # With batching the graph is walked on the loop.
    changes = {"batching": batching(4)} if waits else {}
    async with instance(path.parent, node("bad", path, "Bad", **changes)) as here:
        for command, words in (
            (1, "The node 'bad' raised ValueError: the first number is 1"),
            (3, "SystemExit"),
            (4, "RecursionError"),
            (5, "MemoryError"),
            (6, "'object'"),
            (7, "KeyboardInterrupt"),
        ):
            bad, good = here.infer([command]), here.infer([0])
            answer = await bad
            assert (answer.status, words in answer.detail) == (500, True), answer.body
            assert (await good).outputs == [[0]]
            if command == 1:
                assert "raise ValueError" in answer.json["frames"][-1]
            seldon = await here.ask("/api/v1.0/predictions", json.dumps({"data": {"ndarray": [command]}}).encode())
            assert seldon.status == 500


async def test_a_component_that_never_ends_costs_its_caller_the_deadline_or_less_and_nobody_else(path: Path) -> None:
    async with instance(path.parent, node("bad", path, "Bad"), deadline_s=0.05) as here:
        engine = here.application.engine
        while not module().inside.is_set():  # where it was given up before a thread took it
            answer = await here.infer([2])
            assert (answer.status, "0.05 s" in answer.detail) == (504, True)
        await wait_in_loop(lambda: engine.abandoned and engine.busy == 0)
        here.application.limits = replace(here.application.limits, deadline_s=PATIENCE_S)  # for those that end
        engine.deadline_s = PATIENCE_S
        assert (await here.infer([0])).outputs == [[0]]
        assert here.application.ready()
        impatient = await here.ask("/v2/models/wf/infer", tensor([2], parameters={"timeout": 2000}))
        assert (impatient.status, "0.002 s" in impatient.detail) == (504, True)
        module().gate.set()


async def test_an_instance_with_too_many_threads_that_hang_is_no_longer_ready(path: Path) -> None:
    async with instance(path.parent, node("bad", path, "Bad"), deadline_s=0.01) as here:
        while not here.application.engine.unhealthy:
            assert (await here.infer([2])).status == 504
        assert len(here.application.engine.abandoned) >= MAX_ABANDONED
        assert (await here.ask("/v2/health/ready")).status == 503
        assert (await here.ask("/v2/health/live")).status == 503
        assert here.application.describe_state()["unhealthy"]
        module().gate.set()


async def test_a_component_that_does_not_block_is_called_on_the_loop_while_no_worker_is_busy(path: Path) -> None:
    async with instance(path.parent, node("quick", path, "Quick")) as here:
        await here.infer([1])
        inside, leave = threading.Event(), threading.Event()

        def hold() -> None:
            inside.set()
            leave.wait(PATIENCE_S)

        held = here.application.engine.run(hold)
        await wait_in_loop(inside.is_set)
        waiting = here.infer([1])
        await asyncio.sleep(0)
        leave.set()
        await asyncio.gather(held, waiting)
        assert module().Quick.threads == ["MainThread", "scanflow-worker-1"]


async def test_a_full_queue_says_when_to_come_again(path: Path) -> None:
    async with instance(path.parent, node("bad", path, "Bad"), queue=3) as here:
        waiting = [here.infer([2]) for _ in range(3)]
        for body, where in ((tensor([0]), "/v2/models/wf/infer"), (b"{}", "/api/v1.0/predictions")):
            answer = await here.ask(where, body)
            assert answer.status == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert "3 requests are already waiting or running" in answer.detail
        assert (await here.ask("/v2/health/ready")).status == 200
        module().gate.set()
        assert {(await request).status for request in waiting} == {200}
        figures = (await here.ask("/metrics")).body.decode()
        assert 'scanflow_refused_total{reason="queue",service="wf"} 2.0' in figures


async def test_batches_are_counted(path: Path) -> None:
    async with instance(path.parent, node("bad", path, "Bad", batching=batching(8))) as here:
        first = here.infer([2])
        await wait_in_loop(module().inside.is_set)
        others = [here.infer([0]) for _ in range(5)]
        await wait_in_loop(lambda: here.application.engine.in_flight == 6)
        module().gate.set()
        await asyncio.gather(first, *others)
        figures = (await here.ask("/metrics")).body.decode()
        assert 'scanflow_batch_rows_bucket{le="1.0",node="bad",revision="r1",service="wf"} 1.0' in figures
        assert 'scanflow_batch_rows_sum{node="bad",revision="r1",service="wf"} 6.0' in figures
        assert 'scanflow_node_seconds_count{node="bad",revision="r1",service="wf"} 2.0' in figures


async def test_requests_and_errors_are_counted(path: Path) -> None:
    async with instance(path.parent, node("bad", path, "Bad")) as here:
        for command in (0, 0, 1):
            await here.infer([command])
        await here.ask("/v2/models/wf/infer", b"{")
        await here.ask("/nowhere")
        figures = (await here.ask("/metrics")).body.decode()
        for line in (
            'scanflow_requests_total{code="200",revision="r1",service="wf"} 2.0',
            'scanflow_requests_total{code="500",revision="r1",service="wf"} 1.0',
            'scanflow_requests_total{code="400",revision="r1",service="wf"} 1.0',
            'scanflow_requests_total{code="404",revision="",service="wf"} 1.0',
            'scanflow_node_errors_total{node="bad",revision="r1",service="wf"} 1.0',
            'scanflow_node_seconds_count{node="bad",revision="r1",service="wf"} 2.0',
            'scanflow_in_flight{service="wf"} 0.0',
            'scanflow_waiting{service="wf"} 0.0',
        ):
            assert line in figures


async def test_what_components_say_of_a_call_goes_with_the_answer(path: Path) -> None:
    async with instance(path.parent, node("talker", path, "Talker")) as here:
        assert (await here.infer([1])).json["parameters"] == {"mood": "good"}
        body = json.dumps({"data": {"ndarray": [[1]]}}).encode()
        meta = (await here.ask("/api/v1.0/predictions", body)).json["meta"]
        assert meta["tags"]["numbers"] == [1, 2]
        assert meta["metrics"][0] == {"type": "COUNTER", "key": "words", "value": 2}
        figures = (await here.ask("/metrics")).body.decode()
        labels = '{node="talker",revision="r1",service="wf"}'
        assert f"scanflow_custom_words_total{labels} 4.0" in figures
        assert f"scanflow_custom_mood_level{labels} 7.0" in figures
        assert f"scanflow_custom_thinking_seconds_count{labels} 2.0" in figures


async def test_seldons_protocol_is_spoken(path: Path) -> None:
    async with instance(
        path.parent, node("same", path, "Same"), node("double", path, "Double", parents=("same",))
    ) as here:
        body = {"data": {"names": ["a", "b"], "ndarray": [[1, 2.5]]}, "meta": {"puid": "abc"}}
        answer = await here.ask("/api/v1.0/predictions", json.dumps(body).encode())
        assert answer.json["data"] == {"names": ["t:0", "t:1"], "ndarray": [[2, 5]]}
        assert answer.json["meta"]["puid"] == "abc"
        assert answer.json["meta"]["requestPath"] == {"same": "r1", "double": "r1"}
        assert (await here.ask("/api/v1.0/predictions", b"{}")).status == 400


async def test_feedback_reaches_the_components_in_a_worker_thread(path: Path) -> None:
    async with instance(
        path.parent, node("learner", path, "Learner"), node("same", path, "Same", parents=("learner",))
    ) as here:
        answer = await here.ask("/api/v1.0/feedback", json.dumps({"reward": 0.5}).encode())
        assert (answer.status, answer.json["meta"]["tags"]) == (200, {"notified": 1})
        assert module().Learner.told == [(0.5, "scanflow-worker-1")]
        assert (await here.ask("/api/v1.0/feedback", b"{}")).status == 400


async def test_an_unknown_path_and_a_wrong_method_learn_what_there_is(path: Path) -> None:
    async with instance(path.parent, node("double", path, "Double")) as here:
        for where, status, words in (
            ("/v2/models/doubel/infer", 404, "There is no model 'doubel' here. Did you mean 'double'?"),
            ("/v2/models/tripler/infer", 404, "There is no model 'tripler' here. Known: double, wf."),
            ("/v2/models/wf/versions/77/infer", 404, "The model 'wf' has no version '77'. Known: r1."),
            ("/v2/models/wf/explain", 404, "no path"),
            ("/v2/models/", 404, "Did you mean '/v2/models/wf'?"),
            ("/nowhere", 404, "no path '/nowhere'"),
            ("//", 405, ""),
            ("/v2", 405, "use GET, HEAD"),
        ):
            answer = await here.ask(where, tensor([1]))
            assert (answer.status, words in answer.detail) == (status, True), where
        for method in ("GET", "PUT", "DELETE", "OPTIONS", "BREW"):
            answer = await here.ask("/v2/models/wf/infer", method=method)
            assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert (await here.ask("/v2", b"")).headers["allow"] == "GET, HEAD"


async def test_the_instance_says_what_it_is(path: Path) -> None:
    async with instance(path.parent, node("declared", path, "Declared")) as here:
        assert (await here.ask("/v2")).json["extensions"] == ["binary_tensor_data", "model_repository"]
        metadata = (await here.ask("/v2/models/wf")).json
        assert metadata == {
            "name": "wf",
            "versions": ["r1"],
            "platform": "python",
            "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 2]}],
            "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1, 2]}],
        }
        assert (await here.ask("/v2/models/declared/versions/r1")).json["name"] == "declared"
        for address in ("/v2/health/live", "/v2/health/ready", "/healthz", "/readyz", "/v2/models/wf/ready"):
            assert (await here.ask(address)).status == 200
            assert (await here.ask(address, method="HEAD")).status == 200
        index = (await here.ask("/v2/repository/index", b"{}")).json
        assert {model["name"] for model in index} == {"wf", "declared"}
        assert (await here.ask("/")).json["models"] == ["wf", "declared"]
        assert (await here.ask("/v2/models/wf/")).json == metadata
        assert (await here.ask("/v2/models/%77f")).json == metadata


async def test_before_anything_is_loaded_and_after_the_end_callers_learn_when_to_retry(path: Path) -> None:
    async with instance(path.parent) as here:
        for where in ("/v2/models/wf/infer", "/api/v1.0/predictions", "/api/v1.0/feedback"):
            answer = await here.ask(where, tensor([1]))
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert (await here.ask("/v2/health/ready")).status == 503
        assert (await here.ask("/v2/health/live")).status == 200
        assert not here.application.ready()
        await here.application.apply(make_desired_state([node("double", path, "Double")]))
        assert here.application.ready()
        here.application.draining = True
        assert not here.application.ready()
        assert (await here.infer([1])).outputs == [[2]]
        await here.application.close()
        assert (await here.infer([1])).status == 503
        assert not here.application.live()


async def test_a_component_that_says_it_is_unwell_makes_the_instance_unready(path: Path) -> None:
    async with instance(path.parent, node("sick", path, "Sick")) as here:
        assert (await here.ask("/v2/models/sick/ready")).status == 200
        module().Sick.well = False
        await here.application.health.check()
        await asyncio.sleep(0)
        assert (await here.ask("/v2/health/ready")).status == 503
        answer = await here.ask("/v2/models/sick/ready")
        assert (answer.status, "the GPU fell off" in answer.detail) == (503, True)
        assert "the GPU fell off" in here.application.describe_state()["unwell"]
        module().Sick.well = True
        await here.application.health.check()
        await asyncio.sleep(0)
        assert here.application.ready()


async def test_the_state_counts_what_is_there(path: Path) -> None:
    async with instance(path.parent, node("bad", path, "Bad")) as here:
        waiting = [here.infer([2]) for _ in range(3)]
        await wait_in_loop(module().inside.is_set)
        state = here.application.describe_state()
        assert (state["generation"], state["in_flight"], state["queue"], state["ready"]) == (1, 3, 2, True)
        assert state["threads"] >= 2
        assert state["cpus"]
        assert state["revisions"] == [{"id": "r1", "weight": 1.0, "shadow": False, "requests": 0, "in_flight": 3}]
        assert json.dumps(state)
        module().gate.set()
        await asyncio.gather(*waiting)
        assert here.application.describe_state()["revisions"][0]["requests"] == 3


async def test_predictions_are_recorded_as_they_were_sent(path: Path, tmp_path: Path) -> None:
    changed = write_class(
        tmp_path, "class Model:\n    def predict(self, X):\n        X += 1\n        return X * 1\n", "user_2.py"
    )
    folder = tmp_path / "recorded"

    recording = Recording(folder=str(folder), fraction=0.5, flush_s=3600)
    async with instance(tmp_path, node("m", changed, "Model"), recording=recording) as here:
        for number in range(10):
            await here.infer([number])
        await here.ask("/api/v1.0/predictions", json.dumps({"strData": "x"}).encode())
    (file,) = folder.glob("*.npz")
    with np.load(file) as arrays:
        assert len(arrays["time"]) == 5
        np.testing.assert_array_equal(arrays["output:output-0"], arrays["input:x"] + 1)
        assert str(arrays["revision"]) == "r1"


async def test_predictions_that_are_no_tensors_are_recorded_as_json(path: Path, tmp_path: Path) -> None:
    recording = Recording(folder=str(tmp_path / "recorded"), flush_s=3600)
    async with instance(tmp_path, node("same", path, "Same"), recording=recording) as here:
        body = json.dumps({"jsonData": {"a": [1, {"b": None}]}}).encode()
        answer = await here.ask("/api/v1.0/predictions", body)
        assert answer.json["jsonData"] == {"a": [1, {"b": None}]}
    (file,) = (tmp_path / "recorded").glob("*.npz")
    with np.load(file) as arrays:
        assert bytes(arrays["input:input-0"]) == b'{"a":[1,{"b":null}]}'
        assert bytes(arrays["output:a"]) == b'1{"b":null}'


async def test_no_request_raises(path: Path) -> None:
    async with instance(path.parent, node("double", path, "Double")) as here:
        for weird in ("", "\ud800", "/v2/models/" + "x" * 10_000, "/%ff", "/v2/models/wf/versions/"):
            for method in ("GET", "POST", ""):
                answer = await here.application.handle(Request(method, weird, body=b"x"))
                assert answer.status in {200, 404, 405}
        assert (await here.infer([1])).status == 200
