"""The program of an instance in a pod, without a supervisor: ``python -m scanflow_serving.pod FOLDER``.

``FOLDER`` (a ConfigMap) holds ``instance.json`` and ``desired.json``. Registered models are fetched first, in a process
of their own, from the tracker that ``MLFLOW_TRACKING_URI`` names. It listens on all of the pod's addresses: who may
connect is the cluster's matter (Services, NetworkPolicies, the Gateway), so that any ``Host`` is answered, unless
``SCANFLOW_ALLOWED_HOSTS`` names some. Pages of other origins are refused as everywhere, and ``Serving.auth`` asks for
its token. Metrics and state are on a port of their own: see :mod:`scanflow_serving.management`.

SIGTERM makes it unready; for ``linger_s`` it takes connections on, each for one answer that says ``Connection: close``,
since proxies hear of its end later than it does. Then it answers what it has read, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from scanflow.errors import ScanflowError, UsageError
from scanflow.files.open_files import raise_open_file_limit
from scanflow.http.security import ANY_HOST
from scanflow.http.tls import create_tls
from scanflow.instance_messages import DesiredInstanceState, InstanceSpec, ModelFiles, decode, read_token
from scanflow_serving.instance_secrets import secrets
from scanflow_serving.main import CONFIGURATION, UNHEALTHY, drain, start_grpc

_BACKLOG: Final = 1024
_log = logging.getLogger(__name__)


def main(folder: Path, environ: os._Environ[str] = os.environ) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        spec, desired = read_configuration(folder, environ.get("POD_NAME", socket.gethostname()))
        environ.update(spec.threads)
        secrets.set_variables(spec.secrets, Path(spec.app_dir), spec.masked)
        raise_open_file_limit()
        token = read_token(spec.auth, Path(spec.app_dir))
        desired = fetch_models(desired, lambda: _open_fetcher(Path(spec.folder), environ.get("MLFLOW_TRACKING_URI")))
    except (ScanflowError, OSError) as error:
        return _fail(error)
    hosts = environ.get("SCANFLOW_ALLOWED_HOSTS", "").replace(",", " ").split() or [ANY_HOST]
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(spec, desired, token, hosts))


def read_configuration(folder: Path, instance: str) -> tuple[InstanceSpec, DesiredInstanceState]:
    """Read the configuration from a mounted folder for the pod of that name.

    CPUMEMPIN pins threads to the CPUs that the kubelet assigned, which are known only inside the pod.
    """
    spec = decode(InstanceSpec, (folder / "instance.json").read_bytes())
    cpus = tuple(sorted(os.sched_getaffinity(0))) if spec.pin_threads else ()
    return replace(spec, instance=instance, cpus=cpus), decode(
        DesiredInstanceState, (folder / "desired.json").read_bytes()
    )


def fetch_models(
    desired: DesiredInstanceState, open_fetcher: Callable[[], Callable[[str], ModelFiles]]
) -> DesiredInstanceState:
    """Fetch the registered models, and return the revisions with their local files."""
    if not any(node.model for revision in desired.revisions for node in revision.nodes):
        return desired
    fetch = open_fetcher()
    revisions = tuple(
        replace(
            revision,
            nodes=tuple(
                node
                if node.model is None
                else replace(node, model=fetch(f"models:/{node.model.name}/{node.model.version}"))
                for node in revision.nodes
            ),
        )
        for revision in desired.revisions
    )
    return replace(desired, revisions=revisions)


def _open_fetcher(home: Path, tracker: str | None) -> Callable[[str], ModelFiles]:
    from scanflow.knowledge.registry_subprocess import RegistrySubprocess

    if not tracker:
        raise UsageError(
            "The service has a registered model, but MLFLOW_TRACKING_URI names no tracker to fetch it from."
        )
    return RegistrySubprocess(home, tracker).fetch


async def _serve(spec: InstanceSpec, desired: DesiredInstanceState, token: str | None, hosts: list[str]) -> int:
    from scanflow_serving.asgi import HttpApi
    from scanflow_serving.instance_http import HttpServer
    from scanflow_serving.management import Management
    from scanflow_serving.routes import ServingApplication

    loop = asyncio.get_running_loop()
    shutdown = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shutdown.set)
    application = ServingApplication(spec, loop=loop, on_unhealthy=shutdown.set)
    most = spec.limits.max_request_bytes
    api = HttpApi(application, max_request_bytes=most, hosts=hosts, token=token)
    http = HttpServer(api, age_s=spec.limits.connection_age_s, drain_idle_s=spec.drain_idle_s)
    management_api = HttpApi(Management(application), max_request_bytes=0, hosts=[ANY_HOST])
    management = HttpServer(management_api, age_s=0, drain_idle_s=0)
    try:
        management.listen("", _create_listener(spec.host, spec.management_port))
        await application.apply(desired)
        grpc = await start_grpc(application, spec, token)
        http.listen("", _create_listener(spec.host, spec.http_port), create_tls(spec.tls, spec.clients))
    except (ScanflowError, OSError) as error:
        management.close()
        http.close()
        return _fail(error)
    gc.collect()
    gc.freeze()  # loaded objects stay: exclude them from garbage collection
    _log.info("ready: %s of %s", spec.instance, spec.service)

    await shutdown.wait()
    code = UNHEALTHY if application.engine.unhealthy else 0
    application.draining = True
    if not code:
        http.leave()
        await asyncio.sleep(spec.linger_s)
    await drain(http, grpc, spec.limits)
    management.close()
    await application.close()
    _log.info("ended: %s of %s", spec.instance, spec.service)
    return code


def _create_listener(host: str, port: int) -> socket.socket:
    listener = socket.create_server(
        (host, port), backlog=_BACKLOG, family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )
    listener.setblocking(False)
    return listener


def _fail(error: Exception) -> int:
    """Log an error, and write it to the pod's termination message."""
    reason = secrets.mask(str(error))
    _log.error("It cannot be started: %s", reason)
    with contextlib.suppress(OSError):
        Path("/dev/termination-log").write_text(f"{reason}\n", encoding="utf-8")
    return CONFIGURATION if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("The cluster starts this program. Use instead: scanflow deploy")
    status = main(Path(sys.argv.pop(1)).absolute())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of components that hang must not keep the process
