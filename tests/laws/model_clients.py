"""One model served in this process, and the ways in which people ask it: clients, the command, and the protocols."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import numpy as np
import pandas as pd

from scanflow.backends.memory import Memory
from scanflow.errors import InvalidError
from scanflow.instance_messages import (
    BatchingOptions,
    DesiredInstanceState,
    InstanceSpec,
    Limits,
    ModelFiles,
    Node,
    Revision,
)
from scanflow.protos import get_message_class
from scanflow.transport import HttpServiceClient
from scanflow.transport.tensors import as_arrays, decode_answer, encode_grpc_request, encode_request
from scanflow_client.client import Client
from scanflow_client.declared_inputs import fit_inputs
from scanflow_client.predict_io import read_request, send
from scanflow_serving.grpc_api import read_request as read_grpc
from scanflow_serving.grpc_api import write_response
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.messages import Request
from scanflow_serving.routes import ServingApplication

NAME = "m"


class _Connected(Memory):
    """A backend whose only service is a served model."""

    def __init__(self, served: ServedModel) -> None:
        super().__init__()
        self.served = served

    def online(self, tracker: str | None = None) -> Any:  # noqa: ARG002
        return SimpleNamespace(client=self.served.connect)


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal, and what it says."""

    status: int
    detail: str


class ServedModel:
    """A model behind the real routes and clients; only the sockets are left out."""

    def __init__(self, application: ServingApplication, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.application = application
        self.loop = loop
        self._folder = folder
        self._transport = httpx2.MockTransport(self._answer)

    def connect(self, _name: str) -> HttpServiceClient:
        """Return a client, as a deployer does."""
        return HttpServiceClient("http://127.0.0.1:1", name=NAME, transport=self._transport)

    def post(self, path: str, body: bytes, headers: Mapping[str, str] = {}) -> httpx2.Response:
        return self._answer(httpx2.Request("POST", f"http://127.0.0.1:1{path}", content=body, headers=dict(headers)))

    def list_inputs(self) -> list[dict[str, Any]]:
        with self.connect(NAME) as client:
            return list(client.document(f"/v2/models/{NAME}")["inputs"])

    # -- ways in

    def ask_client(self, inputs: Any) -> Any:
        client = Client(backend=_Connected(self), progress=False)
        return _catch(lambda: client.ask(NAME, inputs).outputs)

    def ask_command(self, *, file: Path | None = None, data: str | None = None, seldon: bool = False) -> Any:
        request = read_request(file=None if file is None else str(file), data=data, npy=None, stdin=io.BytesIO())
        return _catch(lambda: send(self, NAME, request, node=None, dtype=None, seldon=seldon).outputs)  # type: ignore[arg-type,union-attr]

    def ask_protocol(self, inputs: Any, *, binary: bool, parameters: Mapping[str, Any] | None = None) -> Any:
        body, headers = encode_request(as_arrays(fit_inputs(inputs, self.list_inputs())), binary=binary)
        if parameters:
            document = json.loads(body)
            body = json.dumps({**document, "parameters": dict(parameters)}).encode()
        return self.read(self.post(f"/v2/models/{NAME}/infer", body, headers))

    def ask_protocol_raw(self, table: pd.DataFrame) -> Any:
        """Ask with a table as it is, whatever the model declares."""
        columns = as_arrays({str(name): table[name].to_numpy() for name in table.columns})
        return self.read(self.post(f"/v2/models/{NAME}/infer", *encode_request(columns)))

    def ask_grpc(self, inputs: Any) -> Any:
        message = get_message_class("ModelInferRequest").FromString(
            encode_grpc_request(NAME, as_arrays(fit_inputs(inputs, self.list_inputs())))
        )
        try:
            call = self.application.infer(NAME, "", read_grpc(message, allow_nan=True), 60)
            answer = asyncio.run_coroutine_threadsafe(call, self.loop).result(60)
        except ProblemError as problem:
            return Refused(problem.status, problem.detail)
        return _decode_grpc(write_response(answer, raw=True))

    def ask_seldon(self, rows: Sequence[Any], names: Sequence[str] = ()) -> Any:
        body = json.dumps({"data": {"names": list(names), "ndarray": rows}}).encode()
        answer = self.post("/api/v1.0/predictions", body)
        if answer.status_code != 200:
            return Refused(answer.status_code, answer.json()["detail"])
        document = answer.json()
        for kind in ("jsonData", "strData"):
            if kind in document:
                return document[kind]
        return {"": document["data"]["ndarray"]}

    def read(self, answer: httpx2.Response) -> Any:
        """Return the outputs in an answer, or the refusal."""
        if answer.status_code != 200:
            return Refused(answer.status_code, answer.json()["detail"])
        if b'"outputs"' not in answer.content:
            return answer.json()
        return decode_answer(answer.content, answer.headers.get("inference-header-content-length"))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = Request(request.method, request.url.path, "", headers, request.read())
        answer = asyncio.run_coroutine_threadsafe(self.application.handle(asked), self.loop).result(60)
        sent = {"content-type": answer.content_type, **dict(answer.headers)}
        return httpx2.Response(answer.status, content=answer.join_body(), headers=sent)


@contextmanager
def serve_model(
    folder: Path, *, allow_nan: bool = True, batching: BatchingOptions | None = None
) -> Iterator[ServedModel]:
    """Serve the model in ``folder``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    node = Node(name=NAME, model=ModelFiles(name=NAME, version=1, path=str(folder)), batching=batching)
    desired = DesiredInstanceState(generation=1, revisions=(Revision(id="r1", nodes=(node,)),))

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(120)

    async def start() -> ServingApplication:
        application = ServingApplication(
            InstanceSpec(
                service=NAME,
                app="a",
                team="t",
                instance="m-1",
                folder=str(folder),
                desired="",
                address="127.0.0.1:1",
                app_dir=str(folder),
                limits=Limits(deadline_s=60, allow_nan=allow_nan),
            ),
            loop=loop,
        )
        await application.apply(desired)
        return application

    try:
        application = run(start())
        yield ServedModel(application, loop, folder)
        run(application.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def to_columns(answer: Any) -> list[list[Any]]:
    """Return an answer as plain columns, however it is packed, so that answers can be compared."""
    if isinstance(answer, pd.DataFrame):
        return [_to_plain_list(answer[name].tolist()) for name in answer.columns]
    if isinstance(answer, list) and answer and all(isinstance(record, dict) for record in answer):
        names = answer[0].keys()
        if all(record.keys() == names for record in answer):
            return [_to_plain_list([record[name] for record in answer]) for name in names]
    if isinstance(answer, dict):
        return [_to_plain_list(values) for values in answer.values()]
    return [_to_plain_list(answer)]


def _to_plain_list(values: Any) -> list[Any]:
    if hasattr(values, "dtype") and getattr(values.dtype, "kind", "") in {"m", "M"}:
        values = list(values)
    elif hasattr(values, "tolist"):
        values = values.tolist()
    return [_to_plain(value) for value in (values if isinstance(values, list) else [values])]


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_to_plain(item) for item in value]
    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    if value is np.ma.masked:
        return None
    if isinstance(value, (timedelta, np.timedelta64)) or (isinstance(value, str) and re.match(r"-?P\d", value)):
        return pd.Timedelta(value).isoformat()
    if isinstance(value, (np.datetime64, date)):
        return pd.Timestamp(value).isoformat()
    if isinstance(value, str) and len(value) > 18 and value[4] == value[7] == "-" and value[10] == "T":
        return pd.Timestamp(value).isoformat()
    if isinstance(value, (float, np.floating)):
        return float(f"{float(value):.5g}")
    return value.item() if isinstance(value, np.generic) else value


def _catch(call: Any) -> Any:
    try:
        return call()
    except InvalidError as error:
        return Refused(422, str(error))


def _decode_grpc(written: Any) -> dict[str, Any]:
    head: dict[str, list[Any]] = {"outputs": []}
    body = b""
    for output, raw in zip(written.outputs, written.raw_output_contents, strict=True):
        parameters = {name: value.string_param for name, value in output.parameters.items()}
        head["outputs"].append(
            {
                "name": output.name,
                "datatype": output.datatype,
                "shape": list(output.shape),
                "parameters": {**parameters, "binary_data_size": len(raw)},
            }
        )
        body += raw
    text = json.dumps(head).encode()
    return decode_answer(text + body, str(len(text)))
