"""The program of an instance: ``python -m scanflow_serving FOLDER``, where ``FOLDER`` holds ``instance.json``.

It sets CPU and memory affinity and the sizes of thread pools before it imports anything that starts threads.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from scanflow.errors import ScanflowError, UsageError
from scanflow.files.open_files import raise_open_file_limit
from scanflow.http.tls import create_tls
from scanflow.instance_messages import DesiredInstanceState, InstanceSpec, Limits, decode, read_token
from scanflow.processes import pinning
from scanflow.processes.cpu_priority import take_short_slices, yield_cpu
from scanflow_serving.instance_secrets import secrets

if TYPE_CHECKING:
    from scanflow_serving.grpc_api import GrpcApi
    from scanflow_serving.instance_http import HttpServer
    from scanflow_serving.routes import ServingApplication

UNHEALTHY: Final = 70
"""Exit code: too many threads hang; the instance should be replaced."""

CONFIGURATION: Final = 78
"""Exit code: the configuration is invalid; ``failure.json`` says why."""

_GRACE_S: Final = 2.0

_log = logging.getLogger(__name__)


def main(folder: Path) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        spec = decode(InstanceSpec, (folder / "instance.json").read_bytes())
        os.environ.update(spec.threads)
        secrets.set_variables(spec.secrets, Path(spec.app_dir), spec.masked)
        about_memory = pinning.apply(spec.cpus, spec.memory_nodes)
        if about_memory:
            _log.info(about_memory)
        raise_open_file_limit()
        token = read_token(spec.auth, Path(spec.app_dir))
    except (ScanflowError, OSError) as error:
        return _fail(folder, error)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(spec, folder, token))


async def _serve(spec: InstanceSpec, folder: Path, token: str | None) -> int:
    from scanflow_serving.asgi import HttpApi
    from scanflow_serving.control import Control
    from scanflow_serving.instance_http import HttpServer
    from scanflow_serving.routes import ServingApplication

    loop = asyncio.get_running_loop()
    shutdown = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shutdown.set)
    application = ServingApplication(spec, loop=loop, on_unhealthy=shutdown.set)
    limits = spec.limits
    named = urlsplit(f"//{spec.address}").hostname or spec.host
    hosts = (spec.host, named, *os.environ.get("SCANFLOW_ALLOWED_HOSTS", "").replace(",", " ").split())
    api = HttpApi(application, max_request_bytes=limits.max_request_bytes, hosts=hosts, token=token)
    http = HttpServer(api, age_s=limits.connection_age_s, drain_idle_s=spec.drain_idle_s)
    control = Control(loop, folder / "control", application, http, shutdown.set)
    try:
        control.start()
        desired = Path(spec.desired).read_bytes()  # noqa: ASYNC240 - nothing is served yet
        await application.apply(decode(DesiredInstanceState, desired))
        grpc = await start_grpc(application, spec, token)
        if spec.listen_fd >= 0:
            http.listen("", socket.socket(fileno=spec.listen_fd), create_tls(spec.tls, spec.clients))
    except (ScanflowError, OSError) as error:
        control.close()
        http.close()
        return _fail(folder, error)
    take_short_slices(inherited=True)  # only now: serving instances have priority while this one loads
    gc.collect()
    gc.freeze()  # loaded objects stay: exclude them from garbage collection
    _log.info("ready: %s of %s", spec.instance, spec.service)

    await shutdown.wait()
    code = UNHEALTHY if application.engine.unhealthy else 0
    if application.engine.broken:
        _write_failure(folder, application.engine.broken)
    application.draining = True
    await drain(http, grpc, limits)
    control.close()
    await application.close()
    return code


async def drain(http: HttpServer, grpc: GrpcApi | None, limits: Limits) -> None:
    """Stop accepting connections, and answer the requests that were read."""
    within_s = max(limits.deadline_s, http.drain_idle_s) + _GRACE_S
    stopping = None if grpc is None else asyncio.create_task(grpc.stop())
    if not await http.drain(within_s):
        _log.warning("%d connections were cut off after %.0f s", len(http), within_s)
    if stopping is not None:
        await stopping
    yield_cpu(os.getpid(), True)  # it serves nobody any more, and cleaning up takes a while
    http.close()


async def start_grpc(application: ServingApplication, spec: InstanceSpec, token: str | None) -> GrpcApi | None:
    """Start the gRPC API if it is configured. Its library takes 10 MB, so it is imported late."""
    if spec.grpc_port is None:
        return None
    from scanflow_serving.grpc_api import GrpcApi

    tls = create_tls(spec.tls, spec.clients)
    server = GrpcApi(application, spec.host, spec.grpc_port, spec.limits, service=spec.service, token=token, tls=tls)
    await server.start()
    application.pinning.exclude()
    return server


def _fail(folder: Path, error: Exception) -> int:
    _log.error("It cannot be started: %s", secrets.mask(str(error)))
    _write_failure(folder, str(error))
    return CONFIGURATION if isinstance(error, UsageError) else 1


def _write_failure(folder: Path, reason: str) -> None:
    draft = folder / "failure.json.part"
    draft.write_text(json.dumps({"error": secrets.mask(reason)}), encoding="utf-8")
    draft.rename(folder / "failure.json")
