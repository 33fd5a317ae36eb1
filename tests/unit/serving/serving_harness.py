"""What tests of the model server share: an application in this process, asked without HTTP."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from scanflow.instance_messages import (
    BatchingOptions,
    DesiredInstanceState,
    InstanceSpec,
    Limits,
    Node,
    Recording,
    Revision,
)
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.messages import Request, Response
from scanflow_serving.routes import ServingApplication
from tests.waiting import PATIENCE_S

_T = TypeVar("_T")


def attempt(call: Callable[[], _T]) -> _T | ProblemError:
    try:
        return call()
    except ProblemError as problem:
        return problem


@contextmanager
def expect_problem(words: str = "", status: int = 400) -> Iterator[None]:
    """Expect a problem with these words in it."""
    with pytest.raises(ProblemError) as caught:
        yield
    assert (caught.value.status, words in caught.value.detail) == (status, True), caught.value.detail


async def wait_in_loop(true: Callable[[], object]) -> None:
    """Return when ``true()`` is, which the loop is asked about again and again."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


def write_class(folder: Path, text: str, name: str = "user.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def node(name: str, path: Path, kind: str, **changes: Any) -> Node:
    """Return a node whose class is in that file."""
    return Node(name=name, implementation=f"{path.name}:{kind}", file=str(path), **changes)


def make_desired_state(*revisions: Revision | Sequence[Node], generation: int = 1) -> DesiredInstanceState:
    """Return what an instance should serve; nodes alone are the revision ``r1``."""
    revision_list = [
        revision if isinstance(revision, Revision) else Revision(id="r1", nodes=tuple(revision))
        for revision in revisions
    ]
    return DesiredInstanceState(generation=generation, revisions=tuple(revision_list))


class HarnessResponse:
    def __init__(self, response: Response) -> None:
        self.status = response.status
        self.content_type = response.content_type
        self.headers = dict(response.headers)
        self.body = response.join_body()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def outputs(self) -> list[Any]:
        assert self.status == 200, self.body
        return [output["data"] for output in self.json["outputs"]]

    @property
    def detail(self) -> str:
        assert self.content_type == "application/problem+json", self.body
        assert self.json["status"] == self.status
        return str(self.json["detail"])


class Instance:
    def __init__(self, application: ServingApplication) -> None:
        self.application = application

    def send(
        self,
        path: str,
        body: bytes | None = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> asyncio.Task[HarnessResponse]:
        how = method or ("GET" if body is None else "POST")
        request = Request(how, path, "", dict(headers or {}), body or b"")

        async def ask() -> HarnessResponse:
            return HarnessResponse(await self.application.handle(request))

        return asyncio.get_running_loop().create_task(ask())

    async def ask(self, path: str, body: bytes | None = None, **options: Any) -> HarnessResponse:
        return await asyncio.wait_for(self.send(path, body, **options), PATIENCE_S)

    def infer(self, *rows: Sequence[float], model: str = "wf", **options: Any) -> asyncio.Task[HarnessResponse]:
        """Send rows of FP64 numbers as ``x``."""
        return self.send(f"/v2/models/{model}/infer", tensor(*rows), **options)


def tensor(*rows: Sequence[float], **more: Any) -> bytes:
    """Return a request with rows of FP64 numbers as ``x``."""
    data = [value for row in rows for value in row]
    described = {"name": "x", "datatype": "FP64", "shape": [len(rows), len(rows[0]) if rows else 0], "data": data}
    return json.dumps({"inputs": [described], **more}).encode()


@asynccontextmanager
async def instance(
    folder: Path,
    *nodes: Node,
    recording: Recording | None = None,
    apply: DesiredInstanceState | None = None,
    aliases: tuple[str, ...] = (),
    **limits: Any,
) -> AsyncIterator[Instance]:
    """Give an instance that serves these nodes as ``wf``, or what is to be applied, or nothing yet."""
    fields: dict[str, Any] = {"deadline_s": PATIENCE_S, **limits}
    spec = InstanceSpec(
        service="wf",
        app="shop",
        team="tests",
        instance="wf-1",
        folder=str(folder),
        desired=str(folder / "desired.json"),
        address="127.0.0.1:46700",
        app_dir=str(folder),
        limits=Limits(**fields),
        recording=recording,
        aliases=aliases,
    )
    application = ServingApplication(spec, loop=asyncio.get_running_loop())
    try:
        if nodes or apply:
            await application.apply(apply or make_desired_state(nodes))
        yield Instance(application)
    finally:
        await application.close()


def batching(max_size: int) -> BatchingOptions:
    return BatchingOptions(max_size=max_size, max_delay_s=0.0)
