"""A service of its own for each of the cluster's tests of online workflows."""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import Progress
from scanflow.deployer import EmbeddedDeployer
from scanflow.deployer.direct_predictions import predict
from scanflow.errors import ScanflowError
from scanflow.knowledge import KnowledgeBase, open_knowledge
from scanflow.knowledge.model_cache import ModelCache
from scanflow.settings import Settings
from tests.cluster.drains import evict
from tests.cluster.repeated import repeat_step

MODEL = """
class Multiply:
    def __init__(self, by=2):
        if by < 0:
            raise ValueError("it cannot multiply by less than nothing")
        self.by = by

    def predict(self, X):
        kept = b"x" * int(X.max()) if X.max() > 10**6 else b""
        return X * self.by


def _load_pyfunc(path):
    with open(path) as file:
        return Multiply(int(file.read()))
"""

MLMODEL = "flavors: {python_function: {loader_module: multiply, data: by.txt}}\n"
KIND = {"deployment": "Deployment", "seldon": "SeldonDeployment", "kserve": "InferenceService"}


def register_factors(knowledge: KnowledgeBase, folder: Path, app: str, factors: Iterable[int]) -> None:
    """Register a version of the model ``multiply`` for each factor; their files are made in a folder."""
    for by in factors:
        files = folder / f"by-{by}"
        files.mkdir()
        (files / "MLmodel").write_text(MLMODEL, encoding="utf-8")
        (files / "by.txt").write_text(str(by), encoding="utf-8")
        knowledge.register_model("multiply", files, app=app, team="tests")


def get_tracker_url(cluster: Cluster, namespace: str) -> str:
    """Return the address of an environment's own tracker that reaches it from outside the cluster."""
    service = cluster.get("Service", "tracker", namespace)
    assert service is not None
    return f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"


def doubles(answer: Callable[[], Any]) -> bool:
    """Return whether a service answers, and with twice the number 1."""
    try:
        return bool(answer() == [2])
    except ScanflowError:
        return False


class Place:
    """An application of its own on the cluster, and the deployer that serves it there."""

    def __init__(self, folder: Path, cluster: Cluster, *, tracker: bool = False) -> None:
        self.name, self.cluster, self.tracker = f"online{uuid.uuid4().hex[:6]}", cluster, tracker
        self.namespace = derive_namespace(self.name, "tests")
        self.folder, self.seen = folder, list[Progress]()
        (folder / "multiply.py").write_text(MODEL, encoding="utf-8")
        settings = Settings(home=folder / "home")
        self.backend = Kubernetes(settings, lambda _: ModelCache(folder / "models", self.knowledge))
        self.deployer = EmbeddedDeployer(settings, backend=self.backend)
        self.closing = [self.backend]

    def copy_for_another_server(self) -> Place:
        """Return the same application as another server sees it."""
        place = copy.copy(self)
        settings = Settings(home=self.folder / f"home{len(self.closing)}")
        place.backend = Kubernetes(settings, lambda _: ModelCache(self.folder / "models", self.knowledge))
        place.deployer, place.seen = EmbeddedDeployer(settings, backend=place.backend), []
        self.closing.append(place.backend)
        return place

    @property
    def tracker_uri(self) -> str:
        """The address of the application's own tracker that reaches it from outside the cluster."""
        return get_tracker_url(self.cluster, self.namespace)

    @property
    def tracker_token(self) -> str | None:
        """The token that its pods have."""
        return self.backend.environments().read_tracker_token(self.app())

    def knowledge(self) -> Any:
        """Return the application's own tracker."""
        return open_knowledge(self.folder / "home", self.tracker_uri, connect_timeout_s=30, token=self.tracker_token)

    def register(self, *factors: int) -> None:
        """Have the tracker, once it is ready, and in it a version of the model ``multiply`` for each factor."""
        environments, app = self.backend.environments(), self.app(model="models:/multiply/1")
        environments.ensure(app)
        environments.wait_for_tracker(app, within_s=90)
        register_factors(self.knowledge(), self.folder, self.name, factors)

    def app(self, by: int = 2, *, model: str | None = None, **service: Any) -> sf.Application:
        if model is None:
            service |= {"implementation": "multiply.py:Multiply", "parameters": {"by": by}}
        node = sf.Service(name="multiply", model=model, **service)
        workflow = sf.Workflow(name=self.name, type="online", nodes=[node])
        tracker = sf.Tracker() if self.tracker else None
        return sf.Application(
            name=self.name, team="tests", app_dir=str(self.folder), workflows=[workflow], tracker=tracker
        )

    def deploy(self, *args: Any, **fields: Any) -> Any:
        return self.deployer.deploy(Deployment(self.app(*args, **fields)), observe=self.seen.append)

    def change(self, **fields: Any) -> Any:
        return self.deployer.change(self.name, ServiceChange(**fields), observe=self.seen.append)

    def answer(self, number: int = 1) -> Any:
        (output,) = predict(self.deployer, self.name, [number]).outputs.values()
        return output.tolist()

    def pods(self) -> dict[str, Manifest]:
        """Return the service's pods that are not on their way out, by name."""
        pods, _ = self.cluster.find("Pod", self.namespace, labels=f"scanflow.dev/service={self.name}")
        return {pod["metadata"]["name"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}

    def evict(self, pod: str) -> None:
        """Ask for a pod's end as a drain does."""
        evict(self.cluster, pod, self.namespace)

    @contextmanager
    def run_controller(self) -> Iterator[list[str]]:
        """Do what the server's controller of services does; give what it tells."""
        messages: list[str] = []
        looks: list[str] = []

        def look() -> None:
            began = time.monotonic()
            record = self.deployer.service(self.name)
            self.deployer.reconcile(record, observe=lambda progress: messages.append(progress.text))
            looks.append(f"{record.state} {time.monotonic() - began:.1f} s")

        try:
            with repeat_step(look, 1.0):
                yield messages
        except AssertionError as error:
            error.add_note(f"Looks: {looks[-30:]}\nTold: {messages}")
            raise

    def close(self) -> None:
        try:
            if any(service.name == self.name for service in self.deployer.services()):
                self.deployer.delete(self.name, observe=self.seen.append)
        finally:
            self.cluster.delete("Namespace", self.namespace)
            for place in self.closing:
                place.cluster.close()

    @contextmanager
    def load(self) -> Iterator[list[str]]:
        """Ask all the time, by one connection that is kept; give what failed."""
        failed: list[str] = []
        self.asked = 0
        with self.deployer.connect(self.name) as client:

            def ask() -> None:
                try:
                    client.infer(self.name, [1])
                except Exception as error:  # noqa: BLE001 - whatever it is, it counts
                    failed.append(repr(error))
                self.asked += 1

            with repeat_step(ask, 0.02):
                yield failed
