"""The objects of an application's environment."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.environment.manifests import build_environment_manifests, hash_manifests
from scanflow.backends.kubernetes.environment.tracker_manifests import resolve_tracker_uri
from scanflow.backends.kubernetes.kinds import KINDS
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from tests.manifests import assert_manifests

SHOP = sf.Application(name="shop", team="data")
TRACKED = SHOP.replace(tracker=sf.Tracker(port=46668))
ENVIRONMENTS: dict[str, tuple[sf.Application, KubernetesSettings]] = {
    "environment": (SHOP, KubernetesSettings()),
    "environment-tracker": (TRACKED, KubernetesSettings(storage_mode="ReadWriteOnce", storage_size="1Gi")),
    "environment-limits": (
        TRACKED,
        KubernetesSettings(
            quota_cpu="4",
            quota_memory="8Gi",
            quota_pods=20,
            pull_secret="registry",
            storage_class="fast",
            platform_namespace="scanflow",
            tracker_secret="tracker-store",
        ),
    ),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_is_these_objects(name: str) -> None:
    assert_manifests(name, *build_environment_manifests(*ENVIRONMENTS[name]))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_role_has_a_wildcard_or_reaches_beyond_the_namespace(name: str) -> None:
    manifests = build_environment_manifests(*ENVIRONMENTS[name])
    assert not {manifest["kind"] for manifest in manifests} & {"ClusterRole", "ClusterRoleBinding"}
    rules = [rule for manifest in manifests if manifest["kind"] == "Role" for rule in manifest["rules"]]
    assert rules == [{"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_object_but_the_first_is_in_the_namespace(name: str) -> None:
    home, *others = build_environment_manifests(*ENVIRONMENTS[name])
    assert {manifest["metadata"]["namespace"] for manifest in others} == {home["metadata"]["name"]}
    assert all(manifest["apiVersion"] == KINDS[manifest["kind"]].api_version for manifest in others)


def test_no_two_applications_share_a_namespace() -> None:
    pairs = [("a-b", "c"), ("a", "b-c"), ("a", "b"), ("a-b-c", "d"), ("a-b", "c-d"), ("a", "b-c-d")]
    names = {
        build_environment_manifests(sf.Application(name=app, team=team), KubernetesSettings())[0]["metadata"]["name"]
        for app, team in pairs
    }
    assert len(names) == len(pairs)


@pytest.mark.parametrize(
    ("tracker", "settings", "uri"),
    [
        (None, {}, None),
        (sf.Tracker(), {}, "http://tracker.scanflow-shop-data.svc:5000"),
        (sf.Tracker(port=46668), {}, "http://tracker.scanflow-shop-data.svc:46668"),
        (sf.Tracker(uri="http://mlflow:80"), {}, "http://mlflow:80"),
        (None, {"tracker_uri": "http://shared:80"}, "http://shared:80"),
        (sf.Tracker(port=1), {"tracker_uri": "http://shared:80"}, "http://shared:80"),
    ],
)
def test_a_tracker_is_made_only_where_none_is_named(
    tracker: sf.Tracker | None, settings: dict[str, Any], uri: str | None
) -> None:
    app, cluster_settings = SHOP.replace(tracker=tracker), KubernetesSettings(**settings)
    assert resolve_tracker_uri(app, cluster_settings) == uri
    has_tracker = any(
        manifest["kind"] == "Deployment" for manifest in build_environment_manifests(app, cluster_settings)
    )
    assert has_tracker is (uri is not None and "scanflow-shop-data" in uri)


def test_the_hash_distinguishes_descriptions() -> None:
    hashes = {name: hash_manifests(build_environment_manifests(*arguments)) for name, arguments in ENVIRONMENTS.items()}
    assert len(set(hashes.values())) == len(hashes)
    assert hash_manifests(build_environment_manifests(SHOP, KubernetesSettings())) == hashes["environment"]
