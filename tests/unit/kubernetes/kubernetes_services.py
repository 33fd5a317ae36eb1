"""Services on a cluster in memory, with a test's word for what its controllers and kubelets would do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.code_configmap import CodeConfigMap, build_code
from scanflow.backends.kubernetes.environment.apply import Environments
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.list_cache import ListCache
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from scanflow.backends.kubernetes.online.object_drift import LiveObjects
from scanflow.backends.kubernetes.online.service_backend import KubernetesServices
from scanflow.backends.kubernetes.pod_image import PodImage
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import Progress, ServiceRecord
from scanflow.knowledge.model_cache import ModelCache
from scanflow.testing.memory_cluster import MemoryCluster
from tests.waiting import PATIENCE_S

NAMESPACE = derive_namespace("shop", "data")
READY: Manifest = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
Status = Callable[[Manifest], Manifest]
"""From a pod to the status that it gets."""


def ready(_pod: Manifest) -> Manifest:
    return READY


class Served:
    """A cluster, and the backend that serves on it."""

    def __init__(self, folder: Path, *, status: Status = ready, unknown: tuple[str, ...] = (), **settings: Any) -> None:
        self.cluster, self.status, self.now = MemoryCluster(unknown=unknown), status, 0.0
        self.cluster.play("Deployment", self._pods)
        self.settings, self.folder = KubernetesSettings.model_validate({"timeout_s": PATIENCE_S, **settings}), folder
        (folder / "multiply.py").write_text("class Multiply:\n    pass\n", encoding="utf-8")
        self.objects, self.messages = LiveObjects(), list[str]()
        self.serving: sf.Serving | None = None
        self.others: tuple[str, ...] = ()  # names of more online workflows
        self.code, self.source = False, folder / "multiply.py"
        self.services = self.make_another()

    def make_another(self, **settings: Any) -> KubernetesServices:
        """Return the backend as another process has it."""
        own = self.settings.model_copy(update=settings)
        environments = Environments(self.cluster, own)
        models = ModelCache(self.folder / "models", lambda: pytest.fail("There is no model."))
        return KubernetesServices(
            self.cluster,
            own,
            environments,
            models,
            lambda *_: PodImage("multiply:1", self._code() if self.code else None),
            {},
            self.objects,
            home=self.folder / "home",
            list_cache=ListCache(lambda: self.cluster, clock=count(step=3600).__next__),  # it lists, and never watches
        )

    def deploy(
        self,
        by: int = 2,
        *,
        name: str = "serving",
        key: str | None = None,
        services: KubernetesServices | None = None,
        **fields: Any,
    ) -> ServiceRecord:
        return (services or self.services).deploy(
            Deployment(self.app(by, **fields), name, source=self.source), key=key, observe=self._observe
        )

    def app(self, by: int = 2, **fields: Any) -> sf.Application:
        node = sf.Service(name="multiply", implementation="multiply.py:Multiply", parameters={"by": by}, **fields)
        workflows = [
            sf.Workflow(name="serving", type="online", nodes=[node], serving=self.serving),
            *(sf.Workflow(name=name, type="online", nodes=[node]) for name in self.others),
        ]
        return sf.Application(name="shop", team="data", app_dir=str(self.folder), workflows=workflows)

    def change(self, *, key: str | None = None, **fields: Any) -> ServiceRecord:
        return self.services.change("serving", ServiceChange(**fields), key=key, observe=self._observe)

    def reconcile(self) -> list[str]:
        """Look after the service as a server does, ten seconds later; return what was told."""
        self.objects.refreshed_at, self.messages = None, []
        self.services.reconcile(self.services.service("serving"), observe=self._observe)
        return self.messages

    def get_objects(self, kind: str) -> dict[str, Manifest]:
        """Return the service's objects of a kind, by name."""
        objects, _ = self.cluster.find(kind, NAMESPACE, labels=build_selector(service="serving"))
        return {manifest["metadata"]["name"]: manifest for manifest in objects}

    def answering(self) -> set[str]:
        """Return the revisions that the Service leads to."""
        (service,) = (manifest for name, manifest in self.get_objects("Service").items() if name == "serving")
        pods, _ = self.cluster.find("Pod", NAMESPACE)
        wanted = service["spec"]["selector"].items()
        own = [pod["metadata"]["labels"] for pod in pods if wanted <= pod["metadata"]["labels"].items()]
        return {labels["scanflow.dev/revision"] for labels in own}

    def _code(self) -> CodeConfigMap:
        return build_code("shop", "data", NAMESPACE, self.folder)

    def _observe(self, progress: Progress) -> None:
        assert progress.service in {"serving", *self.others}
        self.messages.append(progress.text)

    def _pods(self, cluster: MemoryCluster, deployment: Manifest) -> None:
        """Do what the Deployment's controller, the scheduler and the kubelets do, at once."""
        name, template = deployment["metadata"]["name"], deployment["spec"]["template"]
        digest = template["metadata"]["annotations"]["scanflow.dev/template"]
        wanted = {f"{name}-{digest}-{number}" for number in range(deployment["spec"].get("replicas", 1))}
        owned, _ = cluster.find("Pod", NAMESPACE)
        there = {
            manifest["metadata"]["name"] for manifest in owned if manifest["metadata"]["name"].startswith(f"{name}-")
        }
        for pod in sorted(wanted - there):
            metadata = {**copy.deepcopy(template["metadata"]), "name": pod, "namespace": NAMESPACE}
            owner = {"kind": "Deployment", "name": name, "uid": deployment["metadata"]["uid"]}
            pod_fields = {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": template["spec"]}
            cluster.create({"apiVersion": "v1", "kind": "Pod", **pod_fields, "status": self.status(pod_fields)})
        for pod in sorted(there - wanted):
            cluster.delete("Pod", pod, NAMESPACE)
