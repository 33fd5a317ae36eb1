"""Online workflows on a cluster. All facts are there: any process may read and change services, and go on with what
another began."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from scanflow.app.application import Application
from scanflow.app.plan import Plan, PlannedInstance, plan_graph
from scanflow.app.workflow import Workflow
from scanflow.backends import service_transitions
from scanflow.backends.kept_shapes import if_there, keep_shapes
from scanflow.backends.kubernetes.cluster import Cluster, missing_kind
from scanflow.backends.kubernetes.environment.apply import Environments
from scanflow.backends.kubernetes.environment.tracker import tracker_uri
from scanflow.backends.kubernetes.followed import Followed
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import REVISION, SERVICE, namespace_of
from scanflow.backends.kubernetes.nodes import KubeletPolicy, kubelet_policies
from scanflow.backends.kubernetes.online import observed, pods
from scanflow.backends.kubernetes.online.care import Care
from scanflow.backends.kubernetes.online.checks import (
    EXCLUSIVE,
    check_workflow,
    fitted,
    instead_of,
    kinds_needed,
    warnings_of,
)
from scanflow.backends.kubernetes.online.definition import definition_of, given_of
from scanflow.backends.kubernetes.online.drift import Drift, LiveObjects
from scanflow.backends.kubernetes.online.engines import has_kind
from scanflow.backends.kubernetes.online.logs import ServiceLogs
from scanflow.backends.kubernetes.online.looks import ServiceLooks, look_at
from scanflow.backends.kubernetes.online.mounted import mounted_objects, token_of
from scanflow.backends.kubernetes.online.records import service_record
from scanflow.backends.kubernetes.online.rollout import Rollout
from scanflow.backends.kubernetes.online.scaling import ScalingTarget, target_of
from scanflow.backends.kubernetes.online.store import KeptService, ServiceStore
from scanflow.backends.kubernetes.online.switch import Switch
from scanflow.backends.kubernetes.pod_image import PodImage
from scanflow.backends.kubernetes.pods import why_denied
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.port import Models
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_desired import DesiredState, once
from scanflow.backends.service_metrics import Totals
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord, Shape
from scanflow.backends.service_spec import ServiceSpec, nodes_of
from scanflow.backends.shapes import changed_shape, read_shape, shape_of
from scanflow.errors import (
    InvalidError,
    NotFoundError,
    ScanflowError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    did_you_mean,
)
from scanflow.placement.threads import pool_size
from scanflow.wire import ModelFiles

ImageOf = Callable[[Application, Workflow], PodImage]
_MANY = 32
"""Of more instances than these a list of all services asks none."""

_FEW = 16
"""The pods of so many services are asked for one service at a time, of more all pods at once."""

ASKED_PER_S = 3.0
"""How many instances a second may be asked of themselves by who lists all services again and again: a server."""

POLICIES = 32
"""How many kubelets are asked for their policies, all at once; nodes of a pool have the same."""


_PODS = f"{SERVICE},{REVISION}"
"""Selects the pods of all services."""


_Key = tuple[str, str]
"""Namespace and name."""


class _Found(NamedTuple):
    """A service, and what of it was found in the cluster."""

    stored: KeptService
    pods: list[Manifest]
    place: Manifest | None
    """The Service that its callers connect to."""

    ready: int | None = None
    """How many instances it has, where its Deployment says that all are ready: its pods were not asked for."""

    @property
    def versions(self) -> list[str]:
        """What changes with each of them."""
        there = [] if self.place is None else [self.place]
        return [self.stored.version, *(one["metadata"]["resourceVersion"] for one in (*there, *self.pods))]


class KubernetesServices:
    """See :class:`~scanflow.backends.port.OnlineBackend`."""

    def __init__(
        self,
        cluster: Cluster,
        settings: KubernetesSettings,
        environments: Environments,
        models: Models,
        image_of: ImageOf,
        looks: dict[str, ServiceLooks],
        objects: LiveObjects,
        *,
        followed: Followed | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``looks`` and ``objects``: what this process saw of services, which outlives this object."""
        self._cluster, self._settings, self._environments = cluster, settings, environments
        self._models, self._image_of, self._looks, self._clock = models, image_of, looks, clock
        self._followed = followed or Followed(lambda: cluster)
        self._store = ServiceStore(cluster, self._followed)
        self._switch = Switch(cluster, settings)
        self._care = Care(cluster, self._store, self._switch, self._counted, clock=clock)
        self._rollout = Rollout(cluster, settings, self._store, self._switch, given_of)
        self._drift = Drift(cluster, settings, self._store, self._rollout, self._switch, objects, self._followed)

    # Looking

    def check(self, app: Application, workflow: Workflow) -> None:
        check_workflow(app, workflow, shape_of(workflow), self._settings)

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        shape = check_workflow(app, workflow, shape_of(workflow), self._settings)
        self._check_kinds(workflow)
        nodes = [one for one in self._nodes(shape) if one.schedulable]
        list(warnings_of(workflow.name, shape, nodes, allow_degraded=self._settings.allow_degraded))
        threads = shape.pool_threads or pool_size(shape.cores or 1.0)
        instances = tuple(
            PlannedInstance(name=str(number), cores=shape.cores or 1.0, cpus=(), memory_nodes=(), threads=threads)
            for number in range(1, shape.instances + 1)
        )
        return plan_graph(
            workflow,
            instances,
            memory_bytes=shape.memory_bytes,
            machine_cores=sum(one.cores for one in nodes),
            machine_memory_bytes=sum(one.memory_bytes for one in nodes),
        )

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:
        kinds = {"Service": SERVICE, **({"Pod": _PODS} if instances else {"Deployment": SERVICE})}
        with ThreadPoolExecutor(len(kinds)) as pool:
            lists = [pool.submit(self._followed.find, kind, labels) for kind, labels in kinds.items()]
            stored, (places, counted) = self._store.all(), (one.result() for one in lists)
        if not stored:
            return []
        there, whole = _by_name(places), {} if instances else self._whole(stored, counted)
        own = _by_service(counted if instances else self._pods_of([one for one in stored if one.key not in whole]))
        found = [_Found(one, own.get(one.key, []), there.get(one.key), whole.get(one.key)) for one in stored]
        number = sum(len(one.pods) for one in found)
        if number <= _MANY and not whole:
            self._ask(found, pause_s=number / ASKED_PER_S)
        url = self._switch.gateway_url()
        return [self._record(one, url) for one in found]

    def service(self, name: str) -> ServiceRecord:
        stored = self._store.get(name)
        record = self._reported(stored)
        definition = stored.state.definition
        if definition.scaling is None:
            return record
        explanation = self._switch.explanation(definition, definition.scaling, at=self._clock())
        return record.model_copy(update={"explanation": explanation})

    def logs(self, name: str, instance: str | None = None) -> ServiceLogs:
        stored = self._store.get(name)
        known = [pod["metadata"]["name"] for pod in self._pods(stored)]
        if instance is not None and instance not in known:
            raise NotFoundError(f"{name!r} has no instance {instance!r}.{did_you_mean(instance, known)}")

        def looked_at() -> list[Manifest] | None:
            now = self._store.find(name)
            if now is None:
                return None
            return [pod for pod in self._pods(now) if instance in {None, pod["metadata"]["name"]}]

        return ServiceLogs(self._cluster, stored.namespace, looked_at)

    def client(self, name: str) -> None:
        """Return nothing: callers connect to the address in the service's record."""

    # Changing

    def deploy(self, deployment: Deployment, *, key: str | None, observe: ServiceObserver) -> ServiceRecord:
        app, workflow = deployment.app, deployment.online
        shape = self._complete(self._shape(deployment), workflow.name, observe)
        self._check_owner(workflow.name, app)
        self._check_kinds(workflow)
        nodes, token = nodes_of(app, workflow, self._models.find), token_of(deployment)
        image = self._image_of(app, workflow)
        environment = self._environments.ensure(app)
        for text in environment.changed:
            observe(Progress(service=workflow.name, text=f"environment: {text}"))
        made = self._also_for(definition_of(deployment, shape, nodes, image, environment.tracker_uri, self._settings))
        for one in mounted_objects(made, image, token):
            self._cluster.apply(one, force=True)
        if (backup := made.serving.backup) is not None and self._is_there(backup, made):
            self._answer_for(workflow.name, backup, observe)
        return self._change(workflow.name, lambda before: self._deployed(before, made), key, observe)

    def manifests(self, app: Application, workflow: Workflow) -> list[Manifest]:
        """Return what a deployment of a workflow would be made of, beside the object that it is kept in."""
        deployment, image = Deployment(app, workflow.name), self._image_of(app, workflow)
        nodes, tracker = nodes_of(app, workflow, self._planned_model), tracker_uri(app, self._settings)
        made = self._also_for(definition_of(deployment, self._shape(deployment), nodes, image, tracker, self._settings))
        stored = self._store.find(workflow.name)
        definition = self._deployed(None if stored is None else stored.state, made).definition
        return [
            *mounted_objects(made, image, token_of(deployment)),
            *self._rollout.manifests(definition),
            *self._switch.manifests(definition),
        ]

    def _planned_model(self, address: str) -> ModelFiles:
        """Return a registered model's version; one that nobody has registered yet, or not where it can be asked for, as
        it is written."""
        try:
            return self._models.find(address)
        except ScanflowError:
            return ModelFiles(name=address, version=0, path="")

    def _shape(self, deployment: Deployment) -> Shape:
        workflow, sizing = deployment.online, deployment.sizing
        shape = shape_of(workflow) if sizing is None else changed_shape(shape_of(workflow), sizing)
        return check_workflow(deployment.app, workflow, shape, self._settings)

    def change(self, name: str, change: ServiceChange, *, key: str | None, observe: ServiceObserver) -> ServiceRecord:
        files = None if change.model is None else replace(self._models.find(change.model), path="")
        self._store.get(name)
        if change.backup:
            service_transitions.check_backup(name, change.backup, self.services(instances=False))
            self._answer_for(name, change.backup, observe)

        def changed(found: DesiredState | None) -> DesiredState:
            return service_transitions.applied(
                service_transitions.changeable(found, name),
                change,
                files,
                if_there(lambda model, version: read_shape(self._models.recall(model, version))),
                lambda spec, shape: self._complete(
                    fitted(spec.workflow, shape, dict(spec.serving.env)), spec.workflow, observe
                ),
            )

        return self._change(name, changed, key, observe)

    def _answer_for(self, name: str, backup: str, observe: ServiceObserver) -> None:
        """Have the pods of a backup answer under the name of a service: they are told at their start for whom they do,
        so others take their place, as with every change of a service."""

        def made(found: DesiredState | None) -> DesiredState:
            return service_transitions.answering_for(service_transitions.changeable(found, backup), name)

        self._change(backup, made, None, observe)

    def _also_for(self, made: ServiceSpec) -> ServiceSpec:
        """Return what is wanted with the names under which it answers since another service was changed."""
        own = [one.state for one in self._store.all() if one.namespace == namespace_of(made.app, made.team)]
        names = [one.name for one in own if one.definition.serving.backup == made.workflow]
        return made.changed(aliases=tuple(dict.fromkeys([*made.aliases, *names])))

    def _is_there(self, backup: str, of: ServiceSpec) -> bool:
        """Whether a service of the same application serves already that is to be the backup."""
        found = self._store.find(backup)
        if found is None or found.namespace != namespace_of(of.app, of.team):
            return False
        return found.state.settled > 0 and not found.state.deleted

    def reconcile(self, record: ServiceRecord, /, *, observe: ServiceObserver) -> ServiceChange | None:
        for text in self._drift.mend(record.name, ready=record.state == "ready"):
            observe(Progress(service=record.name, text=text))
        return self._care.reconcile(record)

    def delete(self, name: str, *, observe: ServiceObserver) -> None:
        self._store.get(name)
        for other in self._store.all():
            if other.state.definition.serving.backup == name:
                raise UsageError(
                    f"{name!r} is the backup of {other.state.name!r}. Delete that first: scanflow delete "
                    f"{other.state.name}"
                )
        self._store.change(name, lambda now: None if now is None else now.model_copy(update={"deleted": True}))
        self._rollout.delete(name, observe)
        self._looks.pop(name, None)

    def _change(
        self, name: str, make: Callable[[DesiredState | None], DesiredState], key: str | None, observe: ServiceObserver
    ) -> ServiceRecord:
        """Change what is wanted, unless that was asked for with this key before; return it once it is in effect."""
        after = self._store.change(name, once(key, make))
        assert after is not None
        settled = self._rollout.bring(name, after.wanted_with(key), observe)
        keep_shapes(settled.definition, self._remember, observe)
        stored = self._store.get(name)
        return self._reported(stored)

    def _deployed(self, before: DesiredState | None, made: ServiceSpec) -> DesiredState:
        if before is None or before.deleted or before.settled == 0:
            generation = 1 if before is None else before.generation + 1
            return DesiredState(
                name=made.workflow,
                host="",
                port=made.serving.port or 8080,
                created=self._clock() if before is None else before.created,
                generation=generation,
                definition=made.numbered(generation),
            )
        return before.redeployed(made)

    def _check_owner(self, name: str, app: Application) -> None:
        found = self._store.find(name)
        if found is None:
            return
        own = found.state.definition
        if (own.app, own.team) != (app.name, app.team):
            raise InvalidError(
                f"A service {name!r} is deployed already, by the application {own.app!r} of team {own.team!r}. Rename "
                f"this workflow, or delete that one: scanflow delete {name}"
            )
        if found.state.deleted:
            raise UnavailableError(f"The service {name!r} is being deleted. Try again in a moment.")

    def _check_kinds(self, workflow: Workflow) -> None:
        """Raise, before anything is made, that the cluster lacks what a service is made of."""
        for kind in kinds_needed(workflow, self._settings):
            if not has_kind(self._cluster, kind):
                raise UnsupportedError(f"{missing_kind(kind)}{instead_of(kind)}")

    def _nodes(self, shape: Shape) -> list[KubeletPolicy]:
        """Return all nodes; their kubelets' policies only where the shape needs them."""
        return kubelet_policies(self._cluster, asked=POLICIES if shape.affinity in EXCLUSIVE else 0)

    def _complete(self, shape: Shape, name: str, observe: ServiceObserver) -> Shape:
        """Return the shape; what the nodes cannot honour of it is told or raised."""
        for warning in warnings_of(name, shape, self._nodes(shape), allow_degraded=self._settings.allow_degraded):
            observe(Progress(service=name, text=warning))
        return shape

    def _counted(self, name: str) -> Totals:
        return self._looks.setdefault(name, ServiceLooks()).window.totals

    def _remember(self, model: str, version: int, shape: Shape) -> None:
        self._models.remember(model, version, shape.model_dump_json())

    def _whole(self, stored: Iterable[KeptService], deployments: Sequence[Manifest]) -> dict[_Key, int]:
        """Return the services whose instances are all ready, as their Deployments say, and how many each has; none
        where all have so few that they can be asked."""
        if sum(one.get("status", {}).get("replicas", 0) for one in deployments) <= _MANY:
            return {}
        named, found = _by_name(deployments), {}
        for one in stored:
            definition = one.state.definition
            deployment = named.get((one.namespace, self._target(definition).name))
            wanted = None if definition.scaling is not None else definition.shape.instances
            if deployment is not None and (count := observed.all_ready(deployment, wanted)) is not None:
                found[one.key] = count
        return found

    def _pods_of(self, services: Sequence[KeptService]) -> list[Manifest]:
        if len(services) > _FEW:
            return self._followed.find("Pod", _PODS)
        with ThreadPoolExecutor(max(1, len(services))) as pool:
            return [pod for found in pool.map(self._pods, services) for pod in found]

    def _target(self, definition: ServiceSpec) -> ScalingTarget:
        return target_of(self._settings.serving, pods.object_name(definition.workflow, definition.current.id))

    def _pods(self, stored: KeptService) -> list[Manifest]:
        found, _ = self._cluster.find("Pod", stored.namespace, labels=f"{SERVICE}={stored.state.name}")
        return found

    def _reported(self, stored: KeptService) -> ServiceRecord:
        """Return how one service stands, with what its instances say now."""
        place = self._cluster.get("Service", stored.state.name, stored.namespace)
        found = _Found(stored, self._pods(stored), place)
        self._ask([found], pause_s=0)
        return self._record(found, self._switch.gateway_url())

    def _ask(self, services: Sequence[_Found], *, pause_s: float) -> None:
        """Ask the instances of services what they say of themselves, unless they were asked not so long ago."""
        now = time.monotonic()
        due = [one for one in services if self._seen(one).is_due(now, pause_s)]
        for one, said in zip(due, look_at(self._cluster, [one.pods for one in due]), strict=True):
            self._seen(one).see([pod["metadata"]["name"] for pod in one.pods], said, now)

    def _seen(self, found: _Found) -> ServiceLooks:
        return self._looks.setdefault(found.stored.state.name, ServiceLooks())

    def _record(self, found: _Found, gateway_url: str | None) -> ServiceRecord:
        """Return a service's record; the one that was made before where it would be the same."""
        stored, seen = found.stored, self._seen(found)
        instances = self._instances(stored, found.pods) if found.ready is None else found.ready
        whole = found.ready is not None or len(found.pods) >= instances
        of = found.versions, found.ready, gateway_url, seen.asked
        if whole and seen.reported is not None and seen.reported[0] == of:
            return seen.reported[1]
        url, grpc = self._switch.addresses(stored.state.definition, found.place, gateway_url)
        record = service_record(
            stored.state,
            found.pods if found.ready is None else None,
            seen.looks,
            seen.window,
            namespace=stored.namespace,
            url=url,
            grpc=grpc,
            instances=instances,
            answered_by=stored.answered_by,
            denied=None if whole else self._denied(stored),
        )
        seen.reported = of, record
        return record

    def _denied(self, stored: KeptService) -> str | None:
        """Return why the pods of a service that has too few are not made; None: nothing keeps them away."""
        target = self._target(stored.state.definition)
        deployment = self._cluster.get(target.kind, target.name, stored.namespace)
        denied = None if deployment is None else why_denied(deployment)
        return None if denied is None else str(denied)

    def _instances(self, stored: KeptService, found: list[Manifest]) -> int:
        """Return how many instances the current revision is to have: as is said, or as its autoscaler has it."""
        definition = stored.state.definition
        if definition.scaling is None:
            return definition.shape.instances
        own = [pod for pod in found if pod["metadata"]["labels"].get(REVISION) == definition.current.id]
        return sum("deletionTimestamp" not in pod["metadata"] for pod in own)


def _by_name(found: Iterable[Manifest]) -> dict[_Key, Manifest]:
    return {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in found}


def _by_service(found: Iterable[Manifest]) -> dict[_Key, list[Manifest]]:
    own: dict[_Key, list[Manifest]] = {}
    for pod in found:
        own.setdefault((pod["metadata"]["namespace"], pod["metadata"]["labels"][SERVICE]), []).append(pod)
    return own
