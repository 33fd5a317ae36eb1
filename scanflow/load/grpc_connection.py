"""A gRPC connection of the load generator: it calls a unary method repeatedly, one call at a time."""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio

from scanflow.load.load_plan import PAUSE_S, LoadError

if TYPE_CHECKING:
    from scanflow.load.load_plan import LoadPlan, Sender

_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to one address share one connection
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)

_STATUS: Final = {
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP statuses of gRPC's codes, by google/rpc/code.proto; all others are 500."""


async def connect(run: Sender) -> GrpcConnection:
    """Return an open connection to the target of a load.

    Raises:
        OSError: it was refused.
    """
    url = urlsplit(run.plan.url)
    place = f"{url.hostname}:{url.port or 80}"
    if url.scheme == "grpc":
        channel = grpc.aio.insecure_channel(place, options=_OPTIONS)
    else:
        channel = grpc.aio.secure_channel(place, _read_credentials(run.plan), options=_OPTIONS)
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            await channel.close()
            raise OSError(errno.ECONNREFUSED, f"gRPC cannot connect to {url.netloc}")
        await channel.wait_for_state_change(state)
    return GrpcConnection(run, channel, url.path)


def _read_credentials(plan: LoadPlan) -> Any:
    try:
        root, certificate, key = (
            Path(file).read_bytes() if file else None for file in (plan.authority, plan.certificate, plan.key)
        )
    except OSError as error:
        raise LoadError(
            f"The files of TLS cannot be used: {error}. Name others: SCANFLOW_TLS_CA and SCANFLOW_TLS_CLIENT_CERT"
        ) from error
    return grpc.ssl_channel_credentials(root, key, certificate)


def encode_request(_plan: LoadPlan, body: bytes) -> bytes:
    """Return the serialized message of a call, which is the body itself."""
    return body


def describe_failure(code: str, details: str, *, connected: bool) -> tuple[int, str]:
    """Return a failed call's status, as HTTP's, and its reason.

    Args:
        code: gRPC's name of its status code.
        details: What the server, or gRPC here, says of it.
        connected: Whether the connection is open. gRPC itself says UNAVAILABLE where it was lost: the status is 0.
    """
    if code == "UNAVAILABLE" and not connected:
        kind = "no connection" if details.startswith("failed to connect") else "closed without an answer"
        return 0, f"{kind}: {details[:200]}"
    status = _STATUS.get(code, 500)
    return status, f"{status} {code}: {details[:200]}"


class GrpcConnection:
    """A channel with a connection of its own, which gRPC reopens if it is lost."""

    closed_meanwhile = False

    def __init__(self, run: Sender, channel: Any, method: str) -> None:
        self._run, self._channel = run, channel
        self._call = channel.unary_unary(method)  # no serializers: bytes are sent and come
        self._metadata = tuple((name.lower(), value) for name, value in run.plan.headers.items())
        self._request: asyncio.Task[None] | None = None
        self._sent = 0.0
        self._expired = False

    def send(self, due: float, number: int) -> None:
        """Begin the call of a request that was due at a time, by ``time.monotonic``."""
        self._sent, self._expired = time.monotonic(), False
        self._request = asyncio.get_running_loop().create_task(self._send(due, number))

    async def _send(self, due: float, number: int) -> None:
        run, status, reason, lost = self._run, 200, None, False
        try:
            answer = await self._call(run.build_message(number), metadata=self._metadata)
            if run.expect is not None and run.expect not in answer:
                status, reason = -200, f"another answer: {answer[:200].decode(errors='replace')}"
        except grpc.aio.AioRpcError as error:
            connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
            status, reason = describe_failure(error.code().name, error.details() or "", connected=connected)
            lost = status == 0
        except asyncio.CancelledError:
            if not self._expired:
                raise
            status, reason = 0, "timeout"
        self._request = None
        run.record_result(number, due, self._sent, status, reason, None)
        if lost:
            await asyncio.sleep(PAUSE_S)
        run.release(self)

    def expire(self, now: float) -> None:
        """Abort a call that has taken longer than the load allows."""
        if self._request is not None and now - self._sent > self._run.plan.timeout_s:
            self._expired = True
            self._request.cancel()

    async def close(self) -> None:
        """Close the channel; a pending call is cancelled."""
        await self._channel.close()
