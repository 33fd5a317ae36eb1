"""How long ``/healthz`` takes while a client sends a body that is far too large, or as large as is accepted."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.benchmarks.agents_lag import percentiles
from tests.benchmarks.control_server import API, ask, run_scanflow
from tests.benchmarks.measure import Benchmark, Metric, NotMeasuredError, Places, Section
from tests.http_requests import http_client
from tests.server import bearer

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class SentBody:
    role: str
    content: bytes
    status: int
    """How it is answered."""


def bodies(places: Places, section: Section, *, rounds: int, sends: int) -> Benchmark:
    """``sends``: how often each body is sent, one after the other."""

    def sample(folder: Path) -> Mapping[str, float]:
        metrics: dict[str, float] = {}
        with run_scanflow(places.python, folder) as url:
            for key, sent in _build_bodies(folder).items():
                token = ask(url, "POST", f"{API}/tokens", {"name": key, "role": sent.role})["token"]
                waits_ms = _measure_health(url, sent, token, sends)
                metrics |= {f"{key}_worst": max(waits_ms), f"{key}_p50": percentiles(waits_ms)["p50"]}
        return metrics

    labels = {
        "viewer": "a viewer's body of 31 MiB, refused",
        "zeros": "an editor's body of 4 MiB, `[0,0,…]`",
        "steps": "an editor's application of 10,000 steps",
    }
    metrics = []
    for key, label in labels.items():
        bar = 50 if key == "viewer" else None
        metrics += [
            Metric(f"{key}_worst", f"`/healthz` behind {label}: the longest", "ms", bar=bar),
            Metric(f"{key}_p50", "the same: median", "ms"),
        ]
    return Benchmark(
        name="bodies",
        section=section,
        metrics=metrics,
        contenders={"Scanflow": sample},
        how=(
            f"each body is sent {sends} times to `POST /runs/plan`, one after the other; meanwhile another connection "
            "asks `GET /healthz` again and again, without a pause"
        ),
        rounds=rounds,
        warm_up=False,
    )


def _build_bodies(folder: Path) -> dict[str, SentBody]:
    def zeros(size: int) -> bytes:
        start, end = b'{"application":{"x":[0', b"]}}"
        return start + b",0" * ((size - len(start) - len(end)) // 2) + end

    def name(layer: int, place: int) -> str:
        return f"prepare-features-{layer}-{place}"

    parameters = {"epochs": 3, "learning_rate": 0.001, "data": "/data/part-0001.parquet", "seed": 42}
    nodes = [
        {"kind": "executor", "name": name(layer, place), "mainfile": "agent.py", "parameters": parameters}
        for layer in range(100)
        for place in range(100)
    ]
    edges = [
        {"dependee": name(layer, place), "depender": name(layer + 1, place)}
        for layer in range(99)
        for place in range(100)
    ]
    (folder / "agent.py").write_text("pass\n")
    application = {
        "schema": "scanflow/v1",
        "name": "large",
        "app_dir": str(folder),
        "workflows": [{"name": "large", "nodes": nodes, "edges": edges}],
    }
    steps = json.dumps({"application": application}, separators=(",", ":")).encode()
    return {
        "viewer": SentBody(role="viewer", content=zeros(31 * MIB), status=403),
        "zeros": SentBody(role="editor", content=zeros(4 * MIB), status=422),
        "steps": SentBody(role="editor", content=steps, status=200),
    }


def _measure_health(url: str, sent: SentBody, token: str, sends: int) -> list[float]:
    """Return how long each answer took, in milliseconds."""
    statuses, ended = list[int](), threading.Event()

    def send() -> None:
        try:
            for _ in range(sends):
                statuses.append(send_body(url, sent.content, token))
        finally:
            ended.set()

    sender, waits_ms = threading.Thread(target=send), list[float]()
    with http_client(base_url=url, timeout=60) as client:
        client.get("/healthz")  # so that the connection is open
        sender.start()
        while not ended.is_set():
            began = time.perf_counter()
            client.get("/healthz")
            waits_ms.append(1000 * (time.perf_counter() - began))
    sender.join()
    if statuses != [sent.status] * sends:
        raise NotMeasuredError(f"A body of a token of role {sent.role!r} was answered {statuses}, not {sent.status}.")
    return waits_ms


def send_body(url: str, content: bytes, token: str, *, method: str = "POST", path: str = "/runs/plan") -> int:
    """Send a body by a socket, as a client of httpx2 would hold this process' lock; return the answer's status."""
    parts = urlsplit(url)
    head = f"{method} {API}{path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    head += f"authorization: {bearer(token)['authorization']}\r\ncontent-length: {len(content)}\r\n\r\n"
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=300) as connection:
        connection.sendall(head.encode() + content)
        return int(connection.recv(65536).split(b" ")[1])
