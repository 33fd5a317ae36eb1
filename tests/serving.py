"""A real instance of a service for tests, which play the supervisor's part: folder, listener, control socket."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scanflow.instance_messages import (
    ControlMessage,
    DesiredInstanceState,
    InstanceSpec,
    Limits,
    Node,
    Revision,
    encode,
)
from scanflow.processes import seqpacket
from tests.conftest import Cli
from tests.waiting import patient

PATIENCE_S = patient(120)

_CHOSEN_BY_PROGRAMS = range(46600, 47800)
"""Where programs look for a free port by themselves: they see a held one as free."""


class Instance:
    """One process of the model server. Used as a context, at whose end nothing of it is left."""

    def __init__(
        self,
        folder: Path,
        code: str,
        *,
        name: str = "one",
        implementation: str = "model.py:Model",
        nodes: Sequence[Node] = (),
        listener: socket.socket | None = None,
        program: Sequence[str] = (sys.executable, "-m", "scanflow_serving"),
        **spec: Any,
    ) -> None:
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        (folder / "model.py").write_text(code)
        self.listener = listener or socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.grpc_port: int | None = spec.get("grpc_port")
        self._control: socket.socket | None = None
        self._key = 0
        model = Node(name="model", implementation=implementation, file=str(folder / "model.py"))
        self.revision = Revision(id="r1", nodes=tuple(nodes) or (model,))
        self.desired = DesiredInstanceState(generation=1, revisions=(self.revision,))
        (self.folder / "desired.json").write_bytes(encode(self.desired))
        fields: dict[str, Any] = {
            "service": "w",
            "app": "a",
            "team": "t",
            "instance": name,
            "folder": str(self.folder),
            "desired": str(self.folder / "desired.json"),
            "address": f"127.0.0.1:{self.port}",
            "app_dir": str(folder),
            "listen_fd": self.listener.fileno(),
            "limits": Limits(deadline_s=PATIENCE_S),
        }
        (self.folder / "instance.json").write_bytes(encode(InstanceSpec(**{**fields, **spec})))
        self._log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(
            [*program, str(self.folder)], stdout=self._log, stderr=self._log, pass_fds=(self.listener.fileno(),)
        )

    # -- its life

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        self.connect()
        self.wait_until_ready()
        return self

    def connect(self) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while self._control is None:
            try:
                self._control = seqpacket.connect(self.folder / "control")
            except OSError:
                self._still_there(give_up, "it listens")
                select.select((), (), (), 0.01)
        self._control.settimeout(PATIENCE_S)

    def wait_until_ready(self) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not self.ask("state").get("ready"):
            self._still_there(give_up, "it is ready")
            select.select((), (), (), 0.01)

    def _still_there(self, give_up: float, what: str) -> None:
        if self.process.poll() is not None or time.monotonic() > give_up:
            raise AssertionError(f"Timed out waiting until {what}; exit code {self.process.poll()}.\n{self.log()}")

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for mine in (self._control, self.listener):
            if mine is not None:
                mine.close()
        self._log.close()

    # -- what is said

    def ask(
        self, kind: Any, body: Mapping[str, Any] | None = None, *, fds: Sequence[int] = (), key: str = ""
    ) -> dict[str, Any]:
        self.tell(kind, body, fds=fds, key=key)
        wanted = key or str(self._key)
        assert self._control is not None
        while True:
            came = seqpacket.receive(self._control)
            assert came is not None, f"It hung up.\n{self.log()}"
            if came[0].key == wanted:
                return came[0].body

    def tell(self, kind: Any, body: Mapping[str, Any] | None = None, *, fds: Sequence[int] = (), key: str = "") -> None:
        assert self._control is not None
        self._key += 1
        seqpacket.send(self._control, ControlMessage(kind=kind, key=key or str(self._key), body=dict(body or {})), fds)


def read_instance(cli: Cli, service: str) -> dict[str, Any]:
    """Return the record of a service's first instance."""
    records = {record["name"]: record for record in json.loads(cli("services", "--json").stdout)}
    instance: dict[str, Any] = records[service]["instances"][0]
    return instance


def hold_port(host: str = "127.0.0.1") -> socket.socket:
    """Bind a port of the kernel's choice, and keep it from everybody but the server that is told its number.

    The socket does not listen: a server with ``SO_REUSEADDR`` binds the port beside it, listens, ends and comes again,
    while the kernel gives it neither to a connection nor to a socket that asks for any port. Close it when the server
    is gone for good.
    """
    (holder,) = _hold_ports(1, host)
    return holder


@contextmanager
def reserve_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Hold a port while a server uses it: see ``hold_port``."""
    with reserve_ports(1, host) as (port,):
        yield port


@contextmanager
def reserve_ports(count: int, host: str = "127.0.0.1") -> Iterator[list[int]]:
    """Hold so many ports in a row: programs take the next one for another server, or if the first is taken."""
    holders = _hold_ports(count, host)
    try:
        yield [int(holder.getsockname()[1]) for holder in holders]
    finally:
        for holder in holders:
            holder.close()


def _hold_ports(count: int, host: str) -> list[socket.socket]:
    others: list[socket.socket] = []  # kept until the end, so that the kernel does not choose them again
    try:
        while True:
            holders = [_bound_socket(host, 0)]
            first = int(holders[0].getsockname()[1])
            try:
                # One by one: those of a list that is not finished, as the next is taken, would be nobody's to close.
                holders.extend(_bound_socket(host, first + further) for further in range(1, count))
            except (OSError, OverflowError):  # somebody has one of them, or there is none
                others += holders
                continue
            if first not in _CHOSEN_BY_PROGRAMS:
                return holders
            others += holders
    finally:
        for other in others:
            other.close()


def _bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to a port that nobody else has, and that lets a server have it too."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError):
        listener.close()
        raise
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: before, it would let others hold it too
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return listener


def send_raw(port: int, request: bytes, *, timeout_s: float = PATIENCE_S) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as sock:
        sock.sendall(request)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer


def read_answer(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    came = b""
    while b"\r\n\r\n" not in came:
        piece = sock.recv(65536)
        assert piece, f"The connection ended after {came!r}."
        came += piece
    head, _, body = came.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        piece = sock.recv(1 << 20)
        assert piece, f"The connection ended after {len(body)} of {length} bytes."
        body += piece
    assert len(body) == length, f"More came than was asked for: {came[:2000]!r}"
    return int(first.split()[1]), headers, body


def infer_request(values: Sequence[float] = (1, 2)) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(values)], "data": list(values)}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = f"POST /v2/models/w/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
