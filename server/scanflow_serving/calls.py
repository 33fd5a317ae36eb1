"""One inference request from its bytes to its response, on the loop and in worker threads."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scanflow_serving import oip, seldon_protocol
from scanflow_serving.component_graph import Graph, GraphTraversal, Outcome, finish
from scanflow_serving.component_threads import Engine
from scanflow_serving.components import PARAMETERS
from scanflow_serving.inference_problems import ProblemError, invalid, refuse_multipart
from scanflow_serving.messages import Headers, InferRequest, InferResponse, Request, Response, Tensor
from scanflow_serving.model_inputs import read_moments
from scanflow_serving.prediction_recorder import Recorder
from scanflow_serving.results import to_raw_bytes, to_tensors
from scanflow_serving.revisions import LoadedRevision, WeightedChooser
from scanflow_serving.seldon_protocol import Prediction
from scanflow_serving.signature import TensorSpec

LARGE: Final = 256 * 1024
"""Bodies above this size, in bytes, are decoded in a worker thread, so that they do not delay others."""


class RouteTarget(msgspec.Struct, eq=False):
    """The target of a route: the whole graph or one node, with or without a version."""

    name: str
    node: str | None
    chooser: WeightedChooser[LoadedRevision]

    def get_graph(self, loaded: LoadedRevision) -> Graph:
        return loaded.graph if self.node is None else loaded.alone[self.node]

    def get_version(self, loaded: LoadedRevision) -> str:
        """Return the version of the answer: the registered model's, else the revision."""
        return (loaded.components[self.node].version if self.node else "") or loaded.id


class ServingCall(msgspec.Struct, eq=False):
    engine: Engine
    recorder: Recorder | None
    allow_nan: bool
    loaded: LoadedRevision
    target: RouteTarget
    graph: Graph
    request: Request
    headers: Headers
    began: float = msgspec.field(default_factory=monotonic)
    walk: GraphTraversal = msgspec.field(default_factory=GraphTraversal)
    value: Any = None
    names: Any = []
    inputs: list[Tensor] | None = None
    """The request's tensors, if they are recorded."""

    timeout_s: float | None = None
    """The client's timeout; None: the service's applies."""

    outcome: Outcome | None = None
    started: bool = False
    unread: bool = False
    recorded: bool = False
    shadowed: bool = False

    def read(self) -> None:
        """Decode and check the request: set ``value``, ``names`` and the walk's ``meta``."""
        raise NotImplementedError

    def get_tensors(self) -> list[Tensor]:
        """Return the request's tensors."""
        raise NotImplementedError

    def build_response(self, outcome: Outcome) -> Any:
        raise NotImplementedError

    def make_failure(self, problem: ProblemError) -> Any:
        return add_headers(problem, self.headers)

    def sends_memory(self) -> bool:
        """Whether the response refers to the memory of the answer, and is written later."""
        return False

    def copy_value(self) -> Any:
        assert self.inputs is not None
        return self._join([replace(tensor, data=tensor.data.copy()) for tensor in self.inputs])

    def _join(self, tensors: Sequence[Tensor]) -> Any:
        """Return tensors as the value of a request: one is itself, unless it is a column of a table."""
        arrays = {tensor.name: self._read_moments(tensor) if tensor.content else tensor.data for tensor in tensors}
        if len(arrays) == 1 and not all(step.component.takes_column(*arrays.items()) for step in self.graph.roots):
            return next(iter(arrays.values()))
        return arrays

    def _read_moments(self, tensor: Tensor) -> NDArray[Any]:
        """Return date-times as such for models that declare no types of their own; for others as their text."""
        takers = {step.name: step.component.takes_moments for step in self.graph.receivers}
        if not any(takers.values()):
            return tensor.data
        if not all(takers.values()):
            model, other = (next(name for name, takes in takers.items() if takes is kind) for kind in (True, False))
            raise invalid(
                f"The input {tensor.name[:80]!r} holds date-times, which the node {other!r} takes as text, and the "
                f"model of the node {model!r} would get that text, too, since it has no signature. Log the model with "
                "one: signature=mlflow.models.infer_signature(inputs)."
            )
        return read_moments(tensor)

    async def run(self, allowed_s: float) -> Any:
        engine = self.engine
        if not engine.busy and self.graph.inline and not self.unread:
            return self._compute()
        try:
            async with asyncio.timeout(allowed_s):
                return await (self._compute_on_loop() if self.graph.waits else engine.run(self._compute))
        except asyncio.CancelledError:  # the client has gone; a thread that hangs is still to be replaced
            engine.check_workers()
            raise
        except TimeoutError:
            engine.check_workers()
            where = "it was still running" if self.started else "it was still waiting in the queue"
            raise ProblemError(504, f"The request was not answered within {allowed_s:g} s: {where}.") from None

    def retain(self) -> None:
        """Copy the inputs if they will be recorded or sent to a shadow; in any thread."""
        self.recorded = self.recorder is not None and self.recorder.should_keep(self.get_tensors())
        if self.recorded or self.shadowed:
            self.keep_inputs()

    def keep_inputs(self) -> None:
        """Copy the request's tensors before a component can change them."""
        self.inputs = [
            replace(tensor, data=tensor.data.copy() if tensor.data.flags.writeable else tensor.data)
            for tensor in self.get_tensors()
        ]

    def get_outputs(self) -> list[Tensor]:
        assert self.outcome is not None
        return to_outputs(self.outcome)

    def _compute(self) -> Any:
        self.started = True
        if self.unread:
            self._read_and_retain()
        self.walk.kept = self.recorded or self.shadowed or self.sends_memory()
        outcome = finish(self.graph.walk(self.value, self.names, self.walk))
        self.outcome = outcome
        return self.build_response(outcome)

    async def _compute_on_loop(self) -> Any:
        """Answer the request on the loop; a worker decodes and encodes large bodies."""
        engine = self.engine
        if self.unread:
            await engine.run(self._read_and_retain)
        self.started = True
        outcome = await self.graph.walk(self.value, self.names, self.walk, self.loaded.invoke)
        self.outcome = outcome
        if getattr(outcome.value, "nbytes", 0) > LARGE:
            return await engine.run(lambda: self.build_response(outcome))
        return self.build_response(outcome)

    def _read_and_retain(self) -> None:
        self.read()
        self.retain()


class OipCall(ServingCall):
    """A request of the Open Inference Protocol."""

    infer: InferRequest | None = None

    def read(self) -> None:
        if self.infer is None:
            self.infer = self._decode()
        infer = self.infer
        for step in self.graph.roots:
            if step.component.signature.inputs:
                step.component.signature.check(infer.inputs)
        parameters = {name: value for name, value in infer.parameters.items() if name not in oip.PARAMETERS}
        if parameters:
            for step in self.graph.steps:
                step.component.signature.check_parameters(parameters, step.who)
        if infer.id or parameters:
            self.walk.meta = {
                **({"puid": infer.id} if infer.id else {}),
                **({PARAMETERS: parameters} if parameters else {}),
            }
        self.walk.checked = True
        self.timeout_s = infer.timeout_s
        self.value = self._join(infer.inputs)

    def get_tensors(self) -> list[Tensor]:
        assert self.infer is not None
        return self.infer.inputs

    def build_response(self, outcome: Outcome) -> Any:
        """Return the response as JSON, JSON with binary data, or raw bytes."""
        if oip.should_send_raw(self.request.headers):
            body = to_raw_bytes(outcome.value, outcome.step.who)
            return Response(200, body if isinstance(body, bytes) else [body], oip.OCTETS, self.headers)
        assert self.infer is not None
        return oip.encode(self.respond(outcome), self.infer, self.headers)

    def sends_memory(self) -> bool:
        infer = self.infer
        assert infer is not None
        if infer.outputs is not None and any(output.binary for output in infer.outputs):
            return True
        return infer.binary_output or oip.should_send_raw(self.request.headers)

    def respond(self, outcome: Outcome) -> InferResponse:
        infer, end = self.infer, outcome.step
        assert infer is not None
        tensors = to_tensors(outcome.value, end.component.signature.outputs, end.who)
        if infer.outputs:
            tensors = oip.pick_outputs(tensors, infer.outputs)
        plain = {name: value for name, value in self.walk.tags.items() if isinstance(value, (str, int, float))}
        return InferResponse(self.target.name, self.target.get_version(self.loaded), tensors, infer.id, plain)

    def _decode(self) -> InferRequest:
        request, headers, allow_nan = self.request, self.request.headers, self.allow_nan
        if oip.HEADER_LENGTH not in headers and headers.get("content-type", "").startswith(oip.OCTETS):
            return oip.decode_raw(request.body, self.graph.roots[0].component.signature, allow_nan=allow_nan)
        refuse_multipart(headers.get("content-type", ""))
        return oip.decode(request.body, headers, allow_nan=allow_nan)


class GrpcCall(OipCall):
    """A request over gRPC, which encodes the answer or problem itself."""

    def build_response(self, outcome: Outcome) -> Any:
        return self.respond(outcome)

    def sends_memory(self) -> bool:
        return True

    def make_failure(self, problem: ProblemError) -> Any:
        return problem


class SeldonCall(ServingCall):
    """A prediction in Seldon's protocol."""

    asked: Prediction | None = None
    sent: Any = None
    """A copy of the value for shadows, if no tensor holds it."""

    def read(self) -> None:
        media = self.request.headers.get("content-type", "")
        self.asked = asked = seldon_protocol.decode(self.request.body, allow_nan=self.allow_nan, media=media)
        self.walk.meta = asked.meta
        self.value, self.names = asked.value, asked.names

    def get_tensors(self) -> list[Tensor]:
        assert self.asked is not None
        return to_inputs(self.asked.value)

    def build_response(self, outcome: Outcome) -> Any:
        assert self.asked is not None
        return Response(
            200, seldon_protocol.encode(self.asked, outcome, self.walk, self.loaded.id), headers=self.headers
        )

    def keep_inputs(self) -> None:
        ServingCall.keep_inputs(self)
        assert self.asked is not None
        if self.shadowed and not self._is_numeric():
            self.sent = copy.deepcopy(self.asked.value)

    def copy_value(self) -> Any:
        """Return a copy of the value as it was sent: the components may have changed it since."""
        if self.inputs is not None and self._is_numeric():
            return self.inputs[0].data.copy()
        return copy.deepcopy(self.sent)

    def _is_numeric(self) -> bool:
        value = None if self.asked is None else self.asked.value
        return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"


def add_headers(problem: ProblemError, headers: Headers) -> Response:
    response = problem.build_response()
    response.headers = (*headers, *response.headers)
    return response


def to_inputs(value: Any) -> list[Tensor]:
    """Return a Seldon value as tensors for the recorder; what no tensor can hold as JSON."""
    return _to_tensors("input-0", value, ())


def to_outputs(outcome: Outcome) -> list[Tensor]:
    """Return an answer as tensors for the recorder or a comparison; what no tensor can hold as JSON."""
    return _to_tensors("output-0", outcome.value, outcome.step.component.signature.outputs)


def _to_tensors(name: str, value: Any, declared: Sequence[TensorSpec]) -> list[Tensor]:
    try:
        return to_tensors({name: value} if name.startswith("input") else value, declared, "The value")
    except ProblemError:
        return to_tensors({name: msgspec.json.encode(seldon_protocol.to_plain(value), enc_hook=repr)}, (), "The value")


def are_equal(outputs: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether two answers are equal, floating-point numbers to about five digits."""
    if [tensor.name for tensor in outputs] != [tensor.name for tensor in other]:
        return False
    for mine, theirs in zip(outputs, other, strict=True):
        if mine.data.shape != theirs.data.shape:
            return False
        if mine.data.dtype.kind == "f" and theirs.data.dtype.kind == "f":
            if not np.allclose(mine.data, theirs.data, rtol=1e-5, atol=1e-8, equal_nan=True):
                return False
        elif not np.array_equal(mine.data, theirs.data):
            return False
    return True
