"""Large bodies from blocking sockets, which cost the client as little as can be; for the bytes workload.

Usage: ``python -P bulk.py PLAN`` with a JSON object of ``host``, ``port``, ``path``, ``size``, ``clients``,
``seconds``; prints ``{"requests_s": …, "mib_s": …, "p50_ms": …}``: what was sent over the time until all was answered.
It imports nothing of the project.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from dataclasses import dataclass

MIB = 1024 * 1024
HEAD = 64 * 1024
TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class Plan:
    host: str
    port: int
    path: str
    size: int
    clients: int
    seconds: float


def main(plan: Plan) -> None:
    """Send and count; every client checks its first answer byte by byte, and the length of all."""
    body = os.urandom(plan.size)
    ready = threading.Barrier(plan.clients + 1)
    took: list[list[float]] = [[] for _ in range(plan.clients)]
    broken: list[BaseException] = []

    def client(mine: list[float]) -> None:
        try:
            _client(plan, body, ready, mine)
        except BaseException as error:  # noqa: BLE001 - a thread's: told by the main one
            broken.append(error)
            ready.abort()

    threads = [threading.Thread(target=client, args=(mine,)) for mine in took]
    for thread in threads:
        thread.start()
    try:
        ready.wait(TIMEOUT_S)
    except threading.BrokenBarrierError:
        pass
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if broken:
        sys.exit(f"{type(broken[0]).__name__}: {broken[0]}")
    everyone = [label for mine in took for label in mine]
    requests_s = len(everyone) / seconds
    p50_ms = statistics.median(everyone) * 1000
    print(json.dumps({"requests_s": requests_s, "mib_s": requests_s * plan.size / MIB, "p50_ms": p50_ms}))


def _client(plan: Plan, body: bytes, ready: threading.Barrier, took: list[float]) -> None:
    lines = [
        f"POST {plan.path} HTTP/1.1",
        f"host: {plan.host}:{plan.port}",
        "content-type: application/octet-stream",
        "accept: application/octet-stream",
        f"content-length: {plan.size}",
    ]
    head = "\r\n".join([*lines, "", ""]).encode()
    answer = bytearray(HEAD + plan.size)
    with socket.create_connection((plan.host, plan.port), timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = _ask(connection, head, body, answer)
        if bytes(answer[start : start + plan.size]) != body[::-1]:
            raise ValueError("the answer is not the body reversed")
        ready.wait(TIMEOUT_S)
        until = time.perf_counter() + plan.seconds
        while (begun := time.perf_counter()) < until:
            _ask(connection, head, body, answer)
            took.append(time.perf_counter() - begun)


def _ask(connection: socket.socket, head: bytes, body: bytes, answer: bytearray) -> int:
    if len(body) <= HEAD:
        connection.sendall(head + body)
    else:
        connection.sendall(head)
        connection.sendall(body)
    view, got, start = memoryview(answer), 0, 0
    while start == 0 or got < start + len(body):
        count = connection.recv_into(view[got:])
        if count == 0:
            raise ConnectionError("the server closed the connection")
        got += count
        if start == 0 and (end := answer.find(b"\r\n\r\n", 0, got)) >= 0:
            start = end + 4
            _check(bytes(answer[:start]), len(body))
    return start


def _check(head: bytes, size: int) -> None:
    lines = head.decode("latin-1").lower().splitlines()
    if " 200 " not in f"{lines[0]} " or f"content-length: {size}" not in lines:
        raise ValueError(f"not the answer that was expected: {head[:300]!r}")


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
