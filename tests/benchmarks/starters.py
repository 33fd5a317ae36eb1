"""How each server under test is started, in an empty folder: ours by its own command, and the others."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.benchmarks.measure import Places, run
from tests.benchmarks.servers import Probe, Server, cores, deploy_service, free_port, pin_command, start_server

PROGRAMS = Path(__file__).parent / "serving"

Starter = Callable[[Path], AbstractContextManager[Server]]
"""Starts a server in a folder, and stops it at the end of the context."""


def start_scanflow(
    places: Places, name: str, options: Sequence[str], probe: Probe, *, cpus: Sequence[int] = ()
) -> Starter:
    @contextmanager
    def start(folder: Path) -> Iterator[Server]:
        shutil.copytree(PROGRAMS / name, folder, dirs_exist_ok=True)
        with deploy_service(places.ours / "scanflow", name, options, folder, probe=probe, cpus=cpus) as server:
            yield server

    return start


def starlette(places: Places, probe: Probe, *, cpus: Sequence[int] | None = None) -> Starter:
    @contextmanager
    def start(folder: Path) -> Iterator[Server]:
        shutil.copy(PROGRAMS / "peers" / "starlette_app.py", folder)
        port = free_port()
        options = ["--port", str(port), "--loop", "uvloop", "--http", "httptools", "--no-access-log"]
        command: list[str | Path] = [places.peer_python, "-m", "uvicorn", "starlette_app:app", *options]
        where = cores()[0] if cpus is None else cpus
        with start_server(pin_command(command, where) if where else command, folder, port=port, probe=probe) as server:
            yield server

    return start


def mlserver(places: Places, probe: Probe) -> Starter:
    @contextmanager
    def start(folder: Path) -> Iterator[Server]:
        shutil.copytree(PROGRAMS / "peers" / "mlserver", folder, dirs_exist_ok=True)
        port = free_port()
        settings = {
            "http_port": port,
            "grpc_port": free_port(),
            "metrics_port": free_port(),
            "host": "127.0.0.1",
            "parallel_workers": 0,
            "debug": False,
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        command = pin_command([places.servers / "mlserver", "start", "."], cores()[0])
        with start_server(command, folder, port=port, probe=probe) as server:
            yield server

    return start


def mlflow(places: Places, probe: Probe) -> Starter:
    @contextmanager
    def start(folder: Path) -> Iterator[Server]:
        run([places.servers / "python", PROGRAMS / "peers" / "mlflow_model.py", folder / "model"], folder)
        port = free_port()
        options = ["-m", "model", "-p", str(port), "--env-manager", "local"]
        command = pin_command([places.servers / "mlflow", "models", "serve", *options], cores()[0])
        own = {"PATH": f"{places.servers}:{os.environ['PATH']}"}  # it starts uvicorn by name
        with start_server(command, folder, port=port, probe=probe, extra=own) as server:
            yield server

    return start
