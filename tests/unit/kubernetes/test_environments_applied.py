"""Environments as they are made, kept and removed, on a cluster in memory."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.environment.apply import CHECK_CACHE_S, Environments
from scanflow.backends.kubernetes.environment.delete import delete_environment
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.errors import AccessDeniedError, InvalidError, ScanflowError, UnavailableError, UsageError
from scanflow.http.home_token import make_step_token, parse_step_token
from scanflow.settings import Settings
from scanflow.testing.memory_cluster import MemoryCluster
from tests.conftest import Cli

SHOP = sf.Application(name="shop", team="data", tracker=sf.Tracker())
HOME = "scanflow-shop-data"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


def ensure_environment(
    cluster: MemoryCluster, app: sf.Application = SHOP, *, force: bool = False, **settings: Any
) -> Any:
    return Environments(cluster, KubernetesSettings(**settings)).ensure(app, force=force)


def test_an_environment_is_made_once(cluster: MemoryCluster) -> None:
    first = ensure_environment(cluster)
    assert first.namespace == HOME
    assert first.tracker_uri == "http://tracker.scanflow-shop-data.svc:5000"
    assert first.changed[0] == f"Namespace {HOME}: created"
    assert "Role scanflow-step: created" in first.changed
    version = cluster.find("Pod")[1]
    again = ensure_environment(cluster)
    assert (again.changed, again.kept) == ((), ())
    assert cluster.find("Pod")[1] == version


def test_with_the_stock_role_admin_of_a_namespace_of_the_user_an_environment_is_made(cluster: MemoryCluster) -> None:
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})

    def forbid(verb: str, kind: str, _: Any) -> ScanflowError | None:
        may_only_read = kind in {"Namespace", "LimitRange", "ResourceQuota"} and verb not in {"get", "find", "watch"}
        return AccessDeniedError("forbidden") if may_only_read or kind in {"Node", "StorageClass"} else None

    cluster.refuse(forbid)
    environment = ensure_environment(cluster, namespace=HOME)
    assert "ServiceAccount scanflow-pod: created" in environment.changed
    assert ensure_environment(cluster, namespace=HOME).changed == ()


def test_the_setting_names_the_namespace_of_the_environment(cluster: MemoryCluster) -> None:
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}})
    cluster.calls.clear()
    own_environment = ensure_environment(cluster, namespace="mine")
    assert (own_environment.namespace, own_environment.tracker_uri) == ("mine", "http://tracker.mine.svc:5000")
    assert {call.namespace for call in cluster.calls} == {"mine", None}
    assert {(call.kind, call.name) for call in cluster.calls if call.namespace is None} == {("Namespace", "mine")}


def test_a_namespace_of_the_user_has_one_applications_environment(cluster: MemoryCluster) -> None:
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}})
    ensure_environment(cluster, namespace="mine")
    before = cluster.find("ServiceAccount", "mine")
    with pytest.raises(UsageError, match="'mine' is the environment of the application 'shop' of team 'data'"):
        ensure_environment(cluster, sf.Application(name="other", team="data"), namespace="mine")
    assert cluster.find("ServiceAccount", "mine") == before


def test_one_request_tells_that_nothing_changed_and_once_a_minute_each_object_is_looked_at(
    cluster: MemoryCluster,
) -> None:
    clock = Clock()
    environments = Environments(cluster, KubernetesSettings(), clock=clock)
    environments.ensure(SHOP)
    cluster.calls.clear()
    environments.ensure(SHOP)
    assert [(call.verb, call.kind) for call in cluster.calls] == [("get", "ServiceAccount")]
    cluster.delete("Role", "scanflow-step", HOME)
    clock.now += CHECK_CACHE_S
    assert environments.ensure(SHOP).changed == ("Role scanflow-step: created",)


def read_secrets(cluster: MemoryCluster) -> dict[str, dict[str, str]]:
    return {
        secret["metadata"]["name"]: {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        for secret in cluster.find("Secret", HOME)[0]
    }


def test_its_tracker_asks_for_a_token_and_the_pods_have_one_that_is_signed_with_it(cluster: MemoryCluster) -> None:
    assert "Secret scanflow-tracker-pods: created" in ensure_environment(cluster).changed
    secrets = read_secrets(cluster)
    key, token = secrets["scanflow-tracker"]["SCANFLOW_TRACKER_TOKEN"], secrets["scanflow-tracker-pods"]
    assert parse_step_token(key, token["MLFLOW_TRACKING_TOKEN"]) == ("shop", "data")
    environments = Environments(cluster, KubernetesSettings())
    assert environments.read_tracker_token(SHOP) == token["MLFLOW_TRACKING_TOKEN"]
    cluster.delete("Secret", "scanflow-tracker-pods", HOME)
    assert environments.ensure(SHOP).changed == ("Secret scanflow-tracker-pods: created",)
    assert read_secrets(cluster) == secrets, "the tracker's own token stays as it is"


def test_one_tracker_for_all_signs_the_tokens_of_each_environment(cluster: MemoryCluster) -> None:
    ensure_environment(cluster, tracker_uri="http://mlflow:5000", tracker_token="key")
    assert read_secrets(cluster) == {
        "scanflow-tracker-pods": {"MLFLOW_TRACKING_TOKEN": make_step_token("key", "shop", "data")}
    }


@pytest.mark.parametrize(
    ("app", "settings"),
    [
        (SHOP, {"tracker_uri": "http://theirs:5000"}),
        (SHOP.replace(tracker=sf.Tracker(uri="http://theirs:5000")), {}),
        (SHOP.replace(tracker=sf.Tracker(uri="http://theirs:5000")), {"tracker_uri": "http://m", "tracker_token": "k"}),
        (SHOP.replace(tracker=None), {}),
    ],
)
def test_no_token_of_ours_is_sent_to_a_foreign_tracker(
    cluster: MemoryCluster, app: sf.Application, settings: dict[str, Any]
) -> None:
    ensure_environment(cluster)
    changed = ensure_environment(cluster, app, **settings).changed
    assert {"Secret scanflow-tracker: removed", "Secret scanflow-tracker-pods: removed"} <= set(changed)
    assert read_secrets(cluster) == {}
    assert Environments(cluster, KubernetesSettings(**settings)).read_tracker_token(app) is None


def test_one_that_another_process_removed_and_made_again_within_a_minute_is_distinguished(
    cluster: MemoryCluster,
) -> None:
    ours, theirs = (Environments(cluster, KubernetesSettings()) for _ in range(2))
    before = ours.ensure(SHOP)
    assert before.uid
    assert ours.ensure(SHOP).uid == before.uid
    theirs.delete(SHOP)
    environment = theirs.ensure(SHOP)
    cluster.delete("Role", "scanflow-step", HOME)
    after = ours.ensure(SHOP)
    assert after.uid == environment.uid != before.uid
    assert after.changed == ("Role scanflow-step: created",), "what was looked at is gone with the one that was"


def test_what_a_person_deleted_is_made_again_and_said(cluster: MemoryCluster) -> None:
    ensure_environment(cluster)
    cluster.delete("PersistentVolumeClaim", "scanflow-outputs", HOME)
    cluster.delete("RoleBinding", "scanflow-step", HOME)
    assert set(ensure_environment(cluster).changed) == {
        "PersistentVolumeClaim scanflow-outputs: created",
        "RoleBinding scanflow-step: created",
    }


def test_what_a_person_changed_is_left_and_said_with_who_it_was(cluster: MemoryCluster) -> None:
    ensure_environment(cluster)
    cluster.edit("Service", "tracker", HOME, {"spec": {"selector": {"app": "other"}}})
    cluster.edit("ServiceAccount", "scanflow-step", HOME, {"automountServiceAccountToken": False}, manager="argocd")
    environment = ensure_environment(cluster)
    assert environment.changed == ()
    (conflict,) = environment.kept  # a field more, beside ours, changes nothing of what is described
    assert conflict == (
        'ServiceAccount scanflow-step: Apply failed with 1 conflict: conflict with "argocd": '
        ".automountServiceAccountToken"
    )
    forced = ensure_environment(cluster, force=True)
    assert forced.changed == ("ServiceAccount scanflow-step: .automountServiceAccountToken changed",)
    assert ensure_environment(cluster).kept == ()


def test_a_change_of_settings_that_meets_a_persons_is_refused_by_name(cluster: MemoryCluster) -> None:
    ensure_environment(cluster, quota_cpu="2")
    cluster.edit("ResourceQuota", "scanflow", HOME, {"spec": {"hard": {"requests.cpu": "9"}}})
    with pytest.raises(UsageError, match=r"ResourceQuota scanflow.*kubectl-edit.*scanflow apply --force"):
        ensure_environment(cluster, quota_cpu="3")
    ensure_environment(cluster, quota_cpu="3", force=True)
    resource_quota = cluster.get("ResourceQuota", "scanflow", HOME)
    assert resource_quota is not None
    assert resource_quota["spec"]["hard"] == {"requests.cpu": "3"}


def test_what_is_no_more_described_goes_but_for_claims(cluster: MemoryCluster) -> None:
    ensure_environment(cluster, quota_cpu="2", pull_secret="registry")
    environment = ensure_environment(cluster, SHOP.replace(tracker=None))
    assert {"ResourceQuota scanflow: removed", "LimitRange scanflow: removed", "Deployment tracker: removed"} <= set(
        environment.changed
    )
    account = cluster.get("ServiceAccount", "scanflow-step", HOME)
    assert account is not None
    assert "imagePullSecrets" not in account
    assert cluster.get("PersistentVolumeClaim", "scanflow-tracker", HOME)


def test_what_was_interrupted_is_done_at_the_next_time(cluster: MemoryCluster) -> None:
    broken = [True]

    def refuse(verb: str, kind: str, _: Any) -> ScanflowError | None:
        return UnavailableError("away") if kind == "NetworkPolicy" and verb == "apply" and broken else None

    cluster.refuse(refuse)
    with pytest.raises(UnavailableError):
        ensure_environment(cluster)
    broken.clear()
    assert "PersistentVolumeClaim scanflow-outputs: created" in ensure_environment(cluster).changed


def test_a_namespace_of_another_application_is_refused(cluster: MemoryCluster) -> None:
    labels = build_labels("other", "data")
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME, "labels": labels}})
    with pytest.raises(UsageError, match="is the environment of the application 'other' of team 'data'"):
        ensure_environment(cluster)


def test_who_may_not_make_namespaces_gets_the_command(cluster: MemoryCluster) -> None:
    refused = AccessDeniedError("no")
    cluster.refuse(lambda verb, kind, _: refused if (verb, kind) == ("apply", "Namespace") else None)
    with pytest.raises(AccessDeniedError, match=f"kubectl create namespace {HOME}"):
        ensure_environment(cluster)
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    assert "Role scanflow-step: created" in ensure_environment(cluster).changed


def test_a_namespace_that_is_being_deleted_is_to_be_waited_for(cluster: MemoryCluster) -> None:
    ensure_environment(cluster)
    cluster.edit("Role", "scanflow-step", HOME, {"metadata": {"finalizers": ["someone.example/waits"]}})
    cluster.delete("Namespace", HOME)
    with pytest.raises(UnavailableError, match="is being deleted"):
        ensure_environment(cluster)


def test_a_plan_says_what_would_be_done_and_does_nothing(cluster: MemoryCluster) -> None:
    environments = Environments(cluster, KubernetesSettings())
    assert {change.change for change in environments.plan(SHOP)} == {"create"}
    assert cluster.get("Namespace", HOME) is None
    environments.ensure(SHOP)
    assert {change.change for change in environments.plan(SHOP)} == {"none"}
    larger = Environments(cluster, KubernetesSettings(pull_secret="registry"))
    changes = {f"{change.kind} {change.name}": change for change in larger.plan(SHOP) if change.change != "none"}
    assert set(changes) == {"ServiceAccount scanflow-step", "ServiceAccount scanflow-pod"}
    assert [str(field) for field in changes["ServiceAccount scanflow-step"].fields] == [
        "+ .imagePullSecrets[registry].name = 'registry'"
    ]


def test_a_plan_names_the_owner_of_the_field_that_is_in_the_way(cluster: MemoryCluster) -> None:
    ensure_environment(cluster)
    cluster.edit("ServiceAccount", "scanflow-step", HOME, {"automountServiceAccountToken": False}, manager="argocd")
    (change,) = [entry for entry in Environments(cluster, KubernetesSettings()).plan(SHOP) if entry.change != "none"]
    assert change.change == "conflict"
    assert "argocd" in change.why
    assert [str(field) for field in change.fields] == ["~ .automountServiceAccountToken: False -> True"]


class TestDeletion:
    def test_nothing_is_left(self, cluster: MemoryCluster) -> None:
        ensure_environment(cluster)
        deletion = delete_environment(cluster, "shop", "data", KubernetesSettings())
        assert (deletion.namespace_removed, deletion.left) == (True, ())
        assert {"Role scanflow-step", "Deployment tracker", "PersistentVolumeClaim scanflow-outputs"} <= set(
            deletion.removed
        )
        assert cluster.get("Namespace", HOME) is None
        assert delete_environment(cluster, "shop", "data", KubernetesSettings()).removed == ()

    def test_what_others_made_stays_and_is_named(self, cluster: MemoryCluster) -> None:
        ensure_environment(cluster)
        mine = {"name": "theirs", "namespace": HOME}
        cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": mine, "stringData": {"a": "b"}})
        deletion = delete_environment(cluster, "shop", "data", KubernetesSettings())
        assert (deletion.namespace_removed, deletion.left) == (False, ("Secret theirs",))
        assert cluster.find("Role", HOME)[0] == []

    def test_a_kind_that_scanflow_never_makes_is_seen_too(self, cluster: MemoryCluster) -> None:
        ensure_environment(cluster)
        theirs = {"items": [{"metadata": {"name": "backup"}}, {"metadata": {"name": "of", "ownerReferences": [{}]}}]}
        cluster.documents[f"/apis/batch/v1/namespaces/{HOME}/cronjobs"] = json.dumps(theirs)
        deletion = delete_environment(cluster, "shop", "data", KubernetesSettings())
        assert (deletion.namespace_removed, deletion.left) == (False, ("cronjobs backup",))

    def test_claims_are_kept_if_that_is_said(self, cluster: MemoryCluster) -> None:
        ensure_environment(cluster)
        deletion = delete_environment(cluster, "shop", "data", KubernetesSettings(keep_claims=True))
        assert not deletion.namespace_removed
        assert set(deletion.left) == {
            "PersistentVolumeClaim scanflow-outputs",
            "PersistentVolumeClaim scanflow-tracker",
        }
        assert set(ensure_environment(cluster).changed).isdisjoint({"PersistentVolumeClaim scanflow-outputs: created"})

    def test_a_namespace_that_was_given_stays(self, cluster: MemoryCluster) -> None:
        cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
        ensure_environment(cluster)
        deletion = delete_environment(cluster, "shop", "data", KubernetesSettings())
        assert (deletion.namespace_removed, deletion.left) == (False, ())
        assert cluster.get("Namespace", HOME)

    def test_a_finalizer_that_nobody_takes_away_is_named(self, cluster: MemoryCluster) -> None:
        ensure_environment(cluster)
        cluster.edit("Deployment", "tracker", HOME, {"metadata": {"finalizers": ["someone.example/waits"]}})
        with pytest.raises(UnavailableError, match=r"Deployment 'tracker'.*someone\.example/waits"):
            delete_environment(cluster, "shop", "data", KubernetesSettings(), within_s=0.1)

    def test_what_takes_longer_is_said_while_it_is_waited_for(
        self, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scanflow.backends.kubernetes.environment.delete.QUIET_S", 0.0)
        ensure_environment(cluster)
        cluster.edit("Deployment", "tracker", HOME, {"metadata": {"finalizers": ["someone.example/waits"]}})
        sentences: list[str] = []

        def release(sentence: str) -> None:
            sentences.append(sentence)
            cluster.edit("Deployment", "tracker", HOME, {"metadata": {"finalizers": []}})

        assert delete_environment(cluster, "shop", "data", KubernetesSettings(), tell=release).namespace_removed
        where = f"Deployment 'tracker' of {HOME!r} is not gone yet"
        assert sentences == [f"{where}: its finalizers someone.example/waits wait for their controllers."]

    def test_a_cluster_without_the_engines_is_no_hindrance(self) -> None:
        cluster = MemoryCluster(unknown=("Workflow", "WorkflowTemplate", "ScaledObject", "HTTPRoute"))
        ensure_environment(cluster)
        assert delete_environment(cluster, "shop", "data", KubernetesSettings()).namespace_removed


class TestTracker:
    def test_it_is_waited_for(self, cluster: MemoryCluster) -> None:
        environments = Environments(cluster, KubernetesSettings())
        environments.ensure(SHOP)
        status = {"observedGeneration": 9, "updatedReplicas": 1, "availableReplicas": 1}
        cluster.edit("Deployment", "tracker", HOME, {"status": status})
        environments.wait_for_tracker(SHOP, within_s=1)
        environments.wait_for_tracker(SHOP.replace(tracker=None), within_s=0)

    def test_why_it_is_not_ready_is_said(self, cluster: MemoryCluster) -> None:
        environments = Environments(cluster, KubernetesSettings())
        environments.ensure(SHOP)
        waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
        status = {"phase": "Pending", "containerStatuses": [{"name": "tracker", "state": {"waiting": waiting}}]}
        labels = build_labels("shop", "data", component="tracker")
        metadata = {"name": "tracker-1", "namespace": HOME, "labels": labels}
        cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status})
        with pytest.raises(UnavailableError, match=r"not ready within 0\.1 s\. ImagePullBackOff: no such image"):
            environments.wait_for_tracker(SHOP, within_s=0.1)


def test_what_a_client_says_comes_before_the_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANFLOW_KUBERNETES_SERVING", "kserve")
    settings = KubernetesSettings.from_environment(options={"serving": "seldon", "kubeconfig": "/home/me/config"})
    assert (settings.serving, settings.kubeconfig) == ("seldon", "/home/me/config")
    assert KubernetesSettings.from_environment().serving == "kserve"
    with pytest.raises(InvalidError, match=r"has no option 'servin'. Did you mean 'serving'\?"):
        KubernetesSettings.from_environment(options={"servin": "seldon"})
    assert Settings.from_environment({"SCANFLOW_BACKEND_OPTIONS": "serving=seldon, context=lab"}).backend_options == {
        "serving": "seldon",
        "context": "lab",
    }
    with pytest.raises(InvalidError, match=r"SCANFLOW_BACKEND_OPTIONS.*write name=value"):
        Settings.from_environment({"SCANFLOW_BACKEND_OPTIONS": "serving"})


class TestCommands:
    @pytest.fixture(autouse=True)
    def on_the_double(
        self,
        cluster: MemoryCluster,
        home: Path,  # noqa: ARG002  it takes away what variables say
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("scanflow.backends.kubernetes.cluster.Cluster", lambda _: cluster)
        monkeypatch.setenv("SCANFLOW_BACKEND", "kubernetes")
        (tmp_path / "app.py").write_text(APP)

    def test_an_environment_is_planned_made_and_removed(self, quick_cli: Cli, cluster: MemoryCluster) -> None:
        planned = quick_cli("plan").stdout
        assert "+  Namespace" in planned
        assert "+  Workflow" in planned
        assert cluster.get("Namespace", HOME) is None
        assert f"{HOME}: 8 objects created or changed." in quick_cli("apply").stdout
        assert f"{HOME}: nothing changed." in quick_cli("apply").stdout
        cluster.edit("ServiceAccount", "scanflow-step", HOME, {"automountServiceAccountToken": False})
        assert "kept as another client set it: ServiceAccount scanflow-step" in quick_cli("apply").stdout
        planned = quick_cli("plan").stdout
        assert "~ .automountServiceAccountToken: False -> True" in planned
        assert "7 objects of the environment are unchanged." in planned
        assert "ServiceAccount scanflow-step: .automountServiceAccountToken" in quick_cli("apply", "--force").stdout
        removed = quick_cli("clean", "--yes").stdout
        assert f"{HOME} is deleted." in removed

    def test_a_plan_is_a_record_too(self, quick_cli: Cli) -> None:
        objects = json.loads(quick_cli("plan", "--json").stdout)["objects"]
        assert {manifest["change"] for manifest in objects} == {"create"}

    def test_a_place_without_environments_says_so(self, quick_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SCANFLOW_BACKEND", "local")
        result = quick_cli("apply")
        assert (result.returncode, "has no environments" in result.stderr) == (2, True)


APP = """
import scanflow as sf

@sf.step
def one() -> int:
    return 1

app = sf.Application(name="shop", team="data", workflows=[sf.Workflow(name="w", nodes=[one.bind()])])
"""
