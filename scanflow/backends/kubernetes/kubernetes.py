"""A Kubernetes cluster as a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.backends.backend_port import HostedProgram, OnlineBackend, OpenModels, RunBackend
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.errors import InvalidError, MissingExtraError
from scanflow.installation import explain_install
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.backends.environments import ObjectChange
    from scanflow.backends.findings import Finding
    from scanflow.backends.kubernetes.agents.hosting import KubernetesAgents
    from scanflow.backends.kubernetes.all_runs import KubernetesRuns
    from scanflow.backends.kubernetes.cluster import Cluster
    from scanflow.backends.kubernetes.environment.apply import Environments
    from scanflow.backends.kubernetes.lease import KubernetesLease
    from scanflow.backends.kubernetes.list_cache import ListCache
    from scanflow.backends.kubernetes.online.instance_status import ServiceStatusCache
    from scanflow.backends.kubernetes.online.object_drift import LiveObjects
    from scanflow.backends.kubernetes.online.service_backend import KubernetesServices
    from scanflow.backends.kubernetes.pod_image import BuiltImageFinder


class Kubernetes:
    """See :class:`~scanflow.backends.backend_port.Backend`. State is in the cluster; files that outlive pods are in
    ``settings.home``."""

    def __init__(self, settings: Settings, models: OpenModels) -> None:
        self._settings, self._models = settings, models
        self._cluster_settings = KubernetesSettings.from_environment(options=settings.backend_options)
        self._status_caches: dict[str, ServiceStatusCache] = {}
        self._objects: LiveObjects | None = None

    @cached_property
    def cluster(self) -> Cluster:
        try:
            from scanflow.backends.kubernetes.cluster import Cluster
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"The backend 'kubernetes' needs the kubernetes extra. {explain_install('kubernetes')}"
            ) from error
        return Cluster(self._cluster_settings)

    def objects(self, app: Application, workflow: Workflow) -> list[ObjectChange]:
        from scanflow.backends.kubernetes.differences import compute_differences

        backend = self._services(None) if workflow.type == "online" else self._runs
        manifests = backend.manifests(app, workflow)
        return [*self._environments.plan(app), *compute_differences(self.cluster, manifests)]

    def environments(self) -> Environments:
        return self._environments

    def tracker(self, app: Application) -> str | None:
        from scanflow.backends.kubernetes.environment.tracker_manifests import resolve_tracker_uri

        return resolve_tracker_uri(app, self._cluster_settings)

    @cached_property
    def _environments(self) -> Environments:
        from scanflow.backends.kubernetes.environment.apply import Environments

        return Environments(self.cluster, self._cluster_settings)

    def batch(self) -> RunBackend:
        """Return the run backend of batch workflows and MPI jobs."""
        return self._runs

    @cached_property
    def _runs(self) -> KubernetesRuns:
        from scanflow.backends.kubernetes.all_runs import KubernetesRuns
        from scanflow.backends.kubernetes.batch.preparation import RunPreparation

        preparation = RunPreparation(
            self._environments.ensure, self._cluster_settings, self._get_image_finder, self._models
        )
        return KubernetesRuns(self._settings, self.cluster, self._cluster_settings, preparation)

    def online(self, tracker: str | None = None) -> OnlineBackend:
        return self._services(tracker)

    def _services(self, tracker: str | None) -> KubernetesServices:
        from scanflow.backends.kubernetes.online.object_drift import LiveObjects
        from scanflow.backends.kubernetes.online.service_backend import KubernetesServices
        from scanflow.backends.kubernetes.pod_image import PodImages

        self._objects = self._objects or LiveObjects()
        settings, models = self._cluster_settings, self._models(tracker)
        find = self._get_image_finder
        return KubernetesServices(
            self.cluster,
            settings,
            self._environments,
            models,
            lambda app, workflow: PodImages.open(app, workflow, settings, find, models).select(*workflow.services),
            self._status_caches,
            self._objects,
            home=self._settings.home.expanduser().absolute(),
            list_cache=self._list_cache,
        )

    @cached_property
    def _list_cache(self) -> ListCache:
        from scanflow.backends.kubernetes.list_cache import ListCache

        return ListCache(lambda: self.cluster, namespace=self._cluster_settings.namespace)

    @cached_property
    def _get_image_finder(self) -> BuiltImageFinder:
        from scanflow.backends.kubernetes.pod_image import BuiltImageFinder

        return BuiltImageFinder(self._cluster_settings, self._settings.home.expanduser().absolute())

    def mpi(self) -> RunBackend:
        return self._runs

    def agents(self, *, ended: Callable[[], None]) -> KubernetesAgents:  # noqa: ARG002
        from scanflow.backends.kubernetes.agents.hosting import KubernetesAgents

        return KubernetesAgents(
            lambda: self.cluster,
            self._cluster_settings,
            ensure=self._ensure_tracker,
            list_cache=lambda: self._list_cache,
        )

    def _ensure_tracker(self, app: Application) -> str | None:
        return self._environments.ensure(app).tracker_uri

    def lease(self, name: str, *, holder: str, duration_s: float) -> KubernetesLease:
        from scanflow.backends.kubernetes.lease import KubernetesLease

        namespace, separator, own = name.partition("/")
        if not (namespace and separator and own):
            raise InvalidError(f"A lease of a cluster is named NAMESPACE/NAME, not {name!r}.")
        return KubernetesLease(self.cluster, namespace, own, holder, duration_s=duration_s)

    def program(self, command: Sequence[str], environment: Mapping[str, str]) -> AbstractContextManager[HostedProgram]:
        cluster = self.cluster
        from scanflow.backends.kubernetes.hosted_program import host_program

        return host_program(cluster, self._cluster_settings, command, environment)

    def doctor(self, *, thorough: bool = False) -> list[Finding]:
        cluster = self.cluster
        from scanflow.backends.kubernetes.cluster_checks import examine

        return examine(cluster, self._cluster_settings, thorough=thorough)
