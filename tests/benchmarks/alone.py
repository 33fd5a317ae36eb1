"""One instance without a supervisor: what the model server itself takes to start, and to be there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scanflow import wire
from tests.benchmarks.servers import Probe, Server, started


@contextmanager
def alone(python: Path, program: Path, component: str, service: str, folder: Path, *, probe: Probe) -> Iterator[Server]:
    node = wire.Node(name="model", implementation=f"app.py:{component}", file=str(program / "app.py"))
    desired = wire.Desired(generation=1, revisions=(wire.Revision(id="r1", nodes=(node,)),))
    instance = folder / "instance"
    instance.mkdir()
    (folder / "desired.json").write_bytes(wire.encode(desired))
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        port = int(listener.getsockname()[1])
        spec = wire.InstanceSpec(
            service=service,
            app="bench",
            team="bench",
            instance="i1",
            folder=str(instance),
            desired=str(folder / "desired.json"),
            address=f"127.0.0.1:{port}",
            app_dir=str(program),
            listen_fd=listener.fileno(),
        )
        (instance / "instance.json").write_bytes(wire.encode(spec))
        command: list[str | Path] = [python, "-m", "scanflow_serving", instance]
        with started(command, folder, port=port, probe=probe, pass_fds=(listener.fileno(),)) as server:
            yield server
