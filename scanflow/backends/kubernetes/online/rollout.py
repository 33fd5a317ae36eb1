"""Roll out the desired state of a service to the cluster, without a failed request.

Every step is idempotent and repeated from the start by any process that continues, so that a process may be killed at
any moment: objects are applied, instances become ready, traffic is routed to them, and only then are objects removed
that no traffic reaches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from scanflow.backends.kubernetes.api_errors import ConflictError, ExpiredError
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import REVISION, SERVICE, build_selector
from scanflow.backends.kubernetes.online import observed, pods
from scanflow.backends.kubernetes.online.engines import ENGINES, ServingObject, build_revision_object
from scanflow.backends.kubernetes.online.objects import build_revision_service, compute_hashes
from scanflow.backends.kubernetes.online.scaling import ScalingTarget, compute_scaling_target
from scanflow.backends.kubernetes.online.store import ServiceConfigMap, ServiceStore
from scanflow.backends.kubernetes.online.switch import TrafficSwitch
from scanflow.backends.kubernetes.pods import PodDenial, explain_denial
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import Progress, ServiceObserver
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import NotFoundError, ScanflowError, UnavailableError, UsageError
from scanflow.wire import Revision

_POLL_S: Final = 5.0
_REPORT_S: Final = 2.0
"""How long a pod may take to start before the reason is reported, and be denied before the rollout fails."""

_MISSING_POLL_S: Final = 1.0
"""The poll interval while pods are missing: there are no objects to watch."""

ENGINE_KINDS: Final = tuple(engine.kind for engine in ENGINES.values())
BuildPodOptions = Callable[[ServiceSpec], pods.PodOptions]


class _SupersededError(Exception):
    """The desired state has changed during the rollout."""


class _HopelessError(Exception):
    """An instance will never become ready."""


class RevisionPlan(NamedTuple):
    """A revision, and how many instances it should have."""

    revision: Revision
    template: str
    instances: int
    target: ScalingTarget
    """The object whose ``scale`` sets the number of its pods."""

    fixed: bool
    """Whether the number is exact; else an autoscaler decides."""


class Rollout:
    """The rollouts of one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        settings: KubernetesSettings,
        store: ServiceStore,
        switch: TrafficSwitch,
        build_options: BuildPodOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster, self._settings, self._store, self._switch = cluster, settings, store, switch
        self._build_options, self._clock, self._now = build_options, clock, now
        self._engine: ServingObject = ENGINES[settings.serving]

    def roll_out(self, name: str, generation: int, observe: ServiceObserver) -> DesiredState:
        """Roll out the desired state, and return it once that generation, or a newer one, is in effect.

        Raises:
            UsageError: the rollout failed and was reverted.
            UnavailableError: it timed out; the next change continues it.
            NotFoundError: the service was deleted meanwhile.
        """
        watcher = _Watcher(self._cluster, name, observe, self._clock)
        deadline = self._clock() + self._settings.timeout_s
        error: ScanflowError | None = None
        before: ServiceConfigMap | None = None
        while True:
            stored = self._store.find(name)
            if stored is None and before is not None:
                self._remove_objects(before)  # the deletion may have missed objects that were created since
            if stored is None or stored.state.deleted:
                raise NotFoundError(f"The service {name!r} was deleted meanwhile.")
            before, state = stored, stored.state
            if error is not None and (state.in_effect or state.hopeless):
                raise error
            if error is None and state.settled >= generation:
                return state
            try:
                self._roll_out_generation(stored, watcher, deadline)
            except _SupersededError:
                continue
            except ConflictError as conflict:  # another process wrote an object: repeat all steps
                if self._clock() > deadline:
                    raise UnavailableError(
                        f"{conflict} Other clients are writing objects of the service {name!r}. Try again in a moment."
                    ) from conflict
            except (_HopelessError, UsageError) as failure:
                error = UsageError(_format_failure(state, str(failure)))
                self._record_failure(state, str(failure))

    def _roll_out_generation(self, stored: ServiceConfigMap, watcher: _Watcher, deadline: float) -> None:
        state = stored.state
        definition, namespace = state.definition, stored.namespace
        options = self._build_options(definition)
        plans = [self._plan_revision(definition, revision, options) for revision in definition.revisions]
        for plan in plans:
            self._apply_revision(definition, plan, options)
        self._wait_until_ready(stored, plans, options, watcher, deadline)
        self._check_superseded(state)
        self._switch.route_traffic(definition)
        self._retire(stored, definition, {plan.revision.id for plan in plans}, options)
        self._wait_until_removed(stored, plans, watcher, deadline)
        self._record_hashes(state)
        self._store.change(state.name, lambda now: now.settle() if now is not None and now == state else None)
        watcher.report(f"generation {state.generation} is in effect in {namespace}")

    def _record_hashes(self, state: DesiredState) -> None:
        """Record the hashes of the applied manifests, so that other versions of scanflow leave the objects alone."""
        definition = state.definition
        now = self._store.find(state.name)
        hashes = compute_hashes([*self.build_manifests(definition), *self._switch.build_manifests(definition)])
        if now is not None and now.state == state and now.applied_hashes != hashes:
            self._store.annotate(now, rendered=json.dumps(hashes))

    def _plan_revision(self, definition: ServiceSpec, revision: Revision, options: pods.PodOptions) -> RevisionPlan:
        template = pods.build_pod_template(definition, revision, options, container=self._engine.container)
        count, target = self._switch.count_instances(definition, revision), self._compute_target(definition, revision)
        return RevisionPlan(revision, pods.get_template_hash(template), count, target, _is_fixed(definition, revision))

    def _compute_target(self, definition: ServiceSpec, revision: Revision) -> ScalingTarget:
        return compute_scaling_target(self._settings.serving, pods.format_object_name(definition.workflow, revision.id))

    def build_manifests(self, definition: ServiceSpec) -> list[Manifest]:
        """Return the objects of all revisions, and the autoscaler."""
        options = self._build_options(definition)
        manifests = [
            manifest
            for revision in definition.revisions
            for manifest in self._build_revision_manifests(definition, revision, options)
        ]
        name = pods.format_object_name(definition.workflow, definition.current.id)
        scaler = self._switch.build_autoscaler(definition, name, fixed=False)
        return [*manifests, *([] if scaler is None else [scaler])]

    def compute_replicas(self, definition: ServiceSpec) -> list[tuple[ScalingTarget, int]]:
        """Return the target and the number of instances of each revision that has a fixed number."""
        fixed = [revision for revision in definition.revisions if _is_fixed(definition, revision)]
        return [
            (self._compute_target(definition, revision), self._switch.count_instances(definition, revision))
            for revision in fixed
        ]

    def _build_revision_manifests(
        self, definition: ServiceSpec, revision: Revision, options: pods.PodOptions
    ) -> list[Manifest]:
        return [
            pods.build_config_map(definition, revision, options),
            build_revision_service(definition, revision),
            build_revision_object(self._engine, definition, revision, options),
        ]

    def _apply_revision(self, definition: ServiceSpec, plan: RevisionPlan, options: pods.PodOptions) -> None:
        for manifest in self._build_revision_manifests(definition, plan.revision, options):
            self._cluster.apply(manifest, force=True)
        self._switch.scale(definition, pods.format_object_name(definition.workflow, plan.revision.id), fixed=plan.fixed)

    def _wait_until_ready(
        self,
        stored: ServiceConfigMap,
        plans: Sequence[RevisionPlan],
        options: pods.PodOptions,
        watcher: _Watcher,
        deadline: float,
    ) -> None:
        scaled: set[str] = set()
        denied_since: dict[str, float] = {}

        def are_all_ready(manifests: Sequence[Manifest]) -> bool:
            incomplete: list[bool] = []
            for plan in plans:
                revision_pods = [pod for pod in manifests if is_pod_in_revision(pod, plan)]
                target = self._scale_target(plan, stored.namespace, scaled)
                if target is None:
                    self._recreate_objects(stored, plan, options)
                reason = next((reason for pod in revision_pods if (reason := observed.find_fatal_reason(pod))), None)
                if reason is not None:
                    raise _HopelessError(reason)
                missing = len(revision_pods) < (plan.instances if plan.fixed else min(1, plan.instances))
                incomplete.append(missing)
                if target is not None and missing:
                    self._check_denied(
                        target, watcher, denied_since, terminating=any(map(observed.is_terminating, manifests))
                    )
            watcher.has_missing_pods = any(incomplete)
            return all(
                len(observed.select_ready(manifests, plan.revision.id, plan.template))
                >= (plan.instances if plan.fixed else 1)
                or plan.instances == 0
                for plan in plans
            )

        self._wait_for_pods(stored, are_all_ready, watcher, deadline)
        watcher.has_missing_pods = False

    def _scale_target(self, plan: RevisionPlan, namespace: str, scaled: set[str]) -> Manifest | None:
        """Set the number of pods in the target, once if an autoscaler owns it, and return the target; None: the
        engine's controller has not created it yet."""
        target = self._cluster.get(plan.target.kind, plan.target.name, namespace)
        if target is None or (plan.revision.id in scaled and not plan.fixed):
            return target
        before = target["spec"].get("replicas", 1)
        if before != plan.instances and (plan.fixed or before < plan.instances):
            patch = {"spec": {"replicas": plan.instances}}
            try:
                target = self._cluster.patch(plan.target.kind, plan.target.name, namespace, patch)
            except NotFoundError:
                return None  # it was deleted since it was read
        scaled.add(plan.revision.id)
        return target

    def _recreate_objects(self, stored: ServiceConfigMap, plan: RevisionPlan, options: pods.PodOptions) -> None:
        """Apply a revision's objects again, if somebody deleted the engine's object."""
        name = pods.format_object_name(stored.state.name, plan.revision.id)
        if self._cluster.get(self._engine.kind, name, stored.namespace) is None:
            self._check_superseded(stored.state)
            self._apply_revision(stored.state.definition, plan, options)

    def _check_superseded(self, state: DesiredState) -> None:
        """Raise if the desired state has changed: the new rollout may own the objects already."""
        now = self._store.find(state.name)
        if now is None or now.state.generation != state.generation or now.state.deleted:
            raise _SupersededError

    def _check_denied(self, target: Manifest, watcher: _Watcher, since: dict[str, float], *, terminating: bool) -> None:
        """Report why pods are not created, and raise if that is permanent: no terminating pod will free its quota."""
        denial, name = explain_denial(target), target["metadata"]["name"]
        if denial is None:
            since.pop(name, None)
            watcher.clear_denial(f"{target['metadata']['namespace']}/{name}")
            return
        first = since.setdefault(name, self._clock())
        watcher.report_denial(denial)
        if self._clock() - first >= _REPORT_S and not (denial.passing or terminating):
            raise _HopelessError(str(denial))

    def _wait_until_removed(
        self, stored: ServiceConfigMap, plans: Sequence[RevisionPlan], watcher: _Watcher, deadline: float
    ) -> None:
        """Wait until all instances but the planned ones are gone."""

        def are_others_gone(manifests: Sequence[Manifest]) -> bool:
            counts = [sum(is_pod_in_revision(pod, plan) for pod in manifests) for plan in plans]
            exact = all(count <= plan.instances for count, plan in zip(counts, plans, strict=True) if plan.fixed)
            return exact and sum(counts) == len(manifests)

        self._wait_for_pods(stored, are_others_gone, watcher, deadline)

    def _wait_for_pods(
        self,
        stored: ServiceConfigMap,
        condition: Callable[[Sequence[Manifest]], bool],
        watcher: _Watcher,
        deadline: float,
    ) -> None:
        """Wait until a condition holds for the service's pods; check it with every change of a pod."""
        labels, state = f"{SERVICE}={stored.state.name}", stored.state  # the label that all engines preserve
        while True:
            manifests, version = self._cluster.find("Pod", stored.namespace, labels=labels)
            watcher.report_pods(stored.namespace, manifests)
            if condition(
                [pod for pod in manifests if not observed.is_finished(pod) and not self._is_lost(pod, watcher)]
            ):
                return
            if self._clock() > deadline:
                raise UnavailableError(
                    f"The change of {state.name!r} is not in effect after {self._settings.timeout_s:.0f} "
                    f"s{watcher.format_waits()}. See what it waits for: scanflow services {state.name}"
                )
            self._check_superseded(state)
            poll_s = _MISSING_POLL_S if watcher.has_missing_pods else _POLL_S
            self._wait_for_change(stored.namespace, labels, version, poll_s)

    def _is_lost(self, pod: Manifest, watcher: _Watcher) -> bool:
        """Return whether an instance is lost, and report it: its node is dead, or partitioned."""
        lost = observed.is_lost(pod, self._now())
        if lost:
            watcher.report_lost_instance(pod)
        return lost

    def _wait_for_change(self, namespace: str, labels: str, version: str, within_s: float = _POLL_S) -> None:
        try:
            for _ in self._cluster.watch("Pod", namespace, labels=labels, since=version, within_s=within_s):
                return
        except ExpiredError:
            return

    def _retire(
        self, stored: ServiceConfigMap, definition: ServiceSpec, revisions: set[str], options: pods.PodOptions
    ) -> None:
        """Remove the objects of revisions that no traffic reaches, and the ConfigMaps of older instances."""
        cluster, labels = self._cluster, build_selector(service=stored.state.name)
        config_maps = {
            pods.build_config_map(definition, revision, options)["metadata"]["name"]
            for revision in definition.revisions
        }
        obsolete: list[tuple[str, str]] = []
        for kind in (*self._list_kinds(), "Service", "ConfigMap"):
            for manifest in self._find_objects(kind, stored.namespace, labels):
                name, revision = manifest["metadata"]["name"], manifest["metadata"]["labels"].get(REVISION)
                if revision is not None and (
                    revision not in revisions or (kind == "ConfigMap" and name not in config_maps)
                ):
                    obsolete.append((kind, name))
        if obsolete:
            self._check_superseded(stored.state)  # after the list: a newer desired state may need some of them
        for kind, name in obsolete:
            cluster.delete(kind, name, stored.namespace)

    def _list_kinds(self) -> list[str]:
        """Return the kinds of the engines, this engine's first."""
        return sorted(ENGINE_KINDS, key=lambda kind: kind != self._engine.kind)

    def _find_objects(self, kind: str, namespace: str, labels: str) -> list[Manifest]:
        """Return the objects of a kind; those of an engine that is not used may be missing, or forbidden."""
        if kind in ENGINE_KINDS and kind != self._engine.kind:
            return self._cluster.find_optional(kind, namespace, labels=labels)
        return self._cluster.find(kind, namespace, labels=labels)[0]

    def delete(self, name: str, observe: ServiceObserver) -> None:
        """Remove all objects of a deleted service, and return when its last instance is gone."""
        watcher = _Watcher(self._cluster, name, observe, self._clock)
        deadline = self._clock() + self._settings.timeout_s
        labels = f"{SERVICE}={name}"
        while (stored := self._store.find(name)) is not None and stored.state.deleted:
            self._remove_objects(stored, "Secret")  # each time: a concurrent change may have created some
            manifests, version = self._cluster.find("Pod", stored.namespace, labels=labels)
            watcher.report_pods(stored.namespace, manifests)
            if all(self._is_lost(pod, watcher) for pod in manifests):
                self._remove_objects(stored, "ConfigMap")
                try:
                    self._store.remove(stored)
                except ConflictError:
                    continue
                watcher.report("deleted")
                return
            if self._clock() > deadline:
                raise UnavailableError(
                    f"The service {name!r} has not ended within {self._settings.timeout_s:.0f} s. Try again: scanflow "
                    f"delete {name}"
                )
            self._wait_for_change(stored.namespace, labels, version)

    def _remove_objects(self, stored: ServiceConfigMap, *mounted: str) -> None:
        """Remove the engine's objects, routes and Services of a service, and its objects of the ``mounted`` kinds."""
        labels = build_selector(service=stored.state.name)
        self._switch.remove(stored.state.definition)
        for kind in (*self._list_kinds(), "Service", *mounted):
            for manifest in self._find_objects(kind, stored.namespace, labels):
                if (kind, name := manifest["metadata"]["name"]) != ("ConfigMap", stored.object):
                    self._cluster.delete(kind, name, stored.namespace)

    def _record_failure(self, state: DesiredState, reason: str) -> None:
        self._store.change(
            state.name,
            lambda now: now.give_up(reason) if now is not None and now.generation == state.generation else None,
        )


def _is_fixed(definition: ServiceSpec, revision: Revision) -> bool:
    """Return whether the number of a revision's instances is fixed; else an autoscaler decides."""
    return definition.scaling is None or revision is not definition.current


def is_pod_in_revision(pod: Manifest, plan: RevisionPlan) -> bool:
    """Return whether a pod belongs to a revision and matches its template."""
    return observed.get_revision(pod) == plan.revision.id and observed.get_pod_template_hash(pod) == plan.template


class _Watcher:
    """Reports events of pods to an observer, each event once."""

    def __init__(self, cluster: Cluster, name: str, observe: ServiceObserver, clock: Callable[[], float]) -> None:
        self._cluster, self._name, self._observe, self._clock = cluster, name, observe, clock
        self._since: dict[str, float] = {}
        self._reported: set[tuple[str, str]] = set()
        self._waits: dict[str, str] = {}
        self.has_missing_pods = False
        """Whether there are fewer pods than planned: there are no objects to watch for them."""

    def report(self, text: str) -> None:
        self._observe(Progress(service=self._name, text=text))

    def format_waits(self) -> str:
        """Format what pods wait for, as the end of a sentence."""
        return "".join(f"; {pod}: {reason}" for pod, reason in self._waits.items())[:1000]

    def report_pods(self, namespace: str, manifests: Sequence[Manifest]) -> None:
        now = self._clock()
        for pod in manifests:
            name = pod["metadata"]["name"]
            state = observed.compute_instance_state(pod)
            if name not in self._since and state == "ready":
                self._reported.add((name, "ready"))  # it was ready before
            first = self._since.setdefault(name, now)
            self._waits.pop(name, None)
            if state == "ready":
                node = pod["spec"].get("nodeName", "?")
                self._report_once(name, "ready", f"instance {name} is ready on {node} ({now - first:.1f} s)")
            elif state == "draining":
                self._report_once(name, "draining", f"instance {name} is draining")
            elif now - first >= _REPORT_S or observed.count_restarts(pod):
                self._explain(namespace, pod)

    def report_denial(self, denial: PodDenial) -> None:
        """Report why pods are not created."""
        self._waits[denial.deployment] = str(denial)
        self._report_once(denial.deployment, str(denial), str(denial))

    def report_lost_instance(self, pod: Manifest) -> None:
        """Report that the rollout does not wait for an instance."""
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "?")
        text = (
            f"instance {name} on {node} did not terminate: its node does not answer, so it is no longer waited for. If "
            f"the node is dead: kubectl delete node {node}"
        )
        self._report_once(name, "lost", text)

    def clear_denial(self, deployment: str) -> None:
        """Forget why pods were not created."""
        self._waits.pop(deployment, None)

    def _explain(self, namespace: str, pod: Manifest) -> None:
        name = pod["metadata"]["name"]
        events, _ = self._cluster.find("Event", namespace, fields=f"involvedObject.name={name}")
        reason = observed.get_last_error(pod) or observed.explain_startup_delay(pod, events)
        if reason:
            self._waits[name] = reason
            self._report_once(name, reason, f"instance {name} is not ready: {reason}")

    def _report_once(self, pod: str, event: str, text: str) -> None:
        if (pod, event) not in self._reported:
            self._reported.add((pod, event))
            self.report(text)


def _format_failure(state: DesiredState, reason: str) -> str:
    reason = reason.rstrip(".")
    if state.fallback is None:
        return (
            f"The service {state.name!r} could not be deployed: {reason}. Its logs: scanflow logs {state.name}. Remove "
            f"it: scanflow delete {state.name}"
        )
    return f"The change of {state.name!r} did not take effect: {reason}. The previous version is still served."
