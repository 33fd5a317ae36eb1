"""The part of an application's environment that batch runs need: its objects and its images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.backends.backend_port import OpenModels
from scanflow.backends.environments import EnsuredEnvironment
from scanflow.backends.kubernetes.batch.pod_settings import PodSettings, StepImage
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.environment.manifests import STEPS
from scanflow.backends.kubernetes.expiring_set import ExpiringSet
from scanflow.backends.kubernetes.gpu_claims import build_claim_templates
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.pod_image import FindImage, PodImages

CODE_CACHE_S: Final = 60.0
"""How long an applied ConfigMap of code is not applied again; the same as for an environment's other objects."""


class StepCode(NamedTuple):
    """The images and code of a workflow's steps."""

    images: Mapping[str, StepImage]
    volumes: tuple[Manifest, ...] = ()
    config_map: Manifest | None = None
    """The application's files, where an image lacks them."""

    claims: tuple[Manifest, ...] = ()
    """The templates of what steps claim."""

    @property
    def objects(self) -> tuple[Manifest, ...]:
        """What has to be there before the steps' pods."""
        return self.claims if self.config_map is None else (self.config_map, *self.claims)


class AppliedCode:
    """The ConfigMaps of code that were applied just now."""

    def __init__(self, cluster: Cluster, get_environment: Callable[[str], object]) -> None:
        """``get_environment``: returns which environment a namespace has: an applied ConfigMap goes with it."""
        self._cluster, self._get_environment, self._names = cluster, get_environment, ExpiringSet(CODE_CACHE_S)

    def ensure(self, code: Manifest) -> None:
        """Apply the ConfigMap of an application's code, or another object whose name has its content's hash."""
        metadata = code["metadata"]
        name = f"{self._get_environment(metadata['namespace'])}/{metadata['name']}"
        if name not in self._names:
            self._cluster.apply(code, force=True)
            self._names.add(name)


@dataclass(frozen=True, slots=True)
class RunPreparation:
    """How runs ensure their environment and find their images."""

    ensure: Callable[[Application], EnsuredEnvironment]
    settings: KubernetesSettings
    find_image: FindImage
    models: OpenModels

    def resolve_code(self, app: Application, workflow: Workflow) -> StepCode:
        """Return the images and code of a workflow's steps.

        Raises:
            UsageError: they need an image that is not built.
        """
        pod_images = PodImages.open(app, workflow, self.settings, self.find_image, self.models(None))
        images, volumes, config_map = dict[str, StepImage](), list[Manifest](), None
        for node in workflow.steps:
            image = pod_images.select(node)
            images[node.name] = StepImage(image.image, tuple(image.mounts))
            if image.code is not None:
                config_map, volumes = image.code.config_map, image.volumes
        namespace = self.settings.derive_namespace(app.name, app.team)
        claims = build_claim_templates(
            [node.resources for node in workflow.steps],
            self.settings.device_plugin,
            app=app.name,
            team=app.team,
            namespace=namespace,
        )
        return StepCode(images, tuple(volumes), config_map, tuple(claims))

    def build_pod_settings(self, namespace: str, code: StepCode, store: str | None) -> PodSettings:
        """Return the settings of a run's pods; ``store``: the environment's address in an object store, if it has."""
        return PodSettings(
            namespace=namespace,
            image=self.settings.image,
            service_account=STEPS,
            images=code.images,
            volumes=code.volumes,
            store=store,
            store_secret=self.settings.outputs_secret if store else None,
            pull_secret=self.settings.pull_secret,
            device_plugin=self.settings.device_plugin,
            keep_s=round(self.settings.workflow_ttl_s),
        )
