"""Roll out the desired state of a service to the cluster, without a failed request.

Every step is idempotent and repeated from the start by any process that continues, so that a process may be killed at
any moment: objects are applied, instances become ready, traffic is routed to them, and only then are objects removed
that no traffic reaches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scanflow.backends.kubernetes.api_errors import ConflictError, ExpiredError
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import REVISION, SERVICE, build_selector
from scanflow.backends.kubernetes.online import observed_objects
from scanflow.backends.kubernetes.online.engines import ENGINES
from scanflow.backends.kubernetes.online.render import RenderedRevision
from scanflow.backends.kubernetes.online.service_store import ServiceConfigMap, ServiceStore
from scanflow.backends.kubernetes.online.traffic_switch import TrafficSwitch
from scanflow.backends.kubernetes.pods import PodDenial, explain_denial
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import Progress, ServiceObserver
from scanflow.errors import NotFoundError, ScanflowError, UnavailableError, UsageError, end_sentence

_POLL_S: Final = 5.0
_REPORT_S: Final = 2.0
"""How long a pod may take to start before the reason is reported, and be denied before the rollout fails."""

_MISSING_POLL_S: Final = 1.0
"""The poll interval while pods are missing: there are no objects to watch."""

ENGINE_KINDS: Final = tuple(engine.kind for engine in ENGINES.values())


class _SupersededError(Exception):
    """The desired state has changed during the rollout."""


class _HopelessError(Exception):
    """An instance will never become ready."""


class Rollout:
    """The rollouts of one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        settings: KubernetesSettings,
        store: ServiceStore,
        switch: TrafficSwitch,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster, self._settings, self._store, self._switch = cluster, settings, store, switch
        self._clock, self._now = clock, now
        self._engine_kind = ENGINES[settings.serving].kind

    def roll_out(self, name: str, namespace: str, generation: int, observe: ServiceObserver) -> ServiceConfigMap:
        """Roll out a service's desired state, and return it once that generation, or a newer one, is in effect.

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
            stored = self._store.find(name, namespace)
            if stored is None and before is not None:
                self._remove_objects(before)  # the deletion may have missed objects that were created since
            if stored is None or stored.state.deleted:
                raise NotFoundError(f"The service {name!r} was deleted meanwhile.")
            before, state = stored, stored.state
            if error is not None and (state.in_effect or state.hopeless):
                raise error
            if error is None and state.settled >= generation:
                return stored
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
                self._record_failure(stored, str(failure))

    def _roll_out_generation(self, stored: ServiceConfigMap, watcher: _Watcher, deadline: float) -> None:
        state, rendering = stored.state, self._switch.render(stored.state.definition)
        for revision in rendering.revisions:
            self._apply_revision(revision)
        self._wait_until_ready(stored, rendering.revisions, watcher, deadline)
        self._check_superseded(stored)
        self._switch.route_traffic(rendering.routes)
        self._retire(stored, rendering.revisions)
        self._wait_until_removed(stored, rendering.revisions, watcher, deadline)
        self._record_hashes(stored, rendering.hashes)
        self._store.change(
            state.name, lambda now: now.settle() if now is not None and now == state else None, stored.namespace
        )
        watcher.report(f"generation {state.generation} is in effect in {stored.namespace}")

    def _record_hashes(self, stored: ServiceConfigMap, hashes: Mapping[str, str]) -> None:
        """Record the hashes of the applied manifests, so that other versions of scanflow leave the objects alone."""
        now = self._store.find(stored.state.name, stored.namespace)
        if now is not None and now.state == stored.state and now.applied_hashes != hashes:
            self._store.annotate(now, rendered=json.dumps(hashes))

    def _apply_revision(self, revision: RenderedRevision) -> None:
        for manifest in revision.manifests:
            self._cluster.apply(manifest, force=True)
        self._switch.scale(revision)

    def _wait_until_ready(
        self, stored: ServiceConfigMap, revisions: Sequence[RenderedRevision], watcher: _Watcher, deadline: float
    ) -> None:
        scaled: set[str] = set()
        denied_since: dict[str, float] = {}

        def are_all_ready(manifests: Sequence[Manifest]) -> bool:
            ready: list[bool] = []
            incomplete: list[bool] = []
            for revision in revisions:
                revision_pods = [pod for pod in manifests if revision.is_own_pod(pod)]
                target = self._scale_target(revision, scaled)
                if target is None:
                    self._recreate_objects(stored, revision)
                reason = next(
                    (reason for pod in revision_pods if (reason := observed_objects.find_fatal_reason(pod))), None
                )
                if reason is not None:
                    raise _HopelessError(reason)
                missing = len(revision_pods) < revision.min_instances
                incomplete.append(missing)
                ready.append(sum(map(observed_objects.is_ready, revision_pods)) >= revision.min_instances)
                if target is not None and missing:
                    self._check_denied(
                        target, watcher, denied_since, terminating=any(map(observed_objects.is_terminating, manifests))
                    )
            watcher.has_missing_pods = any(incomplete)
            return all(ready)

        self._wait_for_pods(stored, are_all_ready, watcher, deadline)
        watcher.has_missing_pods = False

    def _scale_target(self, revision: RenderedRevision, scaled: set[str]) -> Manifest | None:
        """Set the number of pods in the target, once if an autoscaler owns it, and return the target; None: the
        engine's controller has not created it yet."""
        (kind, name, _), namespace = revision.target, revision.namespace
        target, is_fixed = self._cluster.get(kind, name, namespace), revision.scaler is None
        if target is None or (revision.id in scaled and not is_fixed):
            return target
        before = target["spec"].get("replicas", 1)
        if before != revision.instances and (is_fixed or before < revision.instances):
            try:
                target = self._cluster.patch(kind, name, namespace, {"spec": {"replicas": revision.instances}})
            except NotFoundError:
                return None  # it was deleted since it was read
        scaled.add(revision.id)
        return target

    def _recreate_objects(self, stored: ServiceConfigMap, revision: RenderedRevision) -> None:
        """Apply a revision's objects again, if somebody deleted the engine's object."""
        if self._cluster.get(self._engine_kind, revision.workload["metadata"]["name"], revision.namespace) is None:
            self._check_superseded(stored)
            self._apply_revision(revision)

    def _check_superseded(self, stored: ServiceConfigMap) -> None:
        """Raise if the desired state has changed: the new rollout may own the objects already."""
        now = self._store.find(stored.state.name, stored.namespace)
        if now is None or now.state.generation != stored.state.generation or now.state.deleted:
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
        self, stored: ServiceConfigMap, revisions: Sequence[RenderedRevision], watcher: _Watcher, deadline: float
    ) -> None:
        """Wait until all instances but the planned ones are gone."""

        def are_others_gone(manifests: Sequence[Manifest]) -> bool:
            counts = [sum(map(revision.is_own_pod, manifests)) for revision in revisions]
            fixed = [
                count <= revision.instances
                for count, revision in zip(counts, revisions, strict=True)
                if revision.scaler is None
            ]
            return all(fixed) and sum(counts) == len(manifests)

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
                [pod for pod in manifests if not observed_objects.is_finished(pod) and not self._is_lost(pod, watcher)]
            ):
                return
            if self._clock() > deadline:
                raise UnavailableError(
                    f"The change of {state.name!r} is not in effect after {self._settings.timeout_s:.0f} "
                    f"s{watcher.format_waits()}. See what it waits for: scanflow services {state.name}"
                )
            self._check_superseded(stored)
            poll_s = _MISSING_POLL_S if watcher.has_missing_pods else _POLL_S
            self._wait_for_change(stored.namespace, labels, version, poll_s)

    def _is_lost(self, pod: Manifest, watcher: _Watcher) -> bool:
        """Return whether an instance is lost, and report it: its node is dead, or partitioned."""
        lost = observed_objects.is_lost(pod, self._now())
        if lost:
            watcher.report_lost_instance(pod)
        return lost

    def _wait_for_change(self, namespace: str, labels: str, version: str, within_s: float = _POLL_S) -> None:
        try:
            for _ in self._cluster.watch("Pod", namespace, labels=labels, since=version, within_s=within_s):
                return
        except ExpiredError:
            return

    def _retire(self, stored: ServiceConfigMap, revisions: Sequence[RenderedRevision]) -> None:
        """Remove the objects of revisions that no traffic reaches, and the ConfigMaps of older instances."""
        cluster, labels = self._cluster, build_selector(service=stored.state.name)
        config_maps = {revision.config_map["metadata"]["name"] for revision in revisions}
        ids = {revision.id for revision in revisions}
        obsolete: list[tuple[str, str]] = []
        for kind in (*self._list_kinds(), "Service", "ConfigMap"):
            for manifest in self._list_objects(kind, stored.namespace, labels):
                name, revision = manifest["metadata"]["name"], manifest["metadata"]["labels"].get(REVISION)
                if revision is not None and (revision not in ids or (kind == "ConfigMap" and name not in config_maps)):
                    obsolete.append((kind, name))
        if obsolete:
            self._check_superseded(stored)  # after the list: a newer desired state may need some of them
        for kind, name in obsolete:
            cluster.delete(kind, name, stored.namespace)

    def _list_kinds(self) -> list[str]:
        """Return the kinds of the engines, this engine's first."""
        return sorted(ENGINE_KINDS, key=lambda kind: kind != self._engine_kind)

    def _list_objects(self, kind: str, namespace: str, labels: str) -> list[Manifest]:
        """Return the objects of a kind; those of an engine that is not used may be missing, or forbidden."""
        if kind in ENGINE_KINDS and kind != self._engine_kind:
            return self._cluster.list_optional(kind, namespace, labels=labels)
        return self._cluster.find(kind, namespace, labels=labels)[0]

    def delete(self, name: str, namespace: str, observe: ServiceObserver) -> None:
        """Remove all objects of a deleted service, and return when its last instance is gone."""
        watcher = _Watcher(self._cluster, name, observe, self._clock)
        deadline = self._clock() + self._settings.timeout_s
        labels = f"{SERVICE}={name}"
        while (stored := self._store.find(name, namespace)) is not None and stored.state.deleted:
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
            for manifest in self._list_objects(kind, stored.namespace, labels):
                if (kind, name := manifest["metadata"]["name"]) != ("ConfigMap", stored.object):
                    self._cluster.delete(kind, name, stored.namespace)

    def _record_failure(self, stored: ServiceConfigMap, reason: str) -> None:
        generation = stored.state.generation
        self._store.change(
            stored.state.name,
            lambda now: now.give_up(reason) if now is not None and now.generation == generation else None,
            stored.namespace,
        )


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
            state = observed_objects.compute_instance_state(pod)
            if name not in self._since and state == "ready":
                self._reported.add((name, "ready"))  # it was ready before
            first = self._since.setdefault(name, now)
            self._waits.pop(name, None)
            if state == "ready":
                node = pod["spec"].get("nodeName", "?")
                self._report_once(name, "ready", f"instance {name} is ready on {node} ({now - first:.1f} s)")
            elif state == "draining":
                self._report_once(name, "draining", f"instance {name} is draining")
            elif now - first >= _REPORT_S or observed_objects.count_restarts(pod):
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
        reason = observed_objects.find_last_error(pod) or observed_objects.explain_startup_delay(pod, events)
        if reason:
            self._waits[name] = reason
            self._report_once(name, reason, f"instance {name} is not ready: {reason}")

    def _report_once(self, pod: str, event: str, text: str) -> None:
        if (pod, event) not in self._reported:
            self._reported.add((pod, event))
            self.report(text)


def _format_failure(state: DesiredState, reason: str) -> str:
    reason = end_sentence(reason)
    if state.fallback is None:
        return (
            f"The service {state.name!r} could not be deployed: {reason} Its logs: scanflow logs {state.name}. Remove "
            f"it: scanflow delete {state.name}"
        )
    return f"The change of {state.name!r} did not take effect: {reason} The previous version is still served."
