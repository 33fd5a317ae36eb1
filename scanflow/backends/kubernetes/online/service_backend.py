"""Serve online workflows on a cluster. All state is in the cluster: any process may read and change services, and
continue a rollout that another process started."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scanflow.app.application import Application
from scanflow.app.plan import UNBOUNDED, Plan, PlannedInstance, plan_graph
from scanflow.app.workflow import Workflow
from scanflow.backends import service_transitions
from scanflow.backends.backend_port import Models
from scanflow.backends.instance_shapes import keep_shapes, suppress_registry_errors
from scanflow.backends.kubernetes.api_errors import build_missing_kind_error
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.environment.apply import Environments
from scanflow.backends.kubernetes.environment.tracker_manifests import resolve_tracker_uri
from scanflow.backends.kubernetes.gpu_claims import check_device_class
from scanflow.backends.kubernetes.gpus import build_gpu_request, check_gpus, list_tolerated
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.list_cache import ListCache
from scanflow.backends.kubernetes.nodes import KubeletPolicy, list_nodes, read_kubelet_policies
from scanflow.backends.kubernetes.object_labels import REVISION, SERVICE
from scanflow.backends.kubernetes.online import instance_pods, observed_objects
from scanflow.backends.kubernetes.online.certificates import ServiceCertificates
from scanflow.backends.kubernetes.online.engines import ScalingTarget, compute_scaling_target
from scanflow.backends.kubernetes.online.gpu_notes import add_gpu_notes
from scanflow.backends.kubernetes.online.instance_logs import ServiceLogs
from scanflow.backends.kubernetes.online.instance_status import ServiceStatusCache, query_instances
from scanflow.backends.kubernetes.online.object_drift import Drift, LiveObjects
from scanflow.backends.kubernetes.online.reconciler import ServiceReconciler
from scanflow.backends.kubernetes.online.rollout import Rollout
from scanflow.backends.kubernetes.online.service_checks import (
    EXCLUSIVE,
    check_nodes,
    check_open,
    check_stays_closed,
    check_workflow,
    complete_shape,
    list_required_kinds,
    suggest_alternative,
)
from scanflow.backends.kubernetes.online.service_definition import (
    build_definition,
    build_desired_state,
    build_mounted_objects,
    read_service_token,
)
from scanflow.backends.kubernetes.online.service_store import ServiceConfigMap, ServiceStore, restore_aliases
from scanflow.backends.kubernetes.online.traffic_switch import TrafficSwitch
from scanflow.backends.kubernetes.pod_image import PodImage
from scanflow.backends.kubernetes.pods import explain_denial
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_desired import DesiredState, make_idempotent
from scanflow.backends.service_metrics import Totals
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord, Shape
from scanflow.backends.service_spec import ServiceSpec, build_nodes
from scanflow.backends.shapes import apply_sizing, build_gpu_resources, compute_shape, read_shape
from scanflow.errors import (
    AccessDeniedError,
    InvalidError,
    NotFoundError,
    ScanflowError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    did_you_mean,
)
from scanflow.instance_messages import ModelFiles
from scanflow.placement.threads import compute_pool_size

ResolveImage = Callable[[Application, Workflow], PodImage]
_MAX_QUERIED = 32
"""With more instances than this, a list of all services queries none of them."""

_MAX_LISTS = 16
"""Up to this number of services, pods are listed by service; above it, all pods at once."""

QUERIES_PER_S = 3.0
"""How many instances a second may be queried by a process that lists all services repeatedly: a server."""

MAX_POLICY_QUERIES = 32
"""How many kubelets are queried for their policies, concurrently; the nodes of a pool share theirs."""

_PODS = f"{SERVICE},{REVISION}"
"""The label selector for the pods of all services."""


class _ServiceObjects(NamedTuple):
    """A service, and its objects in the cluster."""

    stored: ServiceConfigMap
    pods: list[Manifest]
    service: Manifest | None
    """The Service that callers connect to."""

    ready: int | None = None
    """How many instances it has, if its Deployment reports all of them ready; its pods are then not listed."""

    @property
    def versions(self) -> list[str]:
        """The resource versions of all these objects."""
        services = [] if self.service is None else [self.service]
        return [self.stored.version, *(manifest["metadata"]["resourceVersion"] for manifest in (*services, *self.pods))]


class KubernetesServices:
    """See :class:`~scanflow.backends.backend_port.OnlineBackend`."""

    def __init__(
        self,
        cluster: Cluster,
        settings: KubernetesSettings,
        environments: Environments,
        models: Models,
        resolve_image: ResolveImage,
        status_caches: dict[str, ServiceStatusCache],
        objects: LiveObjects,
        *,
        home: Path,
        list_cache: ListCache | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Serve on a cluster. ``status_caches`` and ``objects`` are read by this process, and outlive this object."""
        self._cluster, self._settings, self._environments = cluster, settings, environments
        self._models, self._resolve_image = models, resolve_image
        self._status_caches, self._clock = status_caches, clock
        self._list_cache = list_cache or ListCache(lambda: cluster, namespace=settings.namespace)
        self._objects = objects
        self._store = ServiceStore(cluster, self._list_cache, settings.namespace)
        self._switch = TrafficSwitch(cluster, settings)
        self._reconciler = ServiceReconciler(cluster, self._store, self._switch, self._get_totals, clock=clock)
        self._certificates = ServiceCertificates(cluster, home, settings.gateway_domain, objects.certificates)
        self._rollout = Rollout(cluster, settings, self._store, self._switch)
        self._drift = Drift(cluster, settings, self._store, self._switch, objects, self._list_cache)

    # Reading

    def check(self, app: Application, workflow: Workflow) -> None:
        check_workflow(app, workflow, compute_shape(workflow), self._settings)

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        shape = check_workflow(app, workflow, compute_shape(workflow), self._settings)
        self._check_kinds(workflow)
        self._check_gpus(shape, workflow.name)
        nodes = [node for node in self._list_nodes(shape) if node.schedulable]
        list(check_nodes(workflow.name, shape, nodes, allow_degraded=self._settings.allow_degraded))
        threads = shape.pool_threads or compute_pool_size(shape.cores or 1.0)
        instances = tuple(
            PlannedInstance(name=str(number), cores=shape.cores or 1.0, cpus=(), memory_nodes=(), threads=threads)
            for number in range(1, shape.instances + 1)
        )
        plan = plan_graph(
            workflow,
            instances,
            memory_bytes=shape.memory_bytes,
            machine_cores=sum(node.cores for node in nodes) or UNBOUNDED,
            machine_memory_bytes=sum(node.memory_bytes for node in nodes) or UNBOUNDED,
        )
        request = build_gpu_request(build_gpu_resources(shape), self._settings.device_plugin)
        return add_gpu_notes(plan, workflow, self._cluster, request)

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:
        kinds = {"Service": SERVICE, **({"Pod": _PODS} if instances else {"Deployment": SERVICE})}
        with ThreadPoolExecutor(len(kinds)) as pool:
            futures = [pool.submit(self._list_cache.find, kind, labels) for kind, labels in kinds.items()]
            stored, (services, workloads) = self._store.list_services(), (future.result() for future in futures)
        if not stored:
            return []
        ready = {} if instances else self._count_ready(stored, workloads)
        unready = [service for service in stored if service.key not in ready]
        pods_by_service = observed_objects.group_by_service(workloads if instances else self._list_pods(unready))
        by_name = observed_objects.index_by_name(services)
        groups = [
            _ServiceObjects(
                service, pods_by_service.get(service.key, []), by_name.get(service.key), ready.get(service.key)
            )
            for service in stored
        ]
        number = sum(len(group.pods) for group in groups)
        if number <= _MAX_QUERIED and not ready:
            self._query_instances(groups, pause_s=number / QUERIES_PER_S)
        url = self._switch.find_gateway_url()
        return [self._build_record(group, url) for group in groups]

    def service(self, name: str) -> ServiceRecord:
        stored = self._store.get(name)
        record = self._fetch_record(stored)
        definition = stored.state.definition
        if definition.scaling is None:
            return record
        explanation = self._switch.explain_scaling(definition, definition.scaling, at=self._clock())
        return record.model_copy(update={"explanation": explanation})

    def logs(self, name: str, instance: str | None = None) -> ServiceLogs:
        stored = self._store.get(name)
        names = [pod["metadata"]["name"] for pod in self._list_own_pods(stored)]
        if instance is not None and instance not in names:
            raise NotFoundError(f"{name!r} has no instance {instance!r}.{did_you_mean(instance, names)}")

        def find_pods() -> list[Manifest] | None:
            current = self._store.find(name, stored.namespace)
            if current is None:
                return None
            return [pod for pod in self._list_own_pods(current) if instance in {None, pod["metadata"]["name"]}]

        return ServiceLogs(self._cluster, stored.namespace, find_pods)

    def client(self, name: str) -> None:
        """Return nothing: callers connect to the address in the service's record."""

    # Changing

    def deploy(self, deployment: Deployment, *, key: str | None, observe: ServiceObserver) -> ServiceRecord:
        app, workflow = deployment.app, deployment.online
        shape = self._report_warnings(self._compute_shape(deployment), workflow.name, observe)
        stored = self._find_own(workflow.name, app)
        check_stays_closed(stored, workflow)
        self._check_kinds(workflow)
        nodes, token = build_nodes(app, workflow, self._models.find), read_service_token(deployment)
        image = self._resolve_image(app, workflow)
        environment = self._environments.ensure(app)
        for text in environment.changed:
            observe(Progress(service=workflow.name, text=f"environment: {text}"))
        spec = build_definition(deployment, shape, nodes, image, environment.tracker_uri, self._settings)
        spec = restore_aliases(spec, self._store.list_services())
        for manifest in build_mounted_objects(spec, image, token):
            self._cluster.apply(manifest, force=True)
        if spec.tls is not None:
            self._certificates.apply(spec)
        if (backup := spec.serving.backup) is not None and self._is_serving(backup, spec):
            self._add_alias(workflow.name, backup, instance_pods.get_namespace(spec), observe)

        def build_desired(before: DesiredState | None) -> DesiredState:
            after = build_desired_state(before, spec, at=self._clock())
            if before is not None and (dropped := before.describe_dropped_canary(after)) is not None:
                observe(Progress(service=workflow.name, text=dropped))
            return after

        return self._change(workflow.name, stored and stored.namespace, build_desired, key, observe)

    def manifests(self, app: Application, workflow: Workflow) -> list[Manifest]:
        """Return the objects that a deployment of a workflow applies, except the ConfigMap of its state."""
        deployment, image = Deployment(app, workflow.name), self._resolve_image(app, workflow)
        nodes, tracker = build_nodes(app, workflow, self._resolve_model), resolve_tracker_uri(app, self._settings)
        spec = build_definition(deployment, self._compute_shape(deployment), nodes, image, tracker, self._settings)
        services = self._store.list_services()
        spec = restore_aliases(spec, services)
        before = next((service.state for service in services if service.state.name == workflow.name), None)
        definition = build_desired_state(before, spec, at=self._clock()).definition
        return [
            *build_mounted_objects(spec, image, read_service_token(deployment)),
            *self._switch.render(definition).manifests,
        ]

    def _resolve_model(self, address: str) -> ModelFiles:
        """Return a registered model's version; the address as it is written, if the model is not registered or the
        registry is not reachable."""
        try:
            return self._models.find(address)
        except ScanflowError:
            return ModelFiles(name=address, version=0, path="")

    def _compute_shape(self, deployment: Deployment) -> Shape:
        workflow, sizing = deployment.online, deployment.sizing
        shape = compute_shape(workflow) if sizing is None else apply_sizing(compute_shape(workflow), sizing)
        return check_workflow(deployment.app, workflow, shape, self._settings)

    def change(self, name: str, change: ServiceChange, *, key: str | None, observe: ServiceObserver) -> ServiceRecord:
        files = None if change.model is None else replace(self._models.find(change.model), path="")
        stored = self._store.get(name)
        if change.backup:
            service_transitions.check_backup(name, change.backup, self.services(instances=False))
            backup = self._store.get(change.backup)
            check_open([stored.state.definition, backup.state.definition])
            self._add_alias(name, change.backup, backup.namespace, observe)

        def apply_change(state: DesiredState | None) -> DesiredState:
            return service_transitions.apply_change(
                service_transitions.require_changeable(state, name),
                change,
                files,
                suppress_registry_errors(lambda model, version: read_shape(self._models.recall(model, version))),
                lambda spec, shape: self._report_warnings(
                    complete_shape(spec.workflow, shape, spec.serving, spec.scaling, self._settings),
                    spec.workflow,
                    observe,
                ),
            )

        return self._change(name, stored.namespace, apply_change, key, observe)

    def _add_alias(self, name: str, backup: str, namespace: str, observe: ServiceObserver) -> None:
        """Let the pods of a backup serve under the name of a service as well.

        Pods read their names at the start, so this rolls out new ones.
        """

        def add_alias(state: DesiredState | None) -> DesiredState:
            return service_transitions.add_alias(service_transitions.require_changeable(state, backup), name)

        self._change(backup, namespace, add_alias, None, observe)

    def _is_serving(self, backup: str, spec: ServiceSpec) -> bool:
        """Return whether a backup is already deployed, by the same application."""
        service = self._store.find(backup, instance_pods.get_namespace(spec))
        return service is not None and service.state.settled > 0 and not service.state.deleted

    def reconcile(self, record: ServiceRecord, /, *, observe: ServiceObserver) -> ServiceChange | None:
        for text in self._drift.repair(record.name, ready=record.state == "ready"):
            observe(Progress(service=record.name, text=text))
        if (stored := self._objects.services.get(record.name)) and self._certificates.refresh(stored.state.definition):
            observe(Progress(service=record.name, text="brought its certificates up to date"))
        return self._reconciler.reconcile(record)

    def delete(self, name: str, *, observe: ServiceObserver) -> None:
        stored = self._store.get(name)
        for service in self._store.list_services():
            if service.state.definition.serving.backup == name:
                raise UsageError(
                    f"{name!r} is the backup of {service.state.name!r}. Delete that service first: scanflow delete "
                    f"{service.state.name}"
                )
        self._store.change(
            name, lambda state: None if state is None else state.model_copy(update={"deleted": True}), stored.namespace
        )
        self._rollout.delete(name, stored.namespace, observe)
        self._status_caches.pop(name, None)

    def _change(
        self,
        name: str,
        namespace: str | None,
        update: Callable[[DesiredState | None], DesiredState],
        key: str | None,
        observe: ServiceObserver,
    ) -> ServiceRecord:
        """Change the desired state, once per idempotency key, and return the record once the change is in effect.

        ``namespace``: that of the service; None: it may be new.
        """
        after = self._store.change(name, make_idempotent(key, update), namespace)
        assert after is not None
        namespace = namespace or instance_pods.get_namespace(after.definition)
        stored = self._rollout.roll_out(name, namespace, after.get_generation(key), observe)
        keep_shapes(stored.state.definition, self._remember, observe)
        return self._fetch_record(stored)

    def _find_own(self, name: str, app: Application) -> ServiceConfigMap | None:
        """Return a service of an application; None: it is new. Raise if it is another one's, or being deleted."""
        service = self._store.find(name)
        if service is None:
            return None
        owner = service.state.definition
        if (owner.app, owner.team) != (app.name, app.team):
            raise InvalidError(
                f"A service {name!r} is deployed already, by the application {owner.app!r} of team {owner.team!r}. "
                f"Rename this workflow, or delete that service: scanflow delete {name}"
            )
        if service.state.deleted:
            raise UnavailableError(f"The service {name!r} is being deleted. Try again in a moment.")
        return service

    def _check_kinds(self, workflow: Workflow) -> None:
        """Raise if the cluster lacks a kind that the service needs, before any object is created."""
        for kind in list_required_kinds(workflow, self._settings):
            if not self._cluster.has_kind(kind):
                raise UnsupportedError(f"{build_missing_kind_error(kind)}{suggest_alternative(kind)}")
        self._switch.check_clients(workflow)

    def _list_nodes(self, shape: Shape) -> list[KubeletPolicy]:
        """Return all nodes, with their kubelets' policies if the shape needs exclusive cores; none without the right to
        list nodes."""
        try:
            tolerated = list_tolerated(build_gpu_request(build_gpu_resources(shape), self._settings.device_plugin))
            queries = MAX_POLICY_QUERIES if shape.affinity in EXCLUSIVE else 0
            return read_kubelet_policies(self._cluster, asked=queries, tolerated=tolerated)
        except AccessDeniedError:
            return []

    def _check_gpus(self, shape: Shape, name: str) -> None:
        plugin, resources, who = self._settings.device_plugin, build_gpu_resources(shape), f"Workflow {name!r}"
        check_gpus(plugin, partial(list_nodes, self._cluster), resources, who)
        check_device_class(self._cluster, plugin, resources, who)

    def _report_warnings(self, shape: Shape, name: str, observe: ServiceObserver) -> Shape:
        """Return the shape, and report or raise what the nodes do not support."""
        self._check_gpus(shape, name)
        for warning in check_nodes(name, shape, self._list_nodes(shape), allow_degraded=self._settings.allow_degraded):
            observe(Progress(service=name, text=warning))
        return shape

    def _get_totals(self, name: str) -> Totals:
        return self._status_caches.setdefault(name, ServiceStatusCache()).window.totals

    def _remember(self, model: str, version: int, shape: Shape) -> None:
        self._models.remember(model, version, shape.model_dump_json())

    def _count_ready(
        self, stored: Iterable[ServiceConfigMap], deployments: Sequence[Manifest]
    ) -> dict[observed_objects.Key, int]:
        """Return the number of instances by service, for those whose Deployments report all ready.

        Return nothing if there are few enough instances to query each of them.
        """
        if sum(deployment.get("status", {}).get("replicas", 0) for deployment in deployments) <= _MAX_QUERIED:
            return {}
        deployments_by_name, counts = observed_objects.index_by_name(deployments), {}
        for service in stored:
            definition = service.state.definition
            deployment = deployments_by_name.get((service.namespace, self._compute_target(definition).name))
            replicas = None if definition.scaling is not None else definition.shape.instances
            if (
                deployment is not None
                and (count := observed_objects.count_if_all_ready(deployment, replicas)) is not None
            ):
                counts[service.key] = count
        return counts

    def _list_pods(self, services: Sequence[ServiceConfigMap]) -> list[Manifest]:
        if len(services) > _MAX_LISTS:
            return self._list_cache.find("Pod", _PODS)
        with ThreadPoolExecutor(max(1, len(services))) as pool:
            return [pod for group in pool.map(self._list_own_pods, services) for pod in group]

    def _compute_target(self, definition: ServiceSpec) -> ScalingTarget:
        return compute_scaling_target(
            self._settings.serving, instance_pods.format_object_name(definition.workflow, definition.current.id)
        )

    def _list_own_pods(self, stored: ServiceConfigMap) -> list[Manifest]:
        manifests, _ = self._cluster.find("Pod", stored.namespace, labels=f"{SERVICE}={stored.state.name}")
        return manifests

    def _fetch_record(self, stored: ServiceConfigMap) -> ServiceRecord:
        """Return the record of one service, and query its instances for it."""
        service = self._cluster.get("Service", stored.state.name, stored.namespace)
        objects = _ServiceObjects(stored, self._list_own_pods(stored), service)
        self._query_instances([objects], pause_s=0)
        return self._build_record(objects, self._switch.find_gateway_url())

    def _query_instances(self, services: Sequence[_ServiceObjects], *, pause_s: float) -> None:
        """Query the instances of services for their state, unless that was done within ``pause_s``."""
        now = time.monotonic()
        due = [service for service in services if self._get_status_cache(service).is_due(now, pause_s)]
        for service, statuses in zip(
            due, query_instances(self._cluster, [service.pods for service in due]), strict=True
        ):
            self._get_status_cache(service).record_statuses(
                [pod["metadata"]["name"] for pod in service.pods], statuses, now
            )

    def _get_status_cache(self, objects: _ServiceObjects) -> ServiceStatusCache:
        return self._status_caches.setdefault(objects.stored.state.name, ServiceStatusCache())

    def _build_record(self, objects: _ServiceObjects, gateway_url: str | None) -> ServiceRecord:
        """Return a service's record, from the cache if nothing has changed."""
        stored, cache = objects.stored, self._get_status_cache(objects)
        instances = self._count_instances(stored, objects.pods) if objects.ready is None else objects.ready
        complete = objects.ready is not None or len(objects.pods) >= instances
        cache_key = objects.versions, objects.ready, gateway_url, cache.queried_at
        if complete and cache.cached_record is not None and cache.cached_record[0] == cache_key:
            return cache.cached_record[1]
        url, grpc = self._switch.resolve_addresses(stored.state.definition, objects.service, gateway_url)
        record = observed_objects.build_service_record(
            stored.state,
            objects.pods if objects.ready is None else None,
            cache.statuses,
            cache.window,
            namespace=stored.namespace,
            url=url,
            grpc=grpc,
            instances=instances,
            active_backup=stored.active_backup,
            denial=None if complete else self._explain_denial(stored),
        )
        cache.cached_record = cache_key, record
        return record

    def _explain_denial(self, stored: ServiceConfigMap) -> str | None:
        """Return why the pods of a service are not created; None: nothing prevents it."""
        target = self._compute_target(stored.state.definition)
        deployment = self._cluster.get(target.kind, target.name, stored.namespace)
        denial = None if deployment is None else explain_denial(deployment)
        return None if denial is None else str(denial)

    def _count_instances(self, stored: ServiceConfigMap, manifests: list[Manifest]) -> int:
        """Return how many instances the current revision should have: as specified, or as its autoscaler decided."""
        definition = stored.state.definition
        if definition.scaling is None:
            return definition.shape.instances
        current = [pod for pod in manifests if pod["metadata"]["labels"].get(REVISION) == definition.current.id]
        return sum("deletionTimestamp" not in pod["metadata"] for pod in current)
