"""What TLS and client certificates cost a request, over HTTP and gRPC, on a connection that is kept and on new ones.

``python -m tests.benchmarks.tls FOLDER`` is the client, in a process of its own: it reads ``plan.json`` there.
"""

from __future__ import annotations

import json
import socket
import ssl
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from scanflow.pki import CertificateAuthority, prepare_tls
from scanflow.settings import Settings
from scanflow.transport.tensors import INFER_METHOD, encode_grpc_request
from tests.benchmarks.measure import Benchmark, Metric, Sampler, Section, run_for_report
from tests.benchmarks.servers import cores, oip, pin_command
from tests.serving import Instance, reserve_port

CODE = """
class Model:
    blocking = False

    def predict(self, X):
        return X
"""
WARM_UP = 20
WAYS = {"http": "HTTP", "http_new": "HTTP, a new connection each", "grpc": "gRPC", "grpc_new": "gRPC, a new one each"}
COST = Section(
    group="serving",
    title="What TLS costs",
    columns=("without TLS", "TLS", "client certificates"),
    text=(
        "One no-op instance on one core, and its client, in Python, on another, which sends one row of four numbers "
        "at a time. Certificates have P-256 keys, connections are TLS 1.3 without resumption. The client's own part "
        "of the handshakes is in the figures."
    ),
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    port: int
    grpc_port: int
    keep_alive: int
    """Requests over one connection."""

    new: int
    """Requests over a connection each."""

    authority: str = ""
    certificate: str = ""
    key: str = ""


def benchmark(*, keep_alive: int, new: int) -> Benchmark:
    return Benchmark(
        name="tls",
        section=COST,
        metrics=[
            Metric(f"{way}_{share}_us", f"{what}: {'median' if share == 'p50' else 'p99'} latency", "µs")
            for way, what in WAYS.items()
            for share in ("p50", "p99")
        ],
        contenders={
            "without TLS": _sample(keep_alive, new, tls=False, asks=False),
            "TLS": _sample(keep_alive, new, tls=True, asks=False),
            "client certificates": _sample(keep_alive, new, tls=True, asks=True),
        },
        how=f"`python -m scanflow_serving`; {keep_alive} requests over one connection and {new} over one each, a round",
        rounds=5,
    )


def _sample(keep_alive: int, new: int, *, tls: bool, asks: bool) -> Sampler:
    def sample(folder: Path) -> Mapping[str, float]:
        files = prepare_tls(Settings(home=folder / "home", tls=tls))
        own = CertificateAuthority(folder / "home").issue("bench") if asks else None
        clients = ("CN=bench",) if asks else None
        with (
            reserve_port() as port,
            Instance(folder / "work", CODE, tls=files, clients=clients, grpc_port=port, cpus=cores()[0]) as instance,
        ):
            plan = Plan(
                port=instance.port,
                grpc_port=port,
                keep_alive=keep_alive,
                new=new,
                authority="" if files is None else files.authority,
                certificate="" if own is None else str(own.certificate),
                key="" if own is None else str(own.key),
            )
            (folder / "plan.json").write_text(json.dumps(asdict(plan)))
            checkout = Path(__file__).resolve().parents[2]
            command = pin_command([sys.executable, "-m", "tests.benchmarks.tls", folder], cores()[1])
            return run_for_report(command, checkout)

    return sample


def measure(plan: Plan) -> dict[str, float]:
    """Return the figures of each way to send requests, in µs."""
    times = {
        "http": _time_keep_alive(plan, connect_http),
        "http_new": _time_new(plan, connect_http),
        "grpc": _time_keep_alive(plan, connect_grpc),
        "grpc_new": _time_new(plan, connect_grpc),
    }
    figures: dict[str, float] = {}
    for way, seconds in times.items():
        shares = statistics.quantiles(seconds, n=100)
        figures |= {f"{way}_p50_us": shares[49] * 1e6, f"{way}_p99_us": shares[98] * 1e6}
    return figures


def _time_keep_alive(plan: Plan, connect: Callable[[Plan], Any]) -> list[float]:
    with connect(plan) as send:
        return [_time(send) for _ in range(plan.keep_alive + WARM_UP)][WARM_UP:]


def _time_new(plan: Plan, connect: Callable[[Plan], Any]) -> list[float]:
    def send() -> None:
        with connect(plan) as send_one:
            send_one()

    return [_time(send) for _ in range(plan.new + WARM_UP)][WARM_UP:]


def _time(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@lru_cache
def _load_context(plan: Plan) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=plan.authority)
    if plan.certificate:
        context.load_cert_chain(plan.certificate, plan.key)
    return context


@contextmanager
def connect_http(plan: Plan) -> Iterator[Callable[[], None]]:
    """Open a connection, and give what sends a request over it."""
    body = oip("x", [1, 2, 3, 4])
    head = f"POST /v2/models/model/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    sock = socket.create_connection(("127.0.0.1", plan.port), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if plan.authority:
        sock = _load_context(plan).wrap_socket(sock, server_hostname="localhost")

    def send() -> None:
        sock.sendall(head.encode() + body)
        answer = sock.recv(65536)
        if not (answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"}")):
            raise RuntimeError(f"another answer: {answer[:200]!r}")

    with sock:
        yield send


@contextmanager
def connect_grpc(plan: Plan) -> Iterator[Callable[[], None]]:
    """The same over gRPC."""
    import grpc

    options, place = (("grpc.use_local_subchannel_pool", 1),), f"localhost:{plan.grpc_port}"
    message = encode_grpc_request("model", {"x": np.array([[1, 2, 3, 4]])})
    if plan.authority:
        files = [Path(file).read_bytes() if file else None for file in (plan.authority, plan.key, plan.certificate)]
        channel = grpc.secure_channel(place, grpc.ssl_channel_credentials(*files), options=options)
    else:
        channel = grpc.insecure_channel(place, options=options)
    with channel:
        call = channel.unary_unary(INFER_METHOD)
        yield lambda: call(message, timeout=60)


if __name__ == "__main__":
    print(json.dumps(measure(Plan(**json.loads((Path(sys.argv[1]) / "plan.json").read_text())))))
