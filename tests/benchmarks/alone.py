"""One instance without a supervisor: what the model server itself takes to start, and to be there."""

from __future__ import annotations

import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scanflow import wire
from tests.benchmarks.measure import environment
from tests.benchmarks.servers import Probe, Server, end, marked, until_ready


@contextmanager
def alone(python: Path, program: Path, component: str, service: str, folder: Path, *, probe: Probe) -> Iterator[Server]:
    """Run ``component`` of ``program`` (``app.py`` and the name of its class) as the only node of a service.

    Raises:
        NotMeasuredError: it ended, or was not ready within ``READY_S``.
    """
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
        mark, log = uuid.uuid4().hex, folder / "instance.log"
        own = environment(folder, {"SCANFLOW_BENCH_MARK": mark})
        began = time.perf_counter()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [python, "-m", "scanflow_serving", instance],
                cwd=folder,
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(listener.fileno(),),
            )
        try:
            until_ready(port, probe, alive=lambda: process.poll() is None, log=log)
            ready_s = time.perf_counter() - began
            yield Server(port=port, ready_s=ready_s, processes=lambda: marked(mark))
        finally:
            process.kill()
            process.wait()
            end(marked(mark))
