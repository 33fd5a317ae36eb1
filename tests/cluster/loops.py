"""The closed loop on a cluster: a server on this machine, which pods reach, and all else in pods."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import scanflow as sf
from scanflow.agent.agent_records import Event
from scanflow.app.application import Application
from scanflow.application_loading import load_application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.environment.tracker_manifests import read_tracker_token
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.knowledge import KnowledgeBase, open_knowledge
from scanflow.knowledge.model_cache import ModelCache
from scanflow.processes.ports import choose_port
from scanflow.reports.loop_events import select_loop_events
from scanflow.settings import Settings
from tests.cluster.online import get_tracker_url
from tests.waiting import wait_until

READY_S = 60.0
PATIENCE_S = 400.0
_PAUSE = threading.Event()


class Loop:
    """An application of its own on the cluster, with a tracker, and a server on this machine that acts for it."""

    def __init__(self, cluster: Cluster, folder: Path, app: Path) -> None:
        self.cluster, self.folder, self.path = cluster, folder, app
        self.app: Application = load_application(str(app))[0]
        self.namespace = derive_namespace(self.app.name, self.app.team)
        self.service = next(workflow.name for workflow in self.app.workflows if workflow.type == "online")
        self.home = folder / "home"
        self.environ: dict[str, str] = {}
        self._seen = 0

    @contextmanager
    def running(self) -> Iterator[sf.Client]:
        """Make the environment, run the server inside, and remove all of it."""
        settings = Settings(home=self.home, backend="kubernetes")
        backend = Kubernetes(settings, lambda _: ModelCache(self.folder / "models", self.knowledge))
        environments = backend.environments()
        try:
            environments.ensure(self.app)
            environments.wait_for_tracker(self.app, within_s=120)
            with self._server() as client:
                yield client
        finally:
            self._clean(backend)

    @contextmanager
    def _server(self) -> Iterator[sf.Client]:
        host = address_for_pods(self.cluster)
        port, token = choose_port(None, host=host, taken=(), what="HTTP"), f"scanflow_{secrets.token_urlsafe(32)}"
        place = {"SCANFLOW_SERVER_HOST": host, "SCANFLOW_SERVER_PORT": str(port), "SCANFLOW_BEHIND_PROXY": "1"}
        own = {
            "SCANFLOW_HOME": str(self.home),
            "SCANFLOW_BACKEND": "kubernetes",
            "SCANFLOW_TRACKER_URI": self.tracker(),
            "MLFLOW_TRACKING_TOKEN": self.tracker_token(),
        }
        self.environ = {**os.environ, **own, "SCANFLOW_URL": f"http://{host}:{port}", "SCANFLOW_TOKEN": token}
        environ = {**os.environ, **own, **place, "SCANFLOW_SERVER_TOKEN": token}
        log = (self.folder / "server.log").open("wb")
        with (
            log,
            subprocess.Popen([sys.executable, "-m", "scanflow_server"], env=environ, stdout=log, stderr=log) as server,
        ):
            try:
                client = sf.Client(self.environ["SCANFLOW_URL"], token=token, progress=False)
                wait_until(
                    lambda: server.poll() is not None or client.server.is_ready()[0],
                    "the server is ready",
                    patience_s=READY_S,
                )
                yield client
            finally:
                server.terminate()

    def tracker(self) -> str:
        """Return the tracker's address from outside the cluster."""
        return get_tracker_url(self.cluster, self.namespace)

    def knowledge(self) -> KnowledgeBase:
        return open_knowledge(self.home, self.tracker(), connect_timeout_s=30, token=self.tracker_token())

    def tracker_token(self) -> str:
        """Return the token that the environment's pods have for it."""
        return read_tracker_token(self.cluster, self.app, KubernetesSettings.from_environment()) or ""

    def scanflow(self, *words: str, timeout_s: float = 400) -> str:
        """Run a command as a user does."""
        return self.program("-m", "scanflow_client", *words, timeout_s=timeout_s)

    def program(self, *words: str, timeout_s: float = 400) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.path.parent, env=self.environ, capture_output=True, text=True, timeout=timeout_s
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def wait_for(
        self, client: sf.Client, wanted: str, *, again: Mapping[str, Callable[[], object]] | None = None
    ) -> None:
        """Return once the agents have told it; ``again``: what is done whenever they tell something else."""
        give_up, seen = time.monotonic() + PATIENCE_S, self._seen
        received: list[Event] = []
        while not any(event.type == wanted for event in received):
            received = client.events_so_far(self._seen, app=self.app.name)
            failed = [event for event in received if event.type == "run.failed"]
            assert not failed, failed
            for event in received:
                if event.type in (again or {}) and event.id > seen:
                    (again or {})[event.type]()
            seen = max([seen, *(event.id for event in received)])
            assert time.monotonic() < give_up, f"Waited in vain for {wanted}: {list_event_kinds(received)}"
            _PAUSE.wait(0.5)
        self._seen = seen

    def _clean(self, backend: Kubernetes) -> None:
        try:
            backend.environments().delete(self.app)
        finally:
            self.cluster.delete("Namespace", self.namespace)
            backend.cluster.close()


def list_event_kinds(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Return the story: who did what."""
    return [(event.agent, event.kind) for event in select_loop_events(events)]


def address_for_pods(cluster: Cluster) -> str:
    """Return this machine's address on the way to the cluster."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((urlsplit(cluster.address).hostname, 443))
        return str(way.getsockname()[0])
