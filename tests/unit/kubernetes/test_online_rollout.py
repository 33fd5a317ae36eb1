"""Services from the first deployment to the end, on a cluster in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.differences import compute_differences
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.object_labels import build_selector
from scanflow.backends.kubernetes.online import instance_pods
from scanflow.backends.kubernetes.online.instance_pods import build_pod_template
from scanflow.backends.kubernetes.online.service_store import STATE, ServiceStore
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import (
    InternalError,
    InvalidError,
    NotFoundError,
    ScanflowError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from scanflow.instance_messages import Revision
from tests.unit.kubernetes.kubernetes_services import NAMESPACE, READY, Served
from tests.waiting import PATIENCE_S


@pytest.fixture
def cluster_service(tmp_path: Path) -> Served:
    return Served(tmp_path)


def test_a_service_is_deployed_changed_and_removed(cluster_service: Served) -> None:
    record = cluster_service.deploy()
    assert (record.state, record.generation, record.settled, record.previous) == ("ready", 1, 1, False)
    assert [instance.state for instance in record.instances] == ["ready"]
    assert cluster_service.answering() == {"r1"}
    assert [instance.state for instance in cluster_service.change(instances=3).instances] == ["ready"] * 3
    swapped = cluster_service.deploy(3)
    assert (swapped.previous, swapped.settled, cluster_service.answering()) == (True, swapped.generation, {"r3"})
    assert list(cluster_service.get_objects("Deployment")) == ["serving-r3"], "what nothing points at is taken away"
    cluster_service.change(rollback=True)
    assert len(cluster_service.answering()) == 1
    cluster_service.services.delete("serving", observe=lambda _: None)
    for kind in ("Deployment", "Service", "ConfigMap", "Pod"):
        assert cluster_service.cluster.find(kind, NAMESPACE, labels=build_selector(service="serving"))[0] == [], kind
    with pytest.raises(NotFoundError, match="There is no service 'serving'"):
        cluster_service.services.service("serving")


def test_what_a_deployment_would_make_and_change_is_reported_before(
    cluster_service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVING_TOKEN", "secret")
    cluster_service.serving = sf.Serving(auth="env:SERVING_TOKEN")

    def plan_changes(by: int) -> dict[str, str]:
        app = cluster_service.app(by)
        cluster_service.cluster.calls.clear()
        manifests = cluster_service.services.manifests(app, app.workflow("serving"))
        lists = [call.kind for call in cluster_service.cluster.calls if call.verb == "find" and call.namespace is None]
        assert lists == ["ConfigMap"], "what was deployed is listed once"
        return {
            f"{difference.kind} {difference.name}": difference.change
            for difference in compute_differences(cluster_service.cluster, manifests)
        }

    first = plan_changes(2)
    assert cluster_service.cluster.get("Namespace", NAMESPACE) is None, "nothing is made"
    assert set(first.values()) == {"create"}
    assert {"Deployment serving-r1", "Service serving", "Service serving-r1", "Secret service-serving-token"} < set(
        first
    )
    cluster_service.deploy()
    there = [cluster_service.cluster.get(kind, name, NAMESPACE) for kind, name in map(str.split, first)]
    assert all(there), "and no more is made"
    again = plan_changes(3)
    assert (again["Deployment serving-r2"], again["Service serving"]) == ("create", "change")
    assert again["Secret service-serving-token"] == "none"


def test_a_backup_learns_for_which_service_it_answers_before_it_has_to(cluster_service: Served) -> None:
    cluster_service.others = ("spare", "third")

    def names(service: str) -> list[str]:
        """Return the names that its instances, as they are there now, answer under beside its own."""
        pods, _ = cluster_service.cluster.find("Pod", NAMESPACE, labels=build_selector(service=service))
        (pod,) = pods
        (volume,) = (entry for entry in pod["spec"]["volumes"] if entry["name"] == "service")
        config_map = cluster_service.cluster.get("ConfigMap", volume["configMap"]["name"], NAMESPACE)
        assert config_map is not None
        return list(json.loads(config_map["data"]["instance.json"])["aliases"])

    cluster_service.deploy()
    with pytest.raises(NotFoundError, match=r"has no online workflow 'spar' to use as a backup.*Deploy it first"):
        cluster_service.change(backup="spar")
    for name in cluster_service.others:
        cluster_service.deploy(name=name)
    assert names("spare") == []
    with pytest.raises(UsageError, match="chains of backups"):
        cluster_service.change(backup="serving")
    assert cluster_service.change(backup="spare").backup == "spare"
    assert names("spare") == ["serving"]
    with pytest.raises(UsageError, match="'spare' is the backup of 'serving'"):
        cluster_service.services.delete("spare", observe=lambda _: None)
    cluster_service.deploy(3, name="spare")
    assert names("spare") == ["serving"], "a deployment of its own takes nothing from the other one"
    cluster_service.services.change("spare", ServiceChange(rollback=True), key=None, observe=lambda _: None)
    assert names("spare") == ["serving"]
    cluster_service.serving = sf.Serving(backup="third")
    assert cluster_service.deploy(2).backup == "third"
    assert names("third") == ["serving"], "as the application is written now"
    assert cluster_service.change(backup="").backup is None
    cluster_service.services.delete("third", observe=lambda _: None)


def test_a_scaling_that_the_cluster_does_not_support_changes_nothing(cluster_service: Served) -> None:
    with pytest.raises(UsageError, match=r"Scaling.metric='rps': KEDA"):
        cluster_service.deploy(scaling=sf.Scaling(metric="rps", target=5))
    assert cluster_service.get_objects("Deployment") == {}
    first, version = cluster_service.deploy(), cluster_service.cluster.find("Pod")[1]
    for metric, words in (("rps", "Scaling.metric='rps': KEDA"), ("gpu", "Scaling.metric='gpu' goes by")):
        scaling = sf.Scaling.model_validate({"metric": metric, "target": 0.5})
        with pytest.raises(UsageError, match=words):
            cluster_service.change(scaling=scaling)
    assert cluster_service.services.service("serving").generation == first.generation
    assert cluster_service.cluster.find("Pod")[1] == version, "nothing was written"


def test_a_change_that_was_requested_with_a_key_is_made_once(cluster_service: Served) -> None:
    first = cluster_service.deploy(key="a")
    version = cluster_service.cluster.find("Pod")[1]
    assert cluster_service.deploy(key="a").generation == first.generation
    assert cluster_service.cluster.find("Pod")[1] == version, "nothing was written"
    grown = cluster_service.change(instances=2, key="b")
    assert cluster_service.change(instances=2, key="b").generation == grown.generation


def test_instances_that_see_no_difference_stay(cluster_service: Served) -> None:
    cluster_service.deploy()
    before = set(cluster_service.get_objects("Pod"))
    assert set(cluster_service.get_objects("Pod")) == before
    cluster_service.change(instances=2)
    assert before < set(cluster_service.get_objects("Pod"))


def make_broken_status(_pod: Manifest) -> Manifest:
    ended = {"exitCode": 78, "message": "ValueError: less than nothing", "reason": "Error"}
    return {"phase": "Running", "containerStatuses": [{"name": "instance", "state": {"terminated": ended}}]}


def imageless(_pod: Manifest) -> Manifest:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nowhere/none:1"'}
    return {"phase": "Pending", "containerStatuses": [{"name": "instance", "state": {"waiting": waiting}}]}


@pytest.mark.parametrize(
    ("status", "message"),
    [(make_broken_status, "less than nothing"), (imageless, "nowhere/none:1.*SCANFLOW_KUBERNETES_PULL_SECRET")],
)
def test_a_change_that_cannot_be_is_given_up_and_what_served_is_served_on(
    cluster_service: Served, status: Callable[[Manifest], Manifest], message: str
) -> None:
    cluster_service.deploy()
    cluster_service.status = lambda pod: (
        READY if pod["metadata"]["labels"]["scanflow.dev/revision"] == "r1" else status(pod)
    )
    with pytest.raises(UsageError, match=f"(?s)did not take effect: .*{message}.*is still served"):
        cluster_service.deploy(3)
    record = cluster_service.services.service("serving")
    assert (record.state, record.current and record.current.id, cluster_service.answering()) == ("ready", "r1", {"r1"})
    assert record.error
    assert list(cluster_service.get_objects("Deployment")) == ["serving-r1"]


def test_a_first_deployment_that_cannot_be_says_so_until_there_is_a_better_one(cluster_service: Served) -> None:
    cluster_service.status = make_broken_status
    with pytest.raises(UsageError, match=r"could not be deployed: .*less than nothing.*scanflow delete serving"):
        cluster_service.deploy()
    record = cluster_service.services.service("serving")
    assert (record.state, record.error) == ("failed", "ValueError: less than nothing")
    cluster_service.status = lambda _: READY
    assert cluster_service.deploy(3).state == "ready"


def test_what_is_waited_for_too_long_is_named_and_gone_on_with(tmp_path: Path) -> None:
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "2 Insufficient cpu."}
    served = Served(tmp_path, status=lambda _: {"phase": "Pending", "conditions": [unplaced]}, timeout_s=0.01)
    with pytest.raises(UnavailableError, match="not in effect after 0 s"):
        served.deploy(key="a")
    record = served.services.service("serving")
    assert (record.state, record.settled) == ("starting", 0)
    assert record.error == (
        "Unschedulable: 2 Insufficient cpu. Ask for fewer cores, stop pods that hold them, or add a node. Look: "
        "kubectl describe nodes"
    )
    for name in served.get_objects("Pod"):
        served.cluster.patch("Pod", name, NAMESPACE, {"status": READY})
    served.services = served.make_another(timeout_s=PATIENCE_S)
    assert served.deploy(key="a").settled == 1


def test_pods_that_are_not_let_in_are_reported_and_given_up(cluster_service: Served) -> None:
    cluster_service.deploy()
    message = 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}

    def deny(cluster: Any, deployment: Manifest) -> None:
        names = [
            pod for pod in cluster_service.get_objects("Pod") if pod.startswith(f"{deployment['metadata']['name']}-")
        ]
        for name in names[1:]:
            cluster.delete("Pod", name, NAMESPACE)
        denied = deployment["spec"].get("replicas", 1) > 1
        status = {"observedGeneration": deployment["metadata"]["generation"], "conditions": [condition] * denied}
        cluster.patch("Deployment", deployment["metadata"]["name"], NAMESPACE, {"status": status}, subresource="status")

    cluster_service.cluster.play("Deployment", deny)
    with pytest.raises(UsageError, match=rf"Deployment {NAMESPACE}/serving-r1 can be created.*exceeded quota.*served"):
        cluster_service.change(instances=3)
    assert any("kubectl describe quota" in text for text in cluster_service.messages)
    assert cluster_service.services.service("serving").shape.instances == 1


@pytest.mark.parametrize("kind", ["SeldonDeployment", "InferenceService"])
def test_an_engine_that_is_missing_is_named_before_anything_is_made(tmp_path: Path, kind: str) -> None:
    engine = "seldon" if kind == "SeldonDeployment" else "kserve"
    served = Served(tmp_path, unknown=(kind,), serving=engine)
    with pytest.raises(UnsupportedError, match=rf"no {kind} .*SCANFLOW_KUBERNETES_SERVING=deployment"):
        served.deploy()
    assert served.cluster.get("Namespace", NAMESPACE) is None


def test_a_deployment_is_rendered_once_and_lists_the_services_of_all_namespaces_only_while_it_knows_none(
    cluster_service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []

    def build(definition: ServiceSpec, revision: Revision, *options: Any, container: str) -> Manifest:
        rendered.append(revision.id)
        return build_pod_template(definition, revision, *options, container=container)

    def count(act: Callable[[], object]) -> tuple[int, list[str]]:
        """Return how often an action lists the services of all namespaces, and the revisions that it renders."""
        cluster_service.cluster.calls.clear()
        rendered.clear()
        act()
        lists = [call for call in cluster_service.cluster.calls if (call.verb, call.kind) == ("find", "ConfigMap")]
        return sum(call.namespace is None for call in lists), list(rendered)

    monkeypatch.setattr(instance_pods, "build_pod_template", build)
    assert count(cluster_service.deploy) == (3, ["r1"]), (
        "whose it is, whose backup it is, and that its name is still free"
    )
    assert count(lambda: cluster_service.deploy(3)) == (2, ["r2"]), "whose it is, and whose backup it is"
    assert count(lambda: cluster_service.change(instances=2)) == (1, ["r2"]), "where it is"
    assert count(lambda: cluster_service.services.delete("serving", observe=lambda _: None)) == (2, []), (
        "and whose backup it is"
    )


def test_a_shadow_that_the_gateway_gets_no_copies_for_is_refused_before_a_pod_of_it_is_made(tmp_path: Path) -> None:
    served = Served(tmp_path, gateway="default/public")
    spec = {"gatewayClassName": "plain"}
    for kind, name, own in (
        ("Gateway", "public", spec),
        ("GatewayClass", "plain", {"controllerName": "example.org/c"}),
    ):
        namespace = {"namespace": "default"} if kind == "Gateway" else {}
        metadata = {"name": name, **namespace}
        served.cluster.create({"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, "spec": own})
    served.cluster.edit("GatewayClass", "plain", None, {"status": {"supportedFeatures": []}})
    served.deploy()

    def shadow(now: DesiredState | None) -> DesiredState | None:
        assert now is not None
        current = now.definition.current
        revisions = (current, Revision(id="r2", nodes=current.nodes, weight=0.0, shadow=True))
        return now.request_definition(now.definition.with_changes(revisions=revisions), replaces=True)

    ServiceStore(served.cluster).change("serving", shadow)
    served.cluster.calls.clear()
    with pytest.raises(UsageError, match=r"did not take effect: .*shadow.* copy no requests"):
        served.change(instances=2)
    assert "serving-r2" not in {call.name for call in served.cluster.calls}


def test_an_object_of_the_name_of_a_service_that_is_none_is_not_read_as_one(cluster_service: Served) -> None:
    cluster_service.deploy()
    cluster_service.cluster.edit("ConfigMap", "service-serving", NAMESPACE, {"metadata": {"labels": {STATE: None}}})
    assert ServiceStore(cluster_service.cluster).find("serving", NAMESPACE) is None


def test_a_service_that_is_in_another_namespace_by_now_is_changed_there_and_not_made_twice(
    cluster_service: Served,
) -> None:
    cluster_service.deploy()
    changed = ServiceStore(cluster_service.cluster).change(
        "serving", lambda now: now and now.with_key("ours"), "default"
    )
    assert changed is not None
    assert "ours" in changed.changes


WRITES = {"apply", "create", "patch", "delete"}


def count_writes(served: Served) -> int:
    return sum(call.verb in WRITES and call.kind != "Pod" for call in served.cluster.calls)


def test_whoever_is_stopped_at_any_moment_another_goes_on(tmp_path: Path) -> None:
    whole = Served(tmp_path)
    whole.deploy()
    before = count_writes(whole)
    whole.deploy(3, key="swap")
    steps = count_writes(whole) - before
    assert steps > 8
    for stop in range(1, steps + 1):
        served, remaining = Served(tmp_path), [stop]
        served.deploy()

        def refusal(
            verb: str, kind: str, _manifest: Manifest, remaining: list[int] = remaining
        ) -> ScanflowError | None:
            if verb not in WRITES or kind == "Pod":
                return None
            remaining[0] -= 1
            return UnavailableError("killed") if remaining[0] == 0 else None

        served.cluster.refuse(refusal)
        with pytest.raises(UnavailableError, match="killed"):
            served.deploy(3, key="swap")
        assert served.answering(), f"somebody answers after the step {stop}"
        record = served.deploy(3, key="swap", services=served.make_another())
        assert (record.state, record.settled, record.generation) == ("ready", record.generation, 2), stop
        for kind in ("Deployment", "Service", "Pod"):
            assert list(served.get_objects(kind)) == list(whole.get_objects(kind)), (stop, kind)


def test_a_service_of_another_application_is_not_taken_over(cluster_service: Served) -> None:
    cluster_service.deploy()
    state = cluster_service.cluster.get("ConfigMap", "service-serving", NAMESPACE)
    assert state is not None
    document = state["data"]["service.json"].replace('"team":"data"', '"team":"other"')
    cluster_service.cluster.edit("ConfigMap", "service-serving", NAMESPACE, {"data": {"service.json": document}})
    with pytest.raises(InvalidError, match="by the application 'shop' of team 'other'"):
        cluster_service.deploy(3)


def test_a_service_that_cannot_be_read_is_named(cluster_service: Served) -> None:
    cluster_service.deploy()
    cluster_service.cluster.edit("ConfigMap", "service-serving", NAMESPACE, {"data": {"service.json": "{"}})
    with pytest.raises(InternalError, match=rf"{NAMESPACE}/service-serving does not hold a valid service record"):
        cluster_service.services.services()


def test_a_change_is_made_on_what_another_wrote_meanwhile(cluster_service: Served) -> None:
    cluster_service.deploy()
    store, other = ServiceStore(cluster_service.cluster), list[Any]()

    def make(now: Any) -> Any:
        if not other:
            other.append(store.change("serving", lambda record: record and record.with_key("theirs")))
        return now.with_key("ours")

    changed = store.change("serving", make)
    assert changed is not None
    assert set(changed.changes) >= {"theirs", "ours"}
    assert store.get("serving").state == changed


def test_an_instance_on_a_dead_node_is_named_and_not_waited_for(cluster_service: Served) -> None:
    cluster_service.deploy()
    (old,) = cluster_service.get_objects("Pod")
    gone = {"finalizers": ["test/its-kubelet"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    cluster_service.cluster.edit("Pod", old, NAMESPACE, {"metadata": gone, "spec": {"nodeName": "n7"}})
    record = cluster_service.deploy(3)
    assert (record.state, record.settled) == ("ready", record.generation)
    assert any(f"instance {old} on n7 did not terminate" in text for text in cluster_service.messages)
    cluster_service.services.delete("serving", observe=lambda _: None)
    with pytest.raises(NotFoundError):
        cluster_service.services.service("serving")


def once(served: Served, verb: str, kind: str, then: Callable[[], object], *, skip: int = 0) -> None:
    """Do something just before the cluster is asked so, once; an error from it is the answer."""
    remaining = [skip]

    def refuse_write(asked: str, of: str, _manifest: Manifest) -> ScanflowError | None:
        if (asked, of) != (verb, kind) or remaining[0] < 0:
            return None
        remaining[0] -= 1
        done = then() if remaining[0] < 0 else None
        return done if isinstance(done, ScanflowError) else None

    served.cluster.refuse(refuse_write)


@pytest.mark.parametrize("verb", ["apply", "patch"])
def test_an_object_that_changes_while_it_is_brought_about_is_no_reason_to_give_up(
    cluster_service: Served, verb: str
) -> None:
    cluster_service.deploy()
    once(cluster_service, verb, "Deployment", lambda: ConflictError("the object has been modified"))
    assert cluster_service.deploy(3, instances=2).settled == 2
    assert cluster_service.answering() == {"r2"}


def test_what_a_user_deletes_while_it_is_waited_for_is_made_again(cluster_service: Served) -> None:
    cluster_service.deploy()
    once(
        cluster_service,
        "patch",
        "Deployment",
        lambda: cluster_service.cluster.delete("Deployment", "serving-r2", NAMESPACE),
    )
    assert cluster_service.deploy(3, instances=2).settled == 2
    assert cluster_service.answering() == {"r2"}


@pytest.mark.parametrize("moment", ["SeldonDeployment", "Service"])
def test_who_is_late_takes_away_nothing_that_is_wanted_by_now(cluster_service: Served, moment: str) -> None:
    """Another's change comes into effect between the last look and what follows it."""
    cluster_service.deploy()
    other = cluster_service.make_another()
    once(cluster_service, "find", moment, lambda: cluster_service.deploy(5, services=other))
    cluster_service.deploy(3)
    assert cluster_service.answering() == {"r3"}
    assert list(cluster_service.get_objects("Deployment")) == ["serving-r3"]
    assert set(cluster_service.get_objects("Service")) == {"serving", "serving-r3"}
    assert cluster_service.services.service("serving").state == "ready"


def test_what_is_deployed_while_it_is_deleted_leaves_nothing_behind(cluster_service: Served) -> None:
    once(
        cluster_service,
        "apply",
        "Deployment",
        lambda: cluster_service.make_another().delete("serving", observe=lambda _: None),
    )
    with pytest.raises(NotFoundError, match="deleted meanwhile"):
        cluster_service.deploy()
    for kind in ("Deployment", "Service", "Pod"):
        assert cluster_service.get_objects(kind) == {}, kind


def test_a_service_that_another_deploys_again_is_not_forgotten_by_who_deletes_it(cluster_service: Served) -> None:
    cluster_service.deploy()

    def again() -> None:
        undeleted = ServiceStore(cluster_service.cluster)
        undeleted.change("serving", lambda now: now and now.model_copy(update={"deleted": False}))

    once(cluster_service, "delete", "ConfigMap", again, skip=1)
    cluster_service.services.delete("serving", observe=lambda _: None)
    assert ServiceStore(cluster_service.cluster).find("serving") is not None
