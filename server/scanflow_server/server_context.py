"""The state that the parts of a server share: created once at the start, and injected into every route."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request

from scanflow.app.application import Application
from scanflow.backends.agent_hosting import AgentBackend
from scanflow.backends.device_claims import HomeDevices
from scanflow.deployer.embedded import DEFAULT, EmbeddedDeployer
from scanflow.errors import UnsupportedError
from scanflow.files.secret_sources import get_secret_variable
from scanflow.knowledge.registry_subprocess import RegistrySubprocess
from scanflow.names import build_slug
from scanflow.processes.background_jobs import Job
from scanflow_server.background_reads import BackgroundReads
from scanflow_server.change_notifier import ChangeNotifier
from scanflow_server.heartbeats import Heartbeats
from scanflow_server.request_shares import RequestShares
from scanflow_server.server_settings import ServerSettings
from scanflow_server.service_history import ServiceHistory
from scanflow_server.store.base import Store, open_store
from scanflow_server.store.keys import compute_fingerprint
from scanflow_server.stream_limits import StreamLimit


@dataclass(slots=True)
class ServerContext:
    settings: ServerSettings
    store: Store
    deployer: EmbeddedDeployer
    agents: AgentBackend
    """The backend that hosts agents."""

    store_notifier: ChangeNotifier
    """Notifies of changes of the store."""

    work_notifier: ChangeNotifier
    """Notifies of work for controllers."""

    streams: StreamLimit
    requests: RequestShares
    token_notifier: ChangeNotifier = field(default_factory=ChangeNotifier)
    """Notifies of changes of tokens, of agents and of persons who sign in."""

    clock: Callable[[], float] = time.time
    shutdown: threading.Event = field(default_factory=threading.Event)
    """Set at shutdown: long waits stop."""

    heartbeats: Heartbeats = field(default_factory=lambda: Heartbeats(0.0))
    service_history: ServiceHistory = field(default_factory=ServiceHistory)
    background_reads: BackgroundReads = field(init=False)
    """What pages read from MLflow."""

    devices: HomeDevices = field(init=False)
    """The GPUs of this machine, and who holds which."""

    started: float = 0.0
    url: str = ""
    _time_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _last_time: float = 0.0
    _registries: dict[str | None, RegistrySubprocess] = field(default_factory=dict, repr=False)
    _registries_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.background_reads = BackgroundReads(self.store_notifier.notify)
        self.devices = HomeDevices(self.settings.home)

    @property
    def public_url(self) -> str:
        return self.settings.public_url or self.url

    def get_unique_time(self) -> float:
        """Return the current time, strictly later than any returned before: it orders commands."""
        with self._time_lock:
            self._last_time = max(self.clock(), math.nextafter(self._last_time, math.inf))
            return self._last_time

    def find_model(self, model: str, tracker: str | None, *, team: str) -> None:
        """Find a team's model version in a tracker's registry (None: the default tracker's); NotFoundError: there is
        none."""
        uri = tracker or self.settings.library.tracker_uri
        with self._registries_lock:  # one process for each tracker, which serves one request at a time
            registry = self._registries.setdefault(uri, RegistrySubprocess(self.settings.home, uri))
            registry.find(model, team)

    def check_backend(self, app: Application) -> None:
        """Refuse an application of another backend, unless this server's was set explicitly.

        Raises:
            UnsupportedError: names both.
        """
        if self.settings.library.backend is None and app.backend not in {None, DEFAULT}:
            raise UnsupportedError(
                f"The application {app.name!r} uses the backend {app.backend!r}, but this server uses {DEFAULT!r}. "
                f"Start the server with that backend: scanflow --backend {app.backend} up"
            )

    def get_run_job(self, run: str, drive: int) -> Job:
        return Job(self.settings.folder / "runs" / run / str(drive))

    def get_operation_job(self, id: str, part: str = "") -> Job:
        """Return the job of an action's driver; of several of one action, that of ``part``."""
        name = id if build_slug(id) == id else compute_fingerprint(id)  # agents choose their actions' ids
        return Job(self.settings.folder / "operations" / (f"{name}.{part}" if part else name))

    @property
    def child_settings(self) -> dict[str, Any]:
        own = {"home", "backend", "tracker_uri", "slots", "max_fan_out", "tls", "tls_cert", "tls_key"}
        return self.settings.library.model_copy(update={"home": self.settings.home}).model_dump(
            mode="json", include=own
        )

    @property
    def environ(self) -> dict[str, str]:
        library = self.settings.library
        variables = {"SCANFLOW_HOME": str(self.settings.home)}
        if library.tracker_uri is not None:
            variables["SCANFLOW_TRACKER_URI"] = library.tracker_uri
        # Secrets are the server's alone; the others would make a step a client of some server.
        own = (
            "DATABASE_URL",
            "SERVER_HOST",
            "SERVER_PORT",
            "SERVER_LEASE",
            "SERVER_TOKEN",
            "TRACKER_TOKEN",
            "URL",
            "TOKEN",
        )
        hidden = {f"SCANFLOW_{name}" for name in own}
        if self.settings.sign_in is not None and self.settings.sign_in.client_secret is not None:
            hidden.add(get_secret_variable(self.settings.sign_in.client_secret.get_secret_value()))
        return {**{name: value for name, value in os.environ.items() if name not in hidden}, **variables}


def make_context(settings: ServerSettings, *, clock: Callable[[], float] = time.time) -> ServerContext:
    store_notifier, work_notifier = ChangeNotifier(), ChangeNotifier()
    deployer = EmbeddedDeployer(settings.library.model_copy(update={"home": settings.home}))
    return ServerContext(
        settings=settings,
        store=open_store(settings.database, on_change=store_notifier.notify),
        deployer=deployer,
        agents=deployer.backend.agents(ended=work_notifier.notify),
        store_notifier=store_notifier,
        work_notifier=work_notifier,
        streams=StreamLimit(settings.max_streams),
        requests=RequestShares(settings.max_requests),
        clock=clock,
        started=clock(),
        heartbeats=Heartbeats(clock()),
    )


def make_driver_command(job: Job) -> list[str]:
    """Return the command of the process that drives a run or changes a service."""
    return [sys.executable, "-P", "-m", "scanflow_server.driver", str(job.path)]


async def _get_context(request: Request) -> ServerContext:  # FastAPI calls functions that are not async in a thread
    context: ServerContext = request.app.state.context
    return context


ContextDep = Annotated[ServerContext, Depends(_get_context)]
"""The dependency of routes on the server's context."""
