"""Environments on a real cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.differences import compute_differences
from scanflow.backends.kubernetes.environment.apply import Environments
from scanflow.backends.kubernetes.environment.delete import delete_environment
from scanflow.backends.kubernetes.environment.manifests import build_environment_manifests
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from tests.http_requests import HTTP

pytestmark = pytest.mark.cluster
SETTINGS = KubernetesSettings(
    storage_mode="ReadWriteOnce", storage_size="64Mi", quota_cpu="2", quota_pods=5, request_timeout_s=60
)


@pytest.fixture
def app(cluster: Cluster) -> Iterator[sf.Application]:
    application = sf.Application(name=f"env{uuid.uuid4().hex[:6]}", team="tests")
    yield application
    delete_environment(cluster, application.name, application.team, SETTINGS, within_s=120)


def can_account(cluster: Cluster, account: str, namespace: str, verb: str, resource: str, group: str = "") -> bool:
    """Ask the API server, as ``kubectl auth can-i --as`` does."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "resourceAttributes": {"namespace": namespace, "verb": verb, "resource": resource, "group": group},
        },
    }
    return bool(cluster.create(review)["status"]["allowed"])


def test_it_is_made_once_put_right_and_leaves_nothing(cluster: Cluster, app: sf.Application) -> None:
    first = Environments(cluster, SETTINGS).ensure(app)
    assert first.changed[0] == f"Namespace {first.namespace}: created"
    before = {manifest["kind"]: manifest["metadata"]["resourceVersion"] for manifest in _list_created(cluster, app)}
    again = Environments(cluster, SETTINGS).ensure(app)
    assert (again.changed, again.kept) == ((), ())
    assert {
        manifest["kind"]: manifest["metadata"]["resourceVersion"] for manifest in _list_created(cluster, app)
    } == before

    cluster.delete("Role", "scanflow-step", first.namespace)
    assert Environments(cluster, SETTINGS).ensure(app).changed == ("Role scanflow-step: created",)

    deleted = delete_environment(cluster, app.name, app.team, SETTINGS, within_s=120)
    assert (deleted.namespace_removed, deleted.left) == (True, ())
    assert cluster.get("Namespace", first.namespace) is None


def test_steps_may_say_how_they_ended_and_nothing_else(cluster: Cluster, app: sf.Application) -> None:
    home = Environments(cluster, SETTINGS).ensure(app).namespace
    results = ("workflowtaskresults", "argoproj.io")
    assert can_account(cluster, "scanflow-step", home, "create", *results)
    assert can_account(cluster, "scanflow-step", home, "patch", *results)
    for verb, resource, group in [
        ("delete", *results),
        ("get", "secrets", ""),
        ("list", "pods", ""),
        ("create", "pods", ""),
        ("create", "workflows", "argoproj.io"),
    ]:
        assert not can_account(cluster, "scanflow-step", home, verb, resource, group)
    assert not can_account(cluster, "scanflow-step", "default", "create", *results)
    assert not can_account(cluster, "scanflow-pod", home, "create", *results)
    assert not can_account(cluster, "scanflow-pod", home, "get", "configmaps")


def test_two_applications_with_names_that_run_together_have_two(cluster: Cluster) -> None:
    part = uuid.uuid4().hex[:6]
    application = sf.Application(name=f"env{part}-b", team="c")
    other = sf.Application(name=f"env{part}", team="b-c")
    try:
        homes = {Environments(cluster, SETTINGS).ensure(app).namespace for app in (application, other)}
        assert len(homes) == 2
    finally:
        for app in (application, other):
            delete_environment(cluster, app.name, app.team, SETTINGS, within_s=120)


def test_what_a_person_changed_is_named(cluster: Cluster, app: sf.Application) -> None:
    home = Environments(cluster, SETTINGS).ensure(app).namespace
    cluster.patch("ServiceAccount", "scanflow-step", home, {"automountServiceAccountToken": False})
    environment = Environments(cluster, SETTINGS).ensure(app)
    assert environment.changed == ()
    (conflict,) = environment.kept
    assert conflict.startswith("ServiceAccount scanflow-step: ")
    assert ".automountServiceAccountToken" in conflict
    assert Environments(cluster, SETTINGS).ensure(app, force=True).changed


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        KubernetesSettings(quota_memory="1Gi", pull_secret="a", platform_namespace="scanflow", tracker_secret="b"),
    ],
)
def test_the_api_server_takes_all_of_it(cluster: Cluster, app: sf.Application, settings: KubernetesSettings) -> None:
    home, *others = build_environment_manifests(app.replace(tracker=sf.Tracker(port=46668)), settings)
    assert [difference.change for difference in compute_differences(cluster, [home])] == ["create"]
    cluster.apply(home)
    differences = compute_differences(cluster, others)
    assert {difference.change for difference in differences} == {"create"}, differences
    assert {difference.why for difference in differences} == {""}


def _list_created(cluster: Cluster, app: sf.Application) -> list[Manifest]:
    manifests = [
        cluster.get(manifest["kind"], manifest["metadata"]["name"], manifest["metadata"].get("namespace"))
        for manifest in build_environment_manifests(app, SETTINGS)
    ]
    assert all(manifests)
    return [
        manifest
        for manifest in manifests
        if manifest and manifest["kind"] not in {"Namespace", "ResourceQuota", "PersistentVolumeClaim"}
    ]


def test_its_own_tracker_is_reached_by_its_name_and_keeps_what_was_logged(
    cluster: Cluster, app: sf.Application
) -> None:
    tracked = app.replace(tracker=sf.Tracker(port=46668))
    environments = Environments(cluster, SETTINGS)
    environment_ = environments.ensure(tracked)
    environments.wait_for_tracker(tracked, within_s=180)
    assert environment_.tracker_uri == f"http://tracker.{environment_.namespace}.svc:46668"
    (pod,) = cluster.find("Pod", environment_.namespace, labels="scanflow.dev/component=tracker")[0]
    service = cluster.get("Service", "tracker", environment_.namespace)
    assert service is not None
    address = f"http://{service['spec']['clusterIP']}:46668"  # its name means nothing outside of the cluster
    assert HTTP.get(f"{address}/health", timeout=30).status_code == 200
    for headers in ({}, {"authorization": "Bearer scanflow_wrong"}):
        for path in ("/", "/api/2.0/mlflow/experiments/search?max_results=5", "/get-artifact?path=a.txt&run_uuid=r"):
            assert HTTP.get(address + path, headers=headers, timeout=30).status_code == 401, path
    token = environments.read_tracker_token(tracked)
    log = f"import os; os.environ['MLFLOW_TRACKING_TOKEN'] = {token!r}; "
    log += f"import mlflow; mlflow.set_tracking_uri({environment_.tracker_uri!r}); mlflow.set_experiment('shop'); "
    log += "mlflow.start_run(); mlflow.log_metric('score', 0.5); mlflow.log_text('kept', 'a.txt'); "
    log += "print(mlflow.artifacts.load_text(mlflow.active_run().info.artifact_uri + '/a.txt'))"
    name = pod["metadata"]["name"]
    assert cluster.exec(name, environment_.namespace, ["python", "-W", "ignore", "-c", log]).splitlines()[0] == "kept"
