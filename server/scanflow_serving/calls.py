"""One request from its bytes to its response: what runs on the loop, what in a worker thread, and what is kept."""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from scanflow_serving import oip, seldon
from scanflow_serving.declared import TensorSpec
from scanflow_serving.engine import Engine
from scanflow_serving.graph import Graph, Outcome, Walk, finish
from scanflow_serving.messages import InferRequest, InferResponse, Request, Response, Tensor
from scanflow_serving.problems import ProblemError
from scanflow_serving.results import as_tensors, raw_bytes
from scanflow_serving.revisions import Loaded
from scanflow_serving.seldon import Prediction

LARGE: Final = 256 * 1024
"""Bodies above this size are read in a worker thread, so that nobody waits behind them."""

_NOWHERE: Final = Walk()
"""The way of a request that was not read yet."""


class Server(Protocol):
    engine: Engine

    def retain(self, call: ServingCall) -> None: ...


class ServingCall(ABC):
    __slots__ = (
        "began",
        "graph",
        "inputs",
        "loaded",
        "names",
        "outcome",
        "recorded",
        "server",
        "shadowed",
        "started",
        "unread",
        "value",
        "walk",
    )

    def __init__(self, server: Server, loaded: Loaded, graph: Graph) -> None:
        self.began = monotonic()
        """When it came, on the monotonic clock."""

        self.server = server
        self.loaded = loaded
        self.graph = graph
        self.walk = _NOWHERE
        self.value: Any = None
        self.names: Any = []
        self.inputs: list[Tensor] | None = None
        """What was sent, where it is to be kept."""

        self.outcome: Outcome | None = None
        self.started = False
        self.unread = False
        self.recorded = False
        self.shadowed = False

    @abstractmethod
    def read(self) -> None:
        """Decode and check the request: set ``value``, ``names`` and ``walk``."""

    @property
    def timeout_s(self) -> float | None:
        return None

    def copy_of_value(self) -> Any:
        assert self.inputs is not None
        if len(self.inputs) == 1:
            return self.inputs[0].data.copy()
        return {one.name: one.data.copy() for one in self.inputs}

    @abstractmethod
    def answer(self, outcome: Outcome) -> Any:
        """Return the response."""

    @abstractmethod
    def sent(self) -> list[Tensor]:
        """Return what was sent, as tensors."""

    def failure(self, problem: ProblemError) -> Any:
        return problem.response()

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


class InferCall(ServingCall):
    """A request of the Open Inference Protocol that was read already: gRPC's."""

    __slots__ = ("infer", "label", "version")

    def __init__(
        self,
        server: Server,
        loaded: Loaded,
        graph: Graph,
        *,
        label: str,
        version: str,
        infer: InferRequest | None = None,
    ) -> None:
        super().__init__(server, loaded, graph)
        self.label = label
        self.version = version
        self.infer = infer

    def read(self) -> None:
        infer = self.infer
        assert infer is not None
        for step in self.graph.roots:
            if step.component.declared.inputs:
                step.component.declared.check(infer.inputs)
        self.walk = Walk({"puid": infer.id} if infer.id else {}, checked=True)
        self.value = infer.inputs[0].data if len(infer.inputs) == 1 else {one.name: one.data for one in infer.inputs}

    @property
    def timeout_s(self) -> float | None:
        return self.infer.timeout_s if self.infer is not None else None

    def sent(self) -> list[Tensor]:
        assert self.infer is not None
        return self.infer.inputs

    def respond(self, outcome: Outcome) -> InferResponse:
        infer, end = self.infer, outcome.step
        assert infer is not None
        tensors = as_tensors(outcome.value, end.component.declared.outputs, end.who)
        if infer.outputs:
            tensors = oip.pick_outputs(tensors, infer.outputs)
        tags = self.walk.tags
        plain = {name: one for name, one in tags.items() if isinstance(one, (str, int, float))} if tags else None
        return InferResponse(self.label, self.version, tensors, id=infer.id, parameters=plain, revision=self.loaded.id)

    def answer(self, outcome: Outcome) -> Any:
        return self.respond(outcome)

    def failure(self, problem: ProblemError) -> Any:
        return problem


class OipCall(InferCall):
    __slots__ = ("allow_nan", "headers", "request")

    def __init__(
        self,
        server: Server,
        loaded: Loaded,
        graph: Graph,
        request: Request,
        *,
        label: str,
        version: str,
        headers: tuple[tuple[str, str], ...],
        allow_nan: bool,
    ) -> None:
        super().__init__(server, loaded, graph, label=label, version=version)
        self.request = request
        self.headers = headers
        self.allow_nan = allow_nan

    def read(self) -> None:
        request = self.request
        headers = request.headers
        if oip.HEADER_LENGTH not in headers and headers.get("content-type", "").startswith(oip.OCTETS):
            declared = self.graph.roots[0].component.declared
            self.infer = oip.decode_raw(request.body, declared, allow_nan=self.allow_nan)
        else:
            self.infer = oip.decode(request.body, headers, allow_nan=self.allow_nan)
        super().read()

    def answer(self, outcome: Outcome) -> Response:
        if oip.wants_raw(self.request.headers):
            body = raw_bytes(outcome.value, outcome.step.who)
            return Response(200, body if isinstance(body, bytes) else [body], oip.OCTETS, self.headers)
        assert self.infer is not None
        return oip.encode(self.respond(outcome), self.infer, self.headers)

    def failure(self, problem: ProblemError) -> Response:
        return with_headers(problem, self.headers)


class SeldonCall(ServingCall):
    __slots__ = ("allow_nan", "asked", "headers", "request")

    def __init__(
        self,
        server: Server,
        loaded: Loaded,
        graph: Graph,
        request: Request,
        *,
        headers: tuple[tuple[str, str], ...],
        allow_nan: bool,
    ) -> None:
        super().__init__(server, loaded, graph)
        self.request = request
        self.headers = headers
        self.allow_nan = allow_nan
        self.asked: Prediction

    def read(self) -> None:
        self.asked = asked = seldon.decode(
            self.request.body, allow_nan=self.allow_nan, media=self.request.headers.get("content-type", "")
        )
        self.walk = Walk(asked.meta)
        self.value, self.names = asked.value, asked.names

    def copy_of_value(self) -> Any:
        value = self.asked.value
        if isinstance(value, np.ndarray) and self.inputs is not None and value.dtype.kind in "biuf":
            return self.inputs[0].data.copy()  # the value itself may have been changed since
        return copy.deepcopy(value)

    def sent(self) -> list[Tensor]:
        return as_inputs(self.asked.value)

    def answer(self, outcome: Outcome) -> Response:
        return Response(200, seldon.encode(self.asked, outcome, self.walk, self.loaded.id), headers=self.headers)

    def failure(self, problem: ProblemError) -> Response:
        return with_headers(problem, self.headers)


def with_headers(problem: ProblemError, headers: tuple[tuple[str, str], ...]) -> Response:
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
