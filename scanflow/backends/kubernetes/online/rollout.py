"""Brings what is in the cluster to what is wanted of a service, without a failed request on the way.

Every step is said again from the start by whoever goes on, so that a process may be killed at any moment: objects are
applied, instances waited for, traffic pointed at them, and only then is taken away what nothing points at any more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from scanflow.backends.kubernetes.cluster import Cluster, ConflictError, ExpiredError
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import REVISION, SERVICE, selector
from scanflow.backends.kubernetes.online import observed, pods
from scanflow.backends.kubernetes.online.engines import ENGINES, ServingObject, has_kind, revision_object
from scanflow.backends.kubernetes.online.objects import rendered, revision_service
from scanflow.backends.kubernetes.online.scaling import ScalingTarget, target_of
from scanflow.backends.kubernetes.online.store import KeptService, ServiceStore
from scanflow.backends.kubernetes.online.switch import Switch
from scanflow.backends.kubernetes.pods import Denied, why_denied
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import Progress, ServiceObserver
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import NotFoundError, ScanflowError, UnavailableError, UsageError
from scanflow.wire import Revision

_LOOK_S: Final = 5.0
_TELL_S: Final = 2.0
"""How long a pod may take before it is told why, and be denied before that is taken for good."""

_UNMADE_LOOK_S: Final = 1.0
"""How often it is looked while pods are not made: nothing of theirs changes then."""

KINDS_OF_PODS: Final = tuple(engine.kind for engine in ENGINES.values())
GivenOf = Callable[[ServiceSpec], pods.Given]


class _SupersededError(Exception):
    """Something newer is wanted."""


class _HopelessError(Exception):
    """It will not become ready."""


class WantedRevision(NamedTuple):
    """A revision, and how many instances it is to have."""

    revision: Revision
    template: str
    instances: int
    target: ScalingTarget
    """What has the number of its pods."""

    fixed: bool
    """Whether there are exactly so many; else an autoscaler decides."""


class Rollout:
    """For one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        settings: KubernetesSettings,
        store: ServiceStore,
        switch: Switch,
        given: GivenOf,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster, self._settings, self._store, self._switch = cluster, settings, store, switch
        self._given, self._clock, self._now = given, clock, now
        self._engine: ServingObject = ENGINES[settings.serving]

    def bring(self, name: str, generation: int, observe: ServiceObserver) -> DesiredState:
        """Return the service once that generation, or a newer one, is in effect.

        Raises:
            UsageError: it cannot be; what served before serves on.
            UnavailableError: it takes too long; whoever asks for the next change goes on with it.
            NotFoundError: the service was deleted meanwhile.
        """
        watcher = _Watcher(self._cluster, name, observe, self._clock)
        give_up = self._clock() + self._settings.timeout_s
        error: ScanflowError | None = None
        before: KeptService | None = None
        while True:
            stored = self._store.find(name)
            if stored is None and before is not None:
                self._remove_objects(before)  # whoever deleted it may not have seen what was made since
            if stored is None or stored.state.deleted:
                raise NotFoundError(f"The service {name!r} was deleted meanwhile.")
            before, state = stored, stored.state
            if error is not None and (state.in_effect or state.hopeless):
                raise error
            if error is None and state.settled >= generation:
                return state
            try:
                self._bring(stored, watcher, give_up)
            except _SupersededError:
                continue
            except ConflictError as conflict:  # somebody wrote an object meanwhile: all is said again
                if self._clock() > give_up:
                    raise UnavailableError(
                        f"{conflict} What has the service {name!r} is written by others all the time. Try again in a "
                        "moment."
                    ) from conflict
            except (_HopelessError, UsageError) as failure:
                error = UsageError(_gave_up(state, str(failure)))
                self._give_up(state, str(failure))

    def _bring(self, stored: KeptService, watcher: _Watcher, give_up: float) -> None:
        state = stored.state
        definition, namespace = state.definition, stored.namespace
        given = self._given(definition)
        wanted = [self._wanted(definition, one, given) for one in definition.revisions]
        for one in wanted:
            self._apply(definition, one, given)
        self._until_ready(stored, wanted, given, watcher, give_up)
        self._check_wanted(state)
        self._switch.point(definition)
        self._retire(stored, definition, {one.revision.id for one in wanted}, given)
        self._until_gone(stored, wanted, watcher, give_up)
        self._note_rendered(state)
        self._store.change(state.name, lambda now: now.settle() if now is not None and now == state else None)
        watcher.tell(f"generation {state.generation} is in effect in {namespace}")

    def _note_rendered(self, state: DesiredState) -> None:
        """Have it known how the objects were written: a scanflow that would write them otherwise leaves them so."""
        definition = state.definition
        now = self._store.find(state.name)
        made = rendered([*self.manifests(definition), *self._switch.manifests(definition)])
        if now is not None and now.state == state and now.rendered != made:
            self._store.note(now, rendered=json.dumps(made))

    def _wanted(self, definition: ServiceSpec, revision: Revision, given: pods.Given) -> WantedRevision:
        template = pods.pod_template(definition, revision, given, container=self._engine.container)
        count, target = self._switch.instances(definition, revision), self._target_of(definition, revision)
        return WantedRevision(revision, pods.template_hash(template), count, target, _is_fixed(definition, revision))

    def _target_of(self, definition: ServiceSpec, revision: Revision) -> ScalingTarget:
        return target_of(self._settings.serving, pods.object_name(definition.workflow, revision.id))

    def manifests(self, definition: ServiceSpec) -> list[Manifest]:
        """Return what the pods of all revisions are made by, and what scales them."""
        given = self._given(definition)
        made = [made for one in definition.revisions for made in self._manifests(definition, one, given)]
        name = pods.object_name(definition.workflow, definition.current.id)
        scaler = self._switch.autoscaler(definition, name, fixed=False)
        return [*made, *([] if scaler is None else [scaler])]

    def counts(self, definition: ServiceSpec) -> list[tuple[ScalingTarget, int]]:
        """Return what has the number of pods of the revisions that have a fixed one, and that number."""
        fixed = [one for one in definition.revisions if _is_fixed(definition, one)]
        return [(self._target_of(definition, one), self._switch.instances(definition, one)) for one in fixed]

    def _manifests(self, definition: ServiceSpec, revision: Revision, given: pods.Given) -> list[Manifest]:
        return [
            pods.config_map(definition, revision, given),
            revision_service(definition, revision),
            revision_object(self._engine, definition, revision, given),
        ]

    def _apply(self, definition: ServiceSpec, one: WantedRevision, given: pods.Given) -> None:
        for manifest in self._manifests(definition, one.revision, given):
            self._cluster.apply(manifest, force=True)
        self._switch.scale(definition, pods.object_name(definition.workflow, one.revision.id), fixed=one.fixed)

    def _until_ready(
        self,
        stored: KeptService,
        wanted: Sequence[WantedRevision],
        given: pods.Given,
        watcher: _Watcher,
        give_up: float,
    ) -> None:
        begun: set[str] = set()
        denied: dict[str, float] = {}

        def ready(found: Sequence[Manifest]) -> bool:
            unmade: list[bool] = []
            for one in wanted:
                own = [pod for pod in found if pods_of(pod, one)]
                target = self._target(one, stored.namespace, begun)
                if target is None:
                    self._make_again(stored, one, given)
                why = next((why for pod in own if (why := observed.hopeless(pod))), None)
                if why is not None:
                    raise _HopelessError(why)
                missing = len(own) < (one.instances if one.fixed else min(1, one.instances))
                unmade.append(missing)
                if target is not None and missing:
                    self._check_denied(target, watcher, denied, leaving=any(map(observed.is_leaving, found)))
            watcher.unmade = any(unmade)
            return all(
                len(observed.ready_of(found, one.revision.id, one.template)) >= (one.instances if one.fixed else 1)
                or one.instances == 0
                for one in wanted
            )

        self._watch(stored, ready, watcher, give_up)
        watcher.unmade = False

    def _target(self, one: WantedRevision, namespace: str, begun: set[str]) -> Manifest | None:
        """Return what has the number of pods, with that number set; None: an engine's controller has to make it first.
        An autoscaler's number is set once."""
        target = self._cluster.get(one.target.kind, one.target.name, namespace)
        if target is None or (one.revision.id in begun and not one.fixed):
            return target
        before = target["spec"].get("replicas", 1)
        if before != one.instances and (one.fixed or before < one.instances):
            patch = {"spec": {"replicas": one.instances}}
            try:
                target = self._cluster.patch(one.target.kind, one.target.name, namespace, patch)
            except NotFoundError:
                return None  # it was deleted this moment
        begun.add(one.revision.id)
        return target

    def _make_again(self, stored: KeptService, one: WantedRevision, given: pods.Given) -> None:
        """Make a revision's objects again, where somebody deleted what its pods are made by."""
        name = pods.object_name(stored.state.name, one.revision.id)
        if self._cluster.get(self._engine.kind, name, stored.namespace) is None:
            self._check_wanted(stored.state)
            self._apply(stored.state.definition, one, given)

    def _check_wanted(self, state: DesiredState) -> None:
        """Raise that something newer is wanted: it may have all of it already."""
        now = self._store.find(state.name)
        if now is None or now.state.generation != state.generation or now.state.deleted:
            raise _SupersededError

    def _check_denied(self, target: Manifest, watcher: _Watcher, since: dict[str, float], *, leaving: bool) -> None:
        """Tell why pods are not made, and raise that if it lasts and cannot pass: no pod ends that makes room."""
        denied, name = why_denied(target), target["metadata"]["name"]
        if denied is None:
            since.pop(name, None)
            watcher.let_in(f"{target['metadata']['namespace']}/{name}")
            return
        first = since.setdefault(name, self._clock())
        watcher.denied(denied)
        if self._clock() - first >= _TELL_S and not (denied.passing or leaving):
            raise _HopelessError(str(denied))

    def _until_gone(
        self, stored: KeptService, wanted: Sequence[WantedRevision], watcher: _Watcher, give_up: float
    ) -> None:
        """Wait until all there is are the instances that are wanted."""

        def gone(found: Sequence[Manifest]) -> bool:
            own = [sum(pods_of(pod, one) for pod in found) for one in wanted]
            exact = all(count <= one.instances for count, one in zip(own, wanted, strict=True) if one.fixed)
            return exact and sum(own) == len(found)

        self._watch(stored, gone, watcher, give_up)

    def _watch(
        self, stored: KeptService, true: Callable[[Sequence[Manifest]], bool], watcher: _Watcher, give_up: float
    ) -> None:
        """Return once it is true of the service's pods; look again with every change of one."""
        labels, state = f"{SERVICE}={stored.state.name}", stored.state  # engines put labels of their own beside ours
        while True:
            found, version = self._cluster.find("Pod", stored.namespace, labels=labels)
            watcher.look(stored.namespace, found)
            if true([pod for pod in found if not observed.is_over(pod) and not self._is_lost(pod, watcher)]):
                return
            if self._clock() > give_up:
                raise UnavailableError(
                    f"The change of {state.name!r} is not in effect after {self._settings.timeout_s:.0f} s"
                    f"{watcher.waits_for()}. What it waits for: scanflow services show {state.name}"
                )
            self._check_wanted(state)
            look_s = _UNMADE_LOOK_S if watcher.unmade else _LOOK_S
            self._until_change(stored.namespace, labels, version, look_s)

    def _is_lost(self, pod: Manifest, watcher: _Watcher) -> bool:
        """Say whether an instance is waited for no more, and tell it: its node is dead, or cut off."""
        lost = observed.is_lost(pod, self._now())
        if lost:
            watcher.lost(pod)
        return lost

    def _until_change(self, namespace: str, labels: str, version: str, within_s: float = _LOOK_S) -> None:
        try:
            for _ in self._cluster.watch("Pod", namespace, labels=labels, since=version, within_s=within_s):
                return
        except ExpiredError:
            return

    def _retire(self, stored: KeptService, definition: ServiceSpec, kept: set[str], given: pods.Given) -> None:
        """Remove the objects of revisions that nothing points at, and what older instances were told."""
        cluster, labels = self._cluster, selector(service=stored.state.name)
        told = {pods.config_map(definition, one, given)["metadata"]["name"] for one in definition.revisions}
        over: list[tuple[str, str]] = []
        for kind in (*self._kinds(), "Service", "ConfigMap"):
            found, _ = cluster.find(kind, stored.namespace, labels=labels)
            for one in found:
                name, revision = one["metadata"]["name"], one["metadata"]["labels"].get(REVISION)
                if revision is not None and (revision not in kept or (kind == "ConfigMap" and name not in told)):
                    over.append((kind, name))
        if over:
            self._check_wanted(stored.state)  # after they were found: some may be what is wanted now
        for kind, name in over:
            cluster.delete(kind, name, stored.namespace)

    def _kinds(self) -> list[str]:
        """Return the kinds that pods of services may be made by in this cluster, this engine's first."""
        found = [self._engine.kind]
        return found + [kind for kind in KINDS_OF_PODS if kind not in found and has_kind(self._cluster, kind)]

    def delete(self, name: str, observe: ServiceObserver) -> None:
        """Remove all that a service has of which that is wanted, and return when its last instance is gone."""
        watcher = _Watcher(self._cluster, name, observe, self._clock)
        give_up = self._clock() + self._settings.timeout_s
        own = f"{SERVICE}={name}"
        while (stored := self._store.find(name)) is not None and stored.state.deleted:
            self._remove_objects(stored, "Secret")  # each time: who changed the service meanwhile may have made some
            found, version = self._cluster.find("Pod", stored.namespace, labels=own)
            watcher.look(stored.namespace, found)
            if all(self._is_lost(pod, watcher) for pod in found):
                self._remove_objects(stored, "ConfigMap")
                try:
                    self._store.remove(stored)
                except ConflictError:
                    continue
                watcher.tell("deleted")
                return
            if self._clock() > give_up:
                raise UnavailableError(
                    f"The service {name!r} has not ended within {self._settings.timeout_s:.0f} s. Try again: scanflow "
                    f"delete {name}"
                )
            self._until_change(stored.namespace, own, version)

    def _remove_objects(self, stored: KeptService, *mounted: str) -> None:
        """Remove what makes a service's pods and leads to them, and objects of the kinds that those mount."""
        labels = selector(service=stored.state.name)
        self._switch.remove(stored.state.definition)
        for kind in (*self._kinds(), "Service", *mounted):
            for one in self._cluster.find(kind, stored.namespace, labels=labels)[0]:
                if (kind, name := one["metadata"]["name"]) != ("ConfigMap", stored.object):
                    self._cluster.delete(kind, name, stored.namespace)

    def _give_up(self, state: DesiredState, why: str) -> None:
        self._store.change(
            state.name, lambda now: now.give_up(why) if now is not None and now.generation == state.generation else None
        )


def _is_fixed(definition: ServiceSpec, revision: Revision) -> bool:
    """Say whether a revision has exactly so many instances; else an autoscaler decides."""
    return definition.scaling is None or revision is not definition.current


def pods_of(pod: Manifest, one: WantedRevision) -> bool:
    """Say whether a pod is one of those that are wanted of a revision."""
    return observed.revision_of(pod) == one.revision.id and observed.template_of(pod) == one.template


class _Watcher:
    """Tells an observer what happens to pods, each thing once."""

    def __init__(self, cluster: Cluster, name: str, observe: ServiceObserver, clock: Callable[[], float]) -> None:
        self._cluster, self._name, self._observe, self._clock = cluster, name, observe, clock
        self._since: dict[str, float] = {}
        self._told: set[tuple[str, str]] = set()
        self._waits: dict[str, str] = {}
        self.unmade = False
        """Whether fewer pods are there than are wanted, in which case there is nothing to hear of them."""

    def tell(self, text: str) -> None:
        self._observe(Progress(service=self._name, text=text))

    def waits_for(self) -> str:
        """Return what pods wait for, as the end of a sentence."""
        return "".join(f"; {pod}: {why}" for pod, why in self._waits.items())[:1000]

    def look(self, namespace: str, found: Sequence[Manifest]) -> None:
        now = self._clock()
        for pod in found:
            name = pod["metadata"]["name"]
            state = observed.instance_state(pod)
            if name not in self._since and state == "ready":
                self._told.add((name, "ready"))  # it was before
            first = self._since.setdefault(name, now)
            self._waits.pop(name, None)
            if state == "ready":
                node = pod["spec"].get("nodeName", "?")
                self._once(name, "ready", f"instance {name} is ready on {node} ({now - first:.1f} s)")
            elif state == "draining":
                self._once(name, "draining", f"instance {name} answers what it has read, and ends")
            elif now - first >= _TELL_S or observed.restarts(pod):
                self._explain(namespace, pod)

    def denied(self, denied: Denied) -> None:
        """Tell why pods are not made."""
        self._waits[denied.deployment] = str(denied)
        self._once(denied.deployment, str(denied), str(denied))

    def lost(self, pod: Manifest) -> None:
        """Tell that an instance is not waited for."""
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "?")
        text = (
            f"instance {name} on {node} was to end and has not: its node does not answer, and nobody waits for it. Is "
            f"the node dead? kubectl delete node {node}"
        )
        self._once(name, "lost", text)

    def let_in(self, deployment: str) -> None:
        """Forget that pods were not made."""
        self._waits.pop(deployment, None)

    def _explain(self, namespace: str, pod: Manifest) -> None:
        name = pod["metadata"]["name"]
        events, _ = self._cluster.find("Event", namespace, fields=f"involvedObject.name={name}")
        why = observed.last_error(pod) or observed.waits_for(pod, events)
        if why:
            self._waits[name] = why
            self._once(name, why, f"instance {name} is not ready: {why}")

    def _once(self, pod: str, what: str, text: str) -> None:
        if (pod, what) not in self._told:
            self._told.add((pod, what))
            self.tell(text)


def _gave_up(state: DesiredState, why: str) -> str:
    reason = why.rstrip(".")
    if state.fallback is None:
        return (
            f"The service {state.name!r} could not be deployed: {reason}. Its logs: scanflow logs {state.name}. Remove "
            f"it: scanflow delete {state.name}"
        )
    return f"The change of {state.name!r} did not come into effect: {reason}. What was served before is served on."
