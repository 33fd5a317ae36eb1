"""A copy of a service to measure candidates on: the service itself is never changed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from scanflow.app.application import Application
from scanflow.app.service import Service
from scanflow.app.serving import Batching, Serving
from scanflow.app.workflow import Workflow
from scanflow.backends.device_energy import EnergyMeter, list_own_devices
from scanflow.backends.service_change import Deployment, Sizing
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord
from scanflow.deployer.deployer_port import Deployer
from scanflow.errors import InvalidError, NotFoundError, UnavailableError
from scanflow.load.load_process import LoadGenerator, LoadPlan
from scanflow.processes.cpu_use import CpuUse
from scanflow.transport.clients import is_loopback, retry
from scanflow.tuning.candidates import Candidate
from scanflow.tuning.goals import Measurement

SUFFIX = "-tune"

WARM_UP_S = 0.5
"""Duration of the load after a change that is not counted."""

MAX_WARM_UP_REQUESTS = 200
"""Maximum number of requests of the warm-up."""

START_S = 90.0
"""How long the pods of a candidate may take to start. A cluster waits for capacity much longer than a search can."""

_CONNECT_S = 2.0

LoadOf = Callable[[ServiceRecord], LoadPlan]
"""Return a load on a service, without its duration."""


def build_copy(app: Application, workflow: Workflow) -> Application:
    """Build an application that serves the same graph under another name: without recording, scaling and backup."""
    names = {other.name for other in app.workflows}
    name = f"{workflow.name}{SUFFIX}"
    if name in names:
        raise InvalidError(f"{app.name!r} already has a workflow {name!r}, the name of the copy. Rename it.")
    nodes = [node.replace(scaling=None) if isinstance(node, Service) else node for node in workflow.nodes]
    serving = (workflow.serving or Serving()).replace(port=None, grpc_port=0, record=0.0, backup=None, keep_shape=False)
    return app.replace(workflows=(workflow.replace(name=name, nodes=nodes, serving=serving),), agents=())


@dataclass
class ServiceCopy:
    """A context: the copy is deployed with the first measurement, and deleted at the end."""

    where: Deployer
    app: Application
    """The application of the copy: see :func:`build_copy`."""

    load: LoadOf
    source: Path | None = None
    seconds: float = 3.0
    """Duration of one measurement."""

    on_cluster: bool = False
    """Whether its instances are pods. Each candidate is then deployed from nothing, as a change in place needs room for
    both, and has :data:`START_S` to start. From nothing, too, where it has GPUs: both would share their memory."""

    gpu_memory_bytes: int | None = None
    """Of a GPU, what each instance may take; None: as its workflow says."""

    count_energy: Callable[[set[str]], EnergyMeter] = EnergyMeter

    observe: ServiceObserver = lambda _progress: None
    _now: tuple[Candidate, int | None] | None = None

    @property
    def name(self) -> str:
        return self.app.workflows[0].name

    def __enter__(self) -> Self:
        if any(service.name == self.name for service in self.where.services(instances=False)):
            raise InvalidError(
                f"The service {self.name!r} already exists: another search is running, or was killed. If none is "
                f"running: scanflow delete {self.name}"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._delete()

    def _delete(self) -> None:
        with suppress(NotFoundError):
            self.where.delete(self.name)

    def measure(self, candidate: Candidate) -> Measurement:
        if (candidate, self.gpu_memory_bytes) != self._now:
            self._now = None
            deployment = self._build_deployment(candidate)
            if self.on_cluster or candidate.gpu:
                self._delete()
            if self.on_cluster:
                record = self._deploy_within(deployment, START_S)
                _wait_until_reachable(record.url, START_S)
            else:
                record = self.where.deploy(deployment, observe=self.observe)
            self._now = (candidate, self.gpu_memory_bytes)
            plan = replace(self.load(record), requests=MAX_WARM_UP_REQUESTS, duration_s=WARM_UP_S)
            with LoadGenerator(plan) as load:
                load.read_result()
        return self._measure_load(self.where.service(self.name))

    def _deploy_within(self, deployment: Deployment, seconds: float) -> ServiceRecord:
        """Deploy the copy, or delete it again if it is not ready in time, which ends the deployment too."""
        last = ""

        def observe(progress: Progress) -> None:
            nonlocal last
            last = progress.text
            self.observe(progress)

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self.where.deploy, deployment, observe=observe)
            try:
                return future.result(seconds)
            except TimeoutError:
                self._delete()
                raise UnavailableError(f"It was not ready within {seconds:g} s: {last}") from None
            except KeyboardInterrupt:
                self._delete()
                raise

    def _measure_load(self, record: ServiceRecord) -> Measurement:
        here = is_loopback(record.url)
        pids = [instance.pid for instance in record.instances if here and instance.pid is not None]
        before, began = CpuUse.read(pids), time.monotonic()
        energy = self.count_energy(list_own_devices(record))
        with LoadGenerator(replace(self.load(record), duration_s=self.seconds)) as load:
            result = load.read_result()
        used_j = energy.read_j()
        others = CpuUse.read(pids).compute_others(before, time.monotonic() - began) if pids else 0.0
        metrics = result.metrics()
        succeeded = metrics.requests - metrics.failed
        reason = max(result.reasons, key=lambda text: result.reasons[text]) if result.reasons else ""
        return Measurement(
            rate=metrics.rate,
            p50_s=metrics.p50_s,
            p90_s=metrics.p90_s,
            p99_s=metrics.p99_s,
            requests=metrics.requests,
            failed=metrics.failed,
            reason=reason,
            energy_j_per_1000=None if used_j is None or not succeeded else 1000 * used_j / succeeded,
            gpu_bytes=self._read_gpu_bytes() if record.shape.gpu else None,
            others=others,
        )

    def _read_gpu_bytes(self) -> int | None:
        """Return the most that the instances were each seen to hold of GPUs, added up."""
        instances = self.where.service(self.name).instances
        peaks = [use.peak_bytes for instance in instances for use in instance.devices if use.peak_bytes is not None]
        return sum(peaks) if peaks else None

    def _build_deployment(self, candidate: Candidate) -> Deployment:
        sizing = Sizing(
            instances=candidate.instances,
            cores=candidate.cores,
            gpu=candidate.gpu or None,
            gpu_memory_bytes=self.gpu_memory_bytes,
            affinity=candidate.affinity,
            threads=candidate.threads,
        )
        app = self.app
        if candidate.batch is not None:
            workflow = app.workflows[0]
            batching = Batching(max_size=candidate.batch)
            nodes = [
                node.replace(batching=batching) if isinstance(node, Service) and node.role == "MODEL" else node
                for node in workflow.nodes
            ]
            app = app.replace(workflows=(workflow.replace(nodes=nodes),))
        return Deployment(app, self.name, sizing=sizing, source=self.source, is_copy=True)


def _wait_until_reachable(url: str, seconds: float) -> None:
    """Wait until a Service takes connections. Nodes learn of it a moment after its pods are ready, and a connection
    attempt from before that is never answered.

    Raises:
        UnavailableError: it did not in time.
    """
    address = urlsplit(url)

    def connect() -> None:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname, port), timeout=_CONNECT_S).close()

    try:
        retry(connect, on=lambda error: isinstance(error, OSError), timeout_s=seconds)
    except OSError as error:
        raise UnavailableError(f"{url} did not accept a connection within {seconds:g} s: {error}") from error
