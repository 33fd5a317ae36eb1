"""The client of a deployed service."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from scanflow.errors import TooLargeError, UnavailableError
from scanflow.files.closing import Closing
from scanflow.http.problems import parse_refusal
from scanflow.transport.clients import build_client_options, retry_request
from scanflow.transport.tensors import as_arrays, decode_answer, encode_request

if TYPE_CHECKING:
    from numpy.typing import NDArray

RETRY_S = 10.0
"""How long a request is retried, in seconds."""

TIMEOUT_S = 60.0  # longer than a service's own deadline, so that it is the one to say what took long


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionResponse:
    """The prediction of a service."""

    outputs: Mapping[str, NDArray[Any]]
    """The arrays by name; the first axis is the rows of the request."""

    instance: str | None
    """The instance that answered."""

    revision: str | None
    """The revision of its graph: while a canary runs there are two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A raw response."""

    content: bytes
    """The body."""

    headers: Mapping[str, str]
    """The names are in lower case."""


class HttpServiceClient(Closing):
    """A client of one service. It keeps its connection; use it as a context, or call :meth:`close`."""

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        timeout_s: float = TIMEOUT_S,
        token: str | None = None,
        max_bytes: int | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """Use the service at ``url``, which messages call ``name``; ``token`` is what ``Serving(auth=...)`` needs.

        With ``max_bytes``, a longer answer is refused, and none takes longer than ``timeout_s`` in total, as well as it
        is known between two bytes: for a service whose answers are not to be trusted.

        Nothing takes longer than ``timeout_s`` between two bytes. What was not read by the service is sent again: on a
        connection that was closed before a byte came back, and where it answers 503 with when to try again.
        """
        self._url = url.rstrip("/")
        self._name = name
        self._max_bytes, self._timeout_s = max_bytes, timeout_s
        self._client = httpx2.Client(transport=transport, **build_client_options(self._url, token, timeout_s))

    def infer(
        self, model: str, inputs: Any, *, version: str | None = None, dtype: str | None = None, binary: bool = True
    ) -> PredictionResponse:
        """Return the answer of ``model``: the service's name for its whole graph, or the name of one node.

        Args:
            model: Which model of the service.
            inputs: An array, a list, or a mapping of input names to these.
            version: A version of it; None: whichever serves now.
            dtype: What numbers are sent as: ``float32``, or ``FP32`` in the protocol's words. None: what they are.
            binary: Send and receive the tensors as bytes rather than as JSON.

        Raises:
            InvalidError: the service refuses the input.
            NotFoundError: there is no such model.
            ServiceFailedError: a component failed on it.
            UnavailableError: the service does not answer in time, or is full.
        """
        body, headers = encode_request(as_arrays(inputs, dtype=dtype), binary=binary)
        at_version = "" if version is None else f"/versions/{quote(version, safe='')}"
        return read_response(self.post(f"/v2/models/{quote(model, safe='')}{at_version}/infer", body, headers))

    def seldon(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a message of Seldon's protocol, such as ``{"data": {"ndarray": [[1, 2]]}}``."""
        body = json.dumps(message).encode()
        reply = self.post("/api/v1.0/predictions", body, {"content-type": "application/json"})
        return _parse_object(reply)

    def document(self, path: str) -> dict[str, Any]:
        """Return a JSON document that the service serves at ``path``, such as ``/v2/models/<name>``."""
        return _parse_object(self._send("GET", path, None, {}))

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Send bytes, and return a successful response."""
        return self._send("POST", path, body, headers)

    def close(self) -> None:
        """Close the connections to the service."""
        self._client.close()

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        def send() -> httpx2.Response:
            if self._max_bytes is None:
                return self._client.request(method, path, content=body, headers=headers)
            with self._client.stream(method, path, content=body, headers=headers) as reply:
                return httpx2.Response(
                    reply.status_code, headers=_drop_coding(reply.headers), content=self._read(reply, self._max_bytes)
                )

        try:
            reply = retry_request(send, is_busy=_is_busy, on=_may_pass, timeout_s=RETRY_S, max_wait_s=RETRY_S)
        except httpx2.TimeoutException as error:
            raise UnavailableError(
                f"{self._who} did not answer in time. It may be busy: try again, or see: {self._look}"
            ) from error
        except httpx2.HTTPError as error:
            raise UnavailableError(f"{self._who} cannot be reached ({error}). See: {self._look}") from error
        if reply.status_code >= 300:
            raise parse_refusal(
                reply.status_code, reply.content, retry_after=reply.headers.get("retry-after"), who=self._who
            )
        return Reply(content=reply.content, headers={name.lower(): value for name, value in reply.headers.items()})

    def _read(self, reply: httpx2.Response, max_bytes: int) -> bytes:
        content, until = bytearray(), time.monotonic() + self._timeout_s
        for block in reply.iter_bytes():
            content += block
            if len(content) > max_bytes:
                raise TooLargeError(f"{self._who} answers with more than {max_bytes:,} bytes. Use its own address.")
            if time.monotonic() > until:
                raise UnavailableError(f"{self._who} did not answer within {self._timeout_s:g} s. See: {self._look}")
        return bytes(content)

    @property
    def _who(self) -> str:
        return f"The service at {self._url}" if self._name is None else f"The service {self._name!r}"

    @property
    def _look(self) -> str:
        return "scanflow services" if self._name is None else f"scanflow services {self._name}"


def read_response(reply: Reply) -> PredictionResponse:
    """Return the prediction of a reply in the Open Inference Protocol."""
    return PredictionResponse(
        outputs=decode_answer(reply.content, reply.headers.get("inference-header-content-length")),
        instance=reply.headers.get("x-scanflow-instance"),
        revision=reply.headers.get("x-scanflow-revision"),
    )


def _is_busy(reply: httpx2.Response) -> bool:
    """Return whether the service cannot answer yet, and says when to retry."""
    return reply.status_code == 503 and "retry-after" in reply.headers


def _may_pass(error: Exception) -> bool:
    # Nothing was sent. On a cluster, a connection begun before the nodes know a new service's address stays lost, since
    # its packets go on being routed as the first was; another one finds the way.
    if isinstance(error, httpx2.ConnectTimeout):
        return True
    # httpx2 raises it where the peer closed the connection without a byte of an answer: it was idle for too long.
    return isinstance(error, httpx2.RemoteProtocolError) and "without sending a response" in str(error)


def _drop_coding(headers: httpx2.Headers) -> dict[str, str]:
    """Return the headers of a body that was decoded."""
    return {name: value for name, value in headers.items() if name not in {"content-encoding", "transfer-encoding"}}


def _parse_object(reply: Reply) -> dict[str, Any]:
    try:
        document = json.loads(reply.content)
    except ValueError as error:
        raise UnavailableError(f"Its answer is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise UnavailableError(f"Its answer is not a JSON object but {str(document)[:60]!r}.")
    return document
