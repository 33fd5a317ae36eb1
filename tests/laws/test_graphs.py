"""A graph of components is the plain calls, each with an input of its own, or it is refused by name.

The oracle calls the components in order on deep copies, one request after the other.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from scanflow.instance_messages import BatchingOptions, Node
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.messages import InferRequest, InferResponse, Request, Tensor
from scanflow_serving.results import to_tensors
from tests.laws import graph_components
from tests.laws.graph_components import CHANGING, COMBINING, PLAIN, ROUTING, Behaviour
from tests.laws.strategies import SEEDED
from tests.unit.serving.serving_harness import Instance, instance
from tests.waiting import PATIENCE_S

FILE = Path(graph_components.__file__)
JSON, BINARY, GRPC = "JSON", "binary", "gRPC"


@dataclass(frozen=True)
class Part:
    """A node of a graph."""

    role: str
    kind: str
    parents: tuple[int, ...] = ()
    is_async: bool = False
    is_blocking: bool = True
    max_size: int | None = None

    def make_node(self, place: int) -> Node:
        name = "AsyncComponent" if self.is_async else "Component"
        return Node(
            name=f"n{place}",
            role=self.role,  # type: ignore[arg-type]
            parents=tuple(f"n{parent}" for parent in self.parents),
            implementation=f"{FILE.name}:{name}",
            file=str(FILE),
            parameters={"kind": self.kind, "blocking": self.is_blocking},
            batching=None if self.max_size is None else BatchingOptions(max_size=self.max_size, max_delay_s=0.002),
        )


@st.composite
def graphs(draw: st.DrawFn, most: int = 5) -> tuple[Part, ...]:
    """Draw graphs in which one node answers: what is left loose is joined by a COMBINER."""
    parts: list[Part] = []

    def add(role: str, kinds: tuple[str, ...], parents: tuple[int, ...]) -> None:
        waits = draw(st.sampled_from(["", "", "async", "batched", "batched", "batched async"]))
        can_batch = role not in {"ROUTER", "COMBINER"} and "batched" in waits
        max_size = draw(st.integers(1, 6)) if can_batch else None
        kind = draw(st.sampled_from(kinds))
        parts.append(Part(role, kind, parents, "async" in waits, draw(st.booleans()), max_size))

    for place in range(draw(st.integers(1, most))):
        open_ends = list(range(place))
        parents = () if not place or draw(st.integers(0, 4)) == 0 else (draw(st.sampled_from(open_ends)),)
        role = draw(st.sampled_from(["MODEL", "MODEL", "TRANSFORMER", "OUTPUT_TRANSFORMER", "COMBINER", "ROUTER"]))
        if role == "COMBINER" and parents:
            others = draw(st.lists(st.sampled_from(open_ends), max_size=2))
            add(role, COMBINING, tuple(dict.fromkeys((*parents, *others))))
        elif role == "ROUTER":
            add(role, ROUTING, parents)
        else:
            add("MODEL" if role == "COMBINER" else role, draw(st.sampled_from([PLAIN, PLAIN, CHANGING])), parents)
    for place in [place for place, part in enumerate(parts) if part.role == "ROUTER"]:
        while sum(place in part.parents for part in parts) < 2:
            add("MODEL", PLAIN, (place,))
    loose = tuple(place for place in range(len(parts)) if not any(place in part.parents for part in parts))
    if len(loose) > 1:
        add("COMBINER", COMBINING, loose)
    return tuple(parts)


@st.composite
def requests(draw: st.DrawFn, most: int = 6, longest: int = 7) -> list[Any]:
    """Draw requests, all with the same row now and then."""
    row = st.tuples(st.integers(0, 5), st.integers(-3, 3))
    if draw(st.booleans()):
        row = st.sampled_from([(3, 1), (3, 1), (3, 1), draw(row)])
    rows = st.lists(row, min_size=1, max_size=longest).map(lambda drawn: np.array(drawn, dtype="f8"))
    return draw(st.lists(rows, min_size=1, max_size=most))


def call_plainly(parts: tuple[Part, ...], behaviours: list[Behaviour], value: Any) -> Any:
    """Return the answer of the calls, each of which has a deep copy."""
    results: dict[int, Any] = {}
    branches: dict[int, int] = {}
    for place, part in enumerate(parts):
        taken = [
            results[parent]
            for parent in sorted(part.parents)
            if parent in results
            and (parent not in branches or branches[parent] in {-1, list_children(parts, parent).index(place)})
        ]
        if part.parents and not taken:
            continue
        given_value = taken if part.role == "COMBINER" else taken[0] if taken else value
        result = copy.deepcopy(behaviours[place].do(copy.deepcopy(given_value)))
        if part.role == "ROUTER":
            branches[place], result = result, copy.deepcopy(given_value)
        results[place] = result
    return results[max(results)]


def list_children(parts: tuple[Part, ...], place: int) -> list[int]:
    return [child for child, part in enumerate(parts) if place in part.parents]


def expect(parts: tuple[Part, ...], behaviours: list[Behaviour], value: Any) -> list[Any] | None:
    """Return the outputs of the plain calls; None: they fail, or no tensor can hold what they return."""
    try:
        return describe(to_tensors(call_plainly(parts, behaviours, value), (), ""))
    except Exception:  # noqa: BLE001 - whatever a component raises, the request is refused
        return None


def describe(tensors: list[Tensor]) -> list[Any]:
    return [
        (
            tensor.name,
            list(tensor.data.shape),
            [item.decode() if isinstance(item, bytes) else item for item in tensor.data.ravel().tolist()],
        )
        for tensor in tensors
    ]


async def ask(here: Instance, value: Any, way: str) -> Any:
    """Return an answer as it comes, or the text of a refusal."""
    if way == GRPC:
        try:
            return await here.application.infer("wf", "", InferRequest([Tensor("x", "FP64", value.copy())]), PATIENCE_S)
        except ProblemError as problem:
            return problem.detail
    described = {"name": "x", "datatype": "FP64", "shape": list(value.shape), "data": value.ravel().tolist()}
    parameters = {"binary_data_output": True} if way == BINARY else {}
    body = json.dumps({"inputs": [described], "parameters": parameters}).encode()
    return await here.application.handle(Request("POST", "/v2/models/wf/infer", "", {}, body))


def read(answer: Any) -> list[Any] | str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, InferResponse):
        return describe(answer.outputs)
    body = answer.join_body()
    if answer.status != 200:
        return str(json.loads(body)["detail"])
    length = int(dict(answer.headers).get("inference-header-content-length", len(body)))
    outputs, rest = json.loads(body[:length])["outputs"], body[length:]
    read = []
    for output in outputs:
        data = output.get("data")
        if data is None:
            size = output["parameters"]["binary_data_size"]
            own, rest = rest[:size], rest[size:]
            is_text = output["datatype"] == "BYTES"
            data = list(split_texts(own)) if is_text else np.frombuffer(own, "<f8").tolist()
        read.append((output["name"], output["shape"], data))
    return read


def split_texts(content: bytes) -> Iterator[str]:
    """Yield texts, before each of which stands its length in four bytes."""
    while content:
        end = 4 + int.from_bytes(content[:4], "little")
        yield content[4:end].decode()
        content = content[end:]


async def check(folder: Path, parts: tuple[Part, ...], values: list[Any], ways: list[str]) -> None:
    behaviours = [Behaviour(part.kind) for part in parts]
    expected = [expect(parts, behaviours, value) for value in values]
    nodes = [part.make_node(place) for place, part in enumerate(parts)]
    async with instance(folder, *nodes) as here:
        for together in (False, True, True):
            asking = [ask(here, value, ways[place % len(ways)]) for place, value in enumerate(values)]
            answers = await asyncio.gather(*asking) if together else [await awaitable for awaitable in asking]
            # They are read when all have come, as a slow client reads.
            for value, answer, right in zip(values, map(read, answers), expected, strict=True):
                if right is None:
                    assert isinstance(answer, str), (parts, value, answer)
                    assert "node" in answer, answer
                else:
                    assert answer == right, (parts, value, together)


@settings(SEEDED, max_examples=120)
@given(parts=graphs(), values=requests(), ways=st.permutations([JSON, BINARY, GRPC]))
def test_a_graph_is_the_plain_calls(
    tmp_path_factory: pytest.TempPathFactory, parts: tuple[Part, ...], values: list[Any], ways: list[str]
) -> None:
    asyncio.run(check(tmp_path_factory.mktemp("graph"), parts, values, ways))


@settings(SEEDED, max_examples=120)
@given(
    kind=st.sampled_from(PLAIN),
    after=st.sampled_from(["echo", *CHANGING]),
    values=requests(most=12, longest=3),
    is_async=st.booleans(),
    max_size=st.integers(1, 8),
)
def test_batched_is_what_each_alone_is(
    tmp_path_factory: pytest.TempPathFactory, kind: str, after: str, values: list[Any], is_async: bool, max_size: int
) -> None:
    parts = (Part("MODEL", kind, (), is_async, max_size=max_size), Part("OUTPUT_TRANSFORMER", after, (0,)))
    asyncio.run(check(tmp_path_factory.mktemp("batch"), parts, values, [JSON]))


@pytest.mark.slow
def test_a_thousand_graphs_are_the_plain_calls(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("graphs")

    @seed(11)
    @settings(SEEDED, derandomize=False, max_examples=1000)
    @given(parts=graphs(most=8), values=requests(), ways=st.permutations([JSON, BINARY, GRPC]))
    def hold(parts: tuple[Part, ...], values: list[Any], ways: list[str]) -> None:
        asyncio.run(check(folder, parts, values, ways))

    hold()
