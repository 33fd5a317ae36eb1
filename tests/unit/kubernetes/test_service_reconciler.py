"""What is due for a service where no supervisor sees to it: its backup, and the verdict on its canary."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.canary_analysis import RevisionStats
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.backends.kubernetes.online.instance_pods import NAMESPACE as DETAIL
from scanflow.backends.kubernetes.online.reconciler import ServiceReconciler, should_backup_answer
from scanflow.backends.kubernetes.online.service_store import ServiceStore, build_state_map
from scanflow.backends.kubernetes.online.traffic import compute_shares
from scanflow.backends.kubernetes.online.traffic_switch import TrafficSwitch
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import Totals
from scanflow.backends.service_records import CanaryPolicy, RevisionRecord, ServiceRecord, ServiceState, Shape
from scanflow.backends.service_spec import ServiceSpec
from scanflow.instance_messages import Revision
from scanflow.testing.memory_cluster import MemoryCluster

NAMESPACE = "scanflow-shop-data"


@pytest.mark.parametrize(
    ("backup_active", "ready_s", "backup_ready", "answers"),
    [
        (False, [], True, True),
        (False, [], False, False),
        (False, [0.0], True, False),
        (True, [], True, True),
        (True, [5.9], True, True),
        (True, [0.5, 6.0], True, False),
        (True, [], False, True),
    ],
)
def test_a_backup_answers_while_nobody_else_could_and_until_that_has_lasted(
    backup_active: bool, ready_s: list[float], backup_ready: bool, answers: bool
) -> None:
    answer_now = should_backup_answer(
        backup_active=backup_active, ready_s=ready_s, wanted=1, backup_ready=backup_ready, hand_back_after=3
    )
    assert answer_now is answers


def test_a_service_that_sleeps_is_answered_for_by_nobody() -> None:
    for backup_active in (True, False):
        answer_now = should_backup_answer(
            backup_active=backup_active, ready_s=[], wanted=0, backup_ready=True, hand_back_after=3
        )
        assert not answer_now


class Shop:
    """Two services of one application, at a time that the test moves."""

    def __init__(self, gateway: str | None = "infra/public", **changes: Any) -> None:
        self.cluster, self.at, self.totals = MemoryCluster(namespaces=("default", NAMESPACE)), 1000.0, Totals()
        settings = KubernetesSettings(gateway=gateway)
        self.store, self.switch = ServiceStore(self.cluster), TrafficSwitch(self.cluster, settings)
        self.reconciler = ServiceReconciler(
            self.cluster, self.store, self.switch, lambda _name: self.totals, clock=lambda: self.at
        )
        serving = sf.Serving(backup="spare", hand_back_after=3)
        for definition in (spec("serving", serving=serving, **changes), spec("spare")):
            self._keep(definition)
        self.definition = self.store.get("serving").state.definition

    def serve(self, name: str) -> None:
        """Have another service."""
        self._keep(spec(name))

    def _keep(self, definition: ServiceSpec) -> None:
        state = DesiredState(name=definition.workflow, port=8080, created=1.0, settled=1, definition=definition)
        self.cluster.create(build_state_map(state))
        self.switch.route_traffic(self.switch.render_routes(definition))

    def pod(self, service: str, *, ready: bool = True) -> None:
        """Have an instance that is ready, or not, since now."""
        since = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"type": "Ready", "status": str(ready), "lastTransitionTime": since}
        metadata = {
            "name": service,
            "namespace": NAMESPACE,
            "labels": build_labels("shop", "data", service=service, revision="r1"),
        }
        self.cluster.delete("Pod", service, NAMESPACE)
        pod: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}
        self.cluster.create({**pod, "status": {"conditions": [status]}})

    def look(self, state: ServiceState = "degraded") -> ServiceChange | None:
        roles = ("current", "canary")
        revisions = [
            RevisionRecord(id=revision.id, role=role)  # type: ignore[arg-type]
            for revision, role in zip(self.definition.revisions, roles, strict=False)
        ]
        record = ServiceRecord(
            name="serving",
            app="shop",
            team="data",
            state=state,
            url="http://gateway",
            generation=1,
            shape=Shape(),
            backup=self.definition.serving.backup,
            revisions=tuple(revisions),
        ).with_details(namespace=NAMESPACE)
        return self.reconciler.reconcile(record)

    @property
    def answers(self) -> str:
        """The only one that the route leads to, which the Service's selector has too."""
        service = self.cluster.get("Service", "serving", NAMESPACE)
        route = self.cluster.get("HTTPRoute", "serving", NAMESPACE)
        assert service is not None
        chosen: str = service["spec"]["selector"]["scanflow.dev/service"]
        if route is not None:
            assert compute_shares(route) == {f"{chosen}-r1": 1.0}
        return chosen


def spec(name: str, **changes: Any) -> ServiceSpec:
    fields: dict[str, Any] = {"deployment": 1, "serves": 1, "shape": Shape()}
    fields |= {"revisions": (Revision(id="r1", nodes=()),), "details": {DETAIL: NAMESPACE}} | changes
    return ServiceSpec(app="shop", team="data", workflow=name, app_dir="/app", **fields)


@pytest.mark.parametrize("gateway", ["infra/public", None])
def test_a_backup_takes_over_and_hands_back(gateway: str | None) -> None:
    shop = Shop(gateway)
    shop.pod("serving")
    shop.pod("spare")
    shop.look()
    assert shop.answers == "serving"
    shop.pod("serving", ready=False)
    shop.look()
    assert shop.answers == "spare"
    assert shop.store.get("serving").active_backup == "spare"
    shop.at += 10
    shop.pod("serving")
    shop.look()
    assert shop.answers == "spare"
    shop.at += 6
    shop.look()
    assert shop.answers == "serving"
    assert shop.store.get("serving").active_backup is None


def test_a_service_and_its_backup_are_read_where_they_are() -> None:
    shop = Shop()
    shop.pod("spare")
    shop.cluster.calls.clear()
    shop.look()
    assert shop.answers == "spare"
    assert {call.namespace for call in shop.cluster.calls if call.kind == "ConfigMap"} == {NAMESPACE}


@pytest.mark.parametrize("backup", ["third", None])
def test_one_that_is_its_backup_no_more_answers_until_another_can(backup: str | None) -> None:
    shop = Shop()
    shop.serve("third")
    shop.pod("spare")
    shop.look()
    assert shop.answers == "spare"

    def take_state(now: DesiredState | None) -> DesiredState | None:
        assert now is not None
        definition = now.definition.with_changes(serving=now.definition.serving.replace(backup=backup))
        return now.model_copy(update={"definition": definition})

    shop.store.change("serving", take_state)
    shop.definition = shop.store.get("serving").state.definition
    shop.look("backup")
    assert shop.answers == "spare"
    if backup is not None:
        shop.pod("third")
        shop.look("backup")
        assert (shop.answers, shop.store.get("serving").active_backup) == ("third", "third")
    shop.pod("serving")
    shop.at += 6
    shop.look("backup")
    assert (shop.answers, shop.store.get("serving").active_backup) == ("serving", None)


def test_a_service_with_instances_that_all_answer_is_not_read_again() -> None:
    shop = Shop()
    before = len(shop.cluster.calls)
    assert shop.look("ready") is None
    assert len(shop.cluster.calls) == before


@pytest.mark.parametrize("annotation", ["active-backup", "answers"])  # and as an earlier version called it
def test_who_was_ended_between_two_steps_is_gone_on_for(annotation: str) -> None:
    shop = Shop()
    shop.pod("spare")
    noted = shop.store.annotate(shop.store.get("serving"), **{annotation: "spare"})  # and then it was ended
    assert noted.active_backup == "spare"
    shop.look()
    assert shop.answers == "spare"
    shop.pod("serving")
    shop.at += 6
    shop.switch.route_traffic(shop.switch.render_routes(shop.definition))  # and then it was ended
    shop.look()
    assert (shop.answers, shop.store.get("serving").active_backup) == ("serving", None)


POLICY = CanaryPolicy(metric="mean", ratio=1.2, after_requests=100, within_s=60)
CANARY = (Revision(id="r1", nodes=(), weight=0.9), Revision(id="r2", nodes=(), weight=0.1))


def stats(requests: int, seconds: float) -> RevisionStats:
    return RevisionStats(requests=requests, seconds=seconds, buckets={float("inf"): requests})


@pytest.mark.parametrize(
    ("canary", "change"),
    [
        (stats(50, 5.0), None),
        (stats(100, 11.0), ServiceChange(promote=True)),
        (stats(100, 13.0), ServiceChange(rollback=True)),
    ],
)
def test_a_canary_is_judged_by_what_was_done_since_it_began(
    canary: RevisionStats, change: ServiceChange | None
) -> None:
    shop = Shop(revisions=CANARY, policy=POLICY)
    shop.pod("serving")
    shop.totals = Totals({"r1": stats(1000, 9000.0)})  # slow, before it began
    assert shop.look() is None
    shop.at += 30
    shop.totals = Totals({"r1": stats(2000, 9100.0), "r2": canary})
    assert shop.look() == change


def test_a_canary_without_requests_is_taken_back_in_time() -> None:
    shop = Shop(revisions=CANARY, policy=POLICY)
    shop.pod("serving")
    assert shop.look() is None
    shop.at += 60
    assert shop.look() == ServiceChange(rollback=True)


def test_a_service_without_backup_and_canary_costs_nothing() -> None:
    shop = Shop()
    shop.cluster.calls.clear()
    record = ServiceRecord(name="spare", app="shop", team="data", state="ready", url="", generation=1, shape=Shape())
    assert shop.reconciler.reconcile(record) is None
    assert shop.cluster.calls == []


@pytest.mark.parametrize("answered", [False, True])
def test_callers_are_not_led_where_a_change_has_just_led_them_away_from(answered: bool) -> None:
    """The service is changed, wholly, between the look at it and what would follow from that."""
    shop = Shop()
    shop.pod("spare")
    if answered:
        shop.look()
        assert shop.answers == "spare"
        shop.pod("serving")
        shop.at += 60
    newer = spec("serving", revisions=(Revision(id="r2", nodes=()),), serving=shop.definition.serving)

    def change_while_read(verb: str, kind: str, _manifest: Manifest) -> None:
        if (verb, kind) == ("find", "Pod") and shop.store.get("serving").state.generation == 1:
            settled = {"definition": newer, "generation": 2, "settled": 2}
            shop.store.change("serving", lambda now: now and now.model_copy(update=settled))
            shop.switch.route_traffic(shop.switch.render_routes(newer))

    shop.cluster.refuse(change_while_read)
    assert shop.look() is None
    route = shop.cluster.get("HTTPRoute", "serving", NAMESPACE)
    assert route is not None
    assert compute_shares(route) == {"serving-r2": 1.0}
