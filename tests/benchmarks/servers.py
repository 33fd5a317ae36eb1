"""Servers that are measured: started on a port, waited for until they answer, weighed, and stopped wholly."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from scanflow import instance_messages
from tests.benchmarks.measure import NotMeasuredError, environment, pss_mib, run

READY_S = 120.0
STOP_S = 20.0
MB = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Probe:
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Server:
    port: int
    ready_s: float
    """From the start of the command to the first right answer, in seconds."""

    processes: Callable[[], list[psutil.Process]]
    """What runs for it now."""

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def memory_mb(self, word: str = "") -> float:
        """Return the memory of its processes that have ``word`` in their command line, shared pages counted once."""
        chosen = [running for running in self.processes() if word in " ".join(command_line(running))]
        return sum(pss_mib(process) for process in chosen) * 1024 * 1024 / MB


def cores() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the CPUs for a server of one core and those for its client; both the same on a machine of one."""
    cpus = sorted(os.sched_getaffinity(0))
    return (cpus[0],), (cpus[-1],)


def free_port() -> int:
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        return int(probe_socket.getsockname()[1])


def pin_command(command: Sequence[str | Path], cpus: Sequence[int]) -> list[str]:
    code = f"import os, sys; os.sched_setaffinity(0, {set(cpus)!r}); os.execvp(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", code, *map(str, command)]


def _spawn(
    command: Sequence[str | Path],
    folder: Path,
    variables: Mapping[str, str],
    log: Path,
    *,
    own_session: bool = False,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=own_session,
            pass_fds=pass_fds,
        )


@contextmanager
def start_server(
    command: Sequence[str | Path],
    folder: Path,
    *,
    port: int,
    probe: Probe,
    extra: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Iterator[Server]:
    mark = uuid.uuid4().hex
    log = folder / "server.log"
    own = environment(folder, {**(extra or {}), "SCANFLOW_BENCH_MARK": mark})
    began = time.perf_counter()
    try:
        process = _spawn(command, folder, own, log, own_session=True, pass_fds=pass_fds)
    except OSError as error:
        raise NotMeasuredError(str(error)) from error
    try:
        until_ready(port, probe, alive=lambda: process.poll() is None, log=log)
        ready_s = time.perf_counter() - began
        yield Server(port=port, ready_s=ready_s, processes=lambda: list_marked_processes(mark))
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        end(list_marked_processes(mark))
        process.wait()


@contextmanager
def alone(python: Path, program: Path, component: str, service: str, folder: Path, *, probe: Probe) -> Iterator[Server]:
    """Run ``component`` of ``program`` as the only node of a service, without a supervisor."""
    node = instance_messages.Node(name="model", implementation=f"app.py:{component}", file=str(program / "app.py"))
    desired = instance_messages.DesiredInstanceState(
        generation=1, revisions=(instance_messages.Revision(id="r1", nodes=(node,)),)
    )
    instance = folder / "instance"
    instance.mkdir()
    (folder / "desired.json").write_bytes(instance_messages.encode(desired))
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        port = int(listener.getsockname()[1])
        spec = instance_messages.InstanceSpec(
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
        (instance / "instance.json").write_bytes(instance_messages.encode(spec))
        command: list[str | Path] = [python, "-m", "scanflow_serving", instance]
        with start_server(command, folder, port=port, probe=probe, pass_fds=(listener.fileno(),)) as server:
            yield server


@contextmanager
def deploy_service(
    scanflow: Path, workflow: str, options: Sequence[str], folder: Path, *, probe: Probe, cpus: Sequence[int] = ()
) -> Iterator[Server]:
    mark, port = uuid.uuid4().hex, free_port()
    own = environment(folder, {"SCANFLOW_BENCH_MARK": mark})
    deploy = [str(scanflow), "deploy", f"app.py:{workflow}", "--port", str(port), *options]

    def list_own_processes() -> list[psutil.Process]:
        home = str(folder)
        return [
            process
            for process in psutil.process_iter()
            if _mark(process) == mark or any(word.startswith(home) for word in command_line(process))
        ]

    log = folder / "deploy.log"
    began = time.perf_counter()
    try:
        command = _spawn(pin_command(deploy, cpus) if cpus else deploy, folder, own, log)
        until_ready(port, probe, alive=lambda: command.poll() in {None, 0}, log=log)
        ready_s = time.perf_counter() - began
        if command.wait(READY_S) != 0:
            raise NotMeasuredError(f"scanflow deploy exited with {command.returncode}: {_last(log)}")
        yield Server(port=port, ready_s=ready_s, processes=list_own_processes)
        run([scanflow, "delete", workflow], folder, timeout_s=READY_S)
    finally:
        end(list_own_processes())


def until_ready(port: int, probe: Probe, *, alive: Callable[[], bool], log: Path) -> None:
    until, pause, seen = time.monotonic() + READY_S, threading.Event(), "no connection"
    while time.monotonic() < until:
        try:
            status, body = ask(port, probe)
        except OSError as error:
            seen = str(error)
        except http.client.HTTPException as error:
            seen = repr(error)
        else:
            if status == 200:
                return
            seen = f"{status} {body[:200]!r}"
        if not alive():
            break
        pause.wait(0.005)
    raise NotMeasuredError(f"it did not get ready: {seen}; {_last(log)}")


def _last(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])


def ask(port: int, probe: Probe, *, timeout_s: float = 60) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST" if probe.body else "GET", probe.path, probe.body or None, dict(probe.headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def list_marked_processes(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _mark(process) == mark]


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("SCANFLOW_BENCH_MARK")
    except (psutil.Error, OSError):
        return None


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.Error, OSError):
        return []


def end(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue
    psutil.wait_procs(processes, timeout=STOP_S)


def oip(name: str, values: Sequence[float]) -> bytes:
    tensor = {"name": name, "shape": [1, len(values)], "datatype": "FP32", "data": list(values)}
    return json.dumps({"inputs": [tensor]}).encode()
