"""One request from its bytes to its response: what runs on the loop, what in a worker thread, and what is kept."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from scanflow_serving import oip, seldon
from scanflow_serving.declared import TensorSpec
from scanflow_serving.graph import Graph, Outcome, Walk, finish
from scanflow_serving.messages import Headers, InferRequest, InferResponse, Request, Response, Tensor
from scanflow_serving.problems import ProblemError
from scanflow_serving.results import as_tensors, raw_bytes
from scanflow_serving.revisions import Chooser, Loaded
from scanflow_serving.seldon import Prediction

if TYPE_CHECKING:
    from scanflow_serving.routes import ServingApplication

LARGE: Final = 256 * 1024
"""Bodies above this size are read in a worker thread, so that nobody waits behind them."""


class RouteTarget(msgspec.Struct, eq=False):
    """A name that requests are sent to: the whole graph, or one node; with or without a version."""

    name: str
    node: str | None
    chooser: Chooser[Loaded]

    def graph(self, loaded: Loaded) -> Graph:
        return loaded.graph if self.node is None else loaded.alone[self.node]

    def version(self, loaded: Loaded) -> str:
        """Return the version that answers: a registered model's own, else the revision."""
        return (loaded.components[self.node].version if self.node else "") or loaded.id


class ServingCall(msgspec.Struct, eq=False):
    server: ServingApplication
    loaded: Loaded
    target: RouteTarget
    graph: Graph
    request: Request
    headers: Headers
    began: float = msgspec.field(default_factory=monotonic)
    walk: Walk = msgspec.field(default_factory=Walk)
    value: Any = None
    names: Any = []
    inputs: list[Tensor] | None = None
    """What was sent, where it is to be kept."""

    timeout_s: float | None = None
    """What the client allows; None: what the service allows."""

    outcome: Outcome | None = None
    started: bool = False
    unread: bool = False
    recorded: bool = False
    shadowed: bool = False

    def read(self) -> None:
        """Decode and check the request: set ``value``, ``names`` and the walk's ``meta``."""
        raise NotImplementedError

    def sent(self) -> list[Tensor]:
        """Return what was sent, as tensors."""
        raise NotImplementedError

    def answer(self, outcome: Outcome) -> Any:
        raise NotImplementedError

    def failure(self, problem: ProblemError) -> Any:
        return with_headers(problem, self.headers)

    def copy_of_value(self) -> Any:
        assert self.inputs is not None
        if len(self.inputs) == 1:
            return self.inputs[0].data.copy()
        return {one.name: one.data.copy() for one in self.inputs}

    async def run(self, allowed_s: float) -> Any:
        engine = self.server.engine
        if not engine.busy and self.graph.inline and not self.unread:
            return self._work()
        try:
            async with asyncio.timeout(allowed_s):
                return await (self._on_loop() if self.graph.waits else engine.run(self._work))
        except TimeoutError:
            engine.timed_out()
            where = "it ran when time was up" if self.started else "it was still waiting for others"
            raise ProblemError(504, f"The request was not answered within {allowed_s:g} s: {where}.") from None

    def keep_inputs(self) -> None:
        """Keep what was sent as it was, before any component can change it."""
        self.inputs = [
            Tensor(one.name, one.datatype, one.data.copy() if one.data.flags.writeable else one.data)
            for one in self.sent()
        ]

    def outputs(self) -> list[Tensor]:
        assert self.outcome is not None
        return as_outputs(self.outcome)

    def _work(self) -> Any:
        self.started = True
        if self.unread:
            self._read_late()
        outcome = finish(self.graph.walk(self.value, self.names, self.walk))
        self.outcome = outcome
        return self.answer(outcome)

    async def _on_loop(self) -> Any:
        """Go all the way, on the loop; what is large is read and written by a worker."""
        engine = self.server.engine
        if self.unread:
            await engine.run(self._read_late)
        self.started = True
        outcome = await self.graph.walk(self.value, self.names, self.walk, self.loaded.invoke)
        self.outcome = outcome
        if getattr(outcome.value, "nbytes", 0) > LARGE:
            return await engine.run(lambda: self.answer(outcome))
        return self.answer(outcome)

    def _read_late(self) -> None:
        self.read()
        self.server.retain(self)


class OipCall(ServingCall):
    """A request of the Open Inference Protocol."""

    infer: InferRequest | None = None

    def read(self) -> None:
        if self.infer is None:
            self.infer = self._decode()
        infer = self.infer
        for step in self.graph.roots:
            if step.component.declared.inputs:
                step.component.declared.check(infer.inputs)
        if infer.id:
            self.walk.meta = {"puid": infer.id}
        self.walk.checked = True
        self.timeout_s = infer.timeout_s
        self.value = infer.inputs[0].data if len(infer.inputs) == 1 else {one.name: one.data for one in infer.inputs}

    def sent(self) -> list[Tensor]:
        assert self.infer is not None
        return self.infer.inputs

    def answer(self, outcome: Outcome) -> Any:
        """Return the response as JSON, JSON with binary data, or nothing but the bytes."""
        if oip.wants_raw(self.request.headers):
            body = raw_bytes(outcome.value, outcome.step.who)
            return Response(200, body if isinstance(body, bytes) else [body], oip.OCTETS, self.headers)
        assert self.infer is not None
        return oip.encode(self.respond(outcome), self.infer, self.headers)

    def respond(self, outcome: Outcome) -> InferResponse:
        infer, end = self.infer, outcome.step
        assert infer is not None
        tensors = as_tensors(outcome.value, end.component.declared.outputs, end.who)
        if infer.outputs:
            tensors = oip.pick_outputs(tensors, infer.outputs)
        plain = {name: one for name, one in self.walk.tags.items() if isinstance(one, (str, int, float))}
        return InferResponse(self.target.name, self.target.version(self.loaded), tensors, infer.id, plain)

    def _decode(self) -> InferRequest:
        request, headers, allow_nan = self.request, self.request.headers, self.server.limits.allow_nan
        if oip.HEADER_LENGTH not in headers and headers.get("content-type", "").startswith(oip.OCTETS):
            return oip.decode_raw(request.body, self.graph.roots[0].component.declared, allow_nan=allow_nan)
        return oip.decode(request.body, headers, allow_nan=allow_nan)


class GrpcCall(OipCall):
    """A request that gRPC has read, and whose answer or problem it words itself."""

    def answer(self, outcome: Outcome) -> Any:
        return self.respond(outcome)

    def failure(self, problem: ProblemError) -> Any:
        return problem


class SeldonCall(ServingCall):
    """A prediction in Seldon's protocol."""

    asked: Prediction | None = None

    def read(self) -> None:
        media = self.request.headers.get("content-type", "")
        self.asked = asked = seldon.decode(self.request.body, allow_nan=self.server.limits.allow_nan, media=media)
        self.walk.meta = asked.meta
        self.value, self.names = asked.value, asked.names

    def sent(self) -> list[Tensor]:
        assert self.asked is not None
        return as_inputs(self.asked.value)

    def answer(self, outcome: Outcome) -> Any:
        assert self.asked is not None
        return Response(200, seldon.encode(self.asked, outcome, self.walk, self.loaded.id), headers=self.headers)

    def copy_of_value(self) -> Any:
        assert self.asked is not None
        value = self.asked.value
        if isinstance(value, np.ndarray) and self.inputs is not None and value.dtype.kind in "biuf":
            return self.inputs[0].data.copy()  # the value itself may have been changed since
        return copy.deepcopy(value)


def with_headers(problem: ProblemError, headers: Headers) -> Response:
    response = problem.response()
    response.headers = (*headers, *response.headers)
    return response


def as_inputs(value: Any) -> list[Tensor]:
    """Return a value of Seldon's as tensors, to be kept: what no tensor can hold as JSON."""
    return _kept("input-0", value, ())


def as_outputs(outcome: Outcome) -> list[Tensor]:
    """Return an answer as tensors, to be kept or compared: what no tensor can hold, as JSON."""
    return _kept("output-0", outcome.value, outcome.step.component.declared.outputs)


def _kept(name: str, value: Any, declared: Sequence[TensorSpec]) -> list[Tensor]:
    try:
        return as_tensors({name: value} if name.startswith("input") else value, declared, "The value")
    except ProblemError:
        return as_tensors({name: msgspec.json.encode(seldon.plain(value), enc_hook=repr)}, (), "The value")


def equal_answers(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether two answers say the same; floating-point numbers to within a few units in the fifth digit."""
    if [tensor.name for tensor in one] != [tensor.name for tensor in other]:
        return False
    for mine, theirs in zip(one, other, strict=True):
        if mine.data.shape != theirs.data.shape:
            return False
        if mine.data.dtype.kind == "f" and theirs.data.dtype.kind == "f":
            if not np.allclose(mine.data, theirs.data, rtol=1e-5, atol=1e-8, equal_nan=True):
                return False
        elif not np.array_equal(mine.data, theirs.data):
            return False
    return True
