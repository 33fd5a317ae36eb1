"""One request from its bytes to its answer: what is done on the loop, what in a worker thread, and what is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from scanflow_serving import oip, seldon
from scanflow_serving.engine import Engine, Job
from scanflow_serving.graph import Graph, Outcome, Walk, finish
from scanflow_serving.messages import InferRequest, InferResponse, Request, Response, Tensor
from scanflow_serving.problems import Problem
from scanflow_serving.results import as_tensors, raw_bytes
from scanflow_serving.revisions import Loaded
from scanflow_serving.seldon import Prediction
from scanflow_serving.tensors import datatype_of

__all__ = ["LARGE", "Call", "InferCall", "OipCall", "SeldonCall", "as_inputs", "equal_answers"]

LARGE: Final = 256 * 1024
"""Bodies above this size are read in a worker thread, so that nobody waits behind them."""


class Call(ABC):
    """A request on its way through one revision."""

    __slots__ = (
        "allow_nan",
        "began",
        "graph",
        "holder",
        "inputs",
        "keep",
        "loaded",
        "names",
        "outcome",
        "value",
        "walk",
    )

    def __init__(self, loaded: Loaded, graph: Graph, holder: Request | InferRequest, began: float) -> None:
        self.loaded = loaded
        self.graph = graph
        self.holder = holder
        self.began = began
        """When it came, on the monotonic clock."""

        self.walk: Walk
        self.value: Any = None
        self.names: Any = []
        self.inputs: list[Tensor] | None = None
        """What was sent, where it is to be kept."""

        self.outcome: Outcome | None = None

    @abstractmethod
    def read(self) -> None:
        """Understand the request: set ``value``, ``names`` and ``walk``.

        Raises:
            Problem: it is wrong.
        """

    @abstractmethod
    def answer(self, outcome: Outcome) -> Any:
        """Return the answer that goes back to the caller."""

    @abstractmethod
    def sent(self) -> list[Tensor]:
        """Return what was sent, as tensors."""

    def retain(self) -> None:
        """Keep what was sent as it was, whatever components do with it; before any of them has it."""
        self.inputs = [
            Tensor(one.name, one.datatype, one.data.copy() if one.data.flags.writeable else one.data)
            for one in self.sent()
        ]

    def outputs(self) -> list[Tensor]:
        """Return the answer as tensors."""
        assert self.outcome is not None
        end = self.outcome.step
        return as_tensors(self.outcome.value, end.component.declared.outputs, end.who)

    def work(self) -> Any:
        """Go all the way, in a worker thread."""
        outcome = finish(self.graph.walk(self.value, self.names, self.walk))
        self.outcome = outcome
        return self.answer(outcome)

    async def on_loop(self, job: Job, engine: Engine) -> Any:
        """Go all the way, on the loop; what is large is written by a worker."""
        self.walk.stop = job.stale
        outcome = await self.graph.walk(self.value, self.names, self.walk, self.loaded.invoke(job))
        self.outcome = outcome
        if getattr(outcome.value, "nbytes", 0) > LARGE:
            return await engine.hop(lambda: self.answer(outcome), job)
        return self.answer(outcome)


class InferCall(Call):
    """A request of the Open Inference Protocol that was read already: gRPC's."""

    __slots__ = ("infer", "label", "version")

    def __init__(
        self,
        loaded: Loaded,
        graph: Graph,
        holder: Request | InferRequest,
        began: float,
        *,
        label: str,
        version: str,
        infer: InferRequest | None = None,
    ) -> None:
        super().__init__(loaded, graph, holder, began)
        self.label = label
        self.version = version
        self.infer = infer

    def read(self) -> None:
        """Compare what was sent with what is declared."""
        infer = self.infer
        assert infer is not None
        for step in self.graph.roots:
            if step.component.declared.inputs:
                step.component.declared.check(infer.inputs)
        self.walk = Walk({"puid": infer.id} if infer.id else {}, checked=True)
        self.value = infer.inputs[0].data if len(infer.inputs) == 1 else {one.name: one.data for one in infer.inputs}

    def sent(self) -> list[Tensor]:
        """Return the inputs."""
        assert self.infer is not None
        return self.infer.inputs

    def respond(self, outcome: Outcome) -> InferResponse:
        """Return the answer with the outputs that were asked for."""
        infer, end = self.infer, outcome.step
        assert infer is not None
        tensors = as_tensors(outcome.value, end.component.declared.outputs, end.who)
        if infer.outputs:
            tensors = oip.pick_outputs(tensors, infer.outputs)
        tags = self.walk.tags
        plain = {name: one for name, one in tags.items() if isinstance(one, (str, int, float))} if tags else None
        return InferResponse(self.label, self.version, tensors, id=infer.id, parameters=plain, revision=self.loaded.id)

    def answer(self, outcome: Outcome) -> Any:
        """Return the answer as it is: gRPC writes it itself."""
        return self.respond(outcome)


class OipCall(InferCall):
    """A request of the Open Inference Protocol over HTTP."""

    __slots__ = ("allow_nan", "headers", "request")

    def __init__(
        self,
        loaded: Loaded,
        graph: Graph,
        request: Request,
        began: float,
        *,
        label: str,
        version: str,
        headers: tuple[tuple[str, str], ...],
        allow_nan: bool,
    ) -> None:
        super().__init__(loaded, graph, request, began, label=label, version=version)
        self.request = request
        self.headers = headers
        self.allow_nan = allow_nan

    def read(self) -> None:
        """Decode the body, and compare what it holds with what is declared."""
        request = self.request
        headers = request.headers
        if (coding := headers.get("content-encoding", "identity")) != "identity":
            raise Problem(415, f"The body is encoded with {coding[:40]!r}. Send it as it is.")
        if oip.HEADER_LENGTH not in headers and headers.get("content-type", "").startswith(oip.OCTETS):
            declared = self.graph.roots[0].component.declared
            self.infer = oip.decode_raw(request.body, declared, allow_nan=self.allow_nan)
        else:
            self.infer = oip.decode(request.body, headers, allow_nan=self.allow_nan)
        super().read()

    def answer(self, outcome: Outcome) -> Response:
        """Return the answer as JSON, JSON with binary data, or nothing but the bytes."""
        if oip.wants_raw(self.request.headers):
            body = raw_bytes(outcome.value, outcome.step.who)
            return Response(200, body if isinstance(body, bytes) else [body], oip.OCTETS, self.headers)
        assert self.infer is not None
        return oip.encode(self.respond(outcome), self.infer, self.headers)


class SeldonCall(Call):
    """A prediction in Seldon's protocol."""

    __slots__ = ("allow_nan", "asked", "headers", "request")

    def __init__(
        self,
        loaded: Loaded,
        graph: Graph,
        request: Request,
        began: float,
        *,
        headers: tuple[tuple[str, str], ...],
        allow_nan: bool,
    ) -> None:
        super().__init__(loaded, graph, request, began)
        self.request = request
        self.headers = headers
        self.allow_nan = allow_nan
        self.asked: Prediction

    def read(self) -> None:
        """Decode the body."""
        self.asked = asked = seldon.decode(self.request.body, allow_nan=self.allow_nan)
        self.walk = Walk(asked.meta)
        self.value, self.names = asked.value, asked.names

    def sent(self) -> list[Tensor]:
        """Return the value that was sent."""
        return as_inputs(self.asked.value)

    def answer(self, outcome: Outcome) -> Response:
        """Return the answer as Seldon writes it."""
        return Response(200, seldon.encode(self.asked, outcome, self.walk, self.loaded.id), headers=self.headers)


def as_inputs(value: Any) -> list[Tensor]:
    """Return a value of Seldon's as tensors, to be kept: what is no array as text."""
    if not isinstance(value, (np.ndarray, bytes, str)) or (
        isinstance(value, np.ndarray) and datatype_of(value.dtype) is None
    ):
        value = str(value)
    return as_tensors({"input-0": value}, (), "The request")


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
