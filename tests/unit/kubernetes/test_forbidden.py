"""What an API server forbids, as it says it to whoever has rights in one namespace alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.errors import AccessDeniedError, InvalidError, UnsupportedError
from tests.api_server import serve_api

Connect = Callable[..., Cluster]
INSTALLED = {"/apis/argoproj.io/v1alpha1": {"resources": [{"name": "workflows"}]}}
REFUSED_POD = 'pods "a" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'


class Handler(BaseHTTPRequestHandler):
    """Forbids all, but for discovery."""

    def do_GET(self) -> None:
        if (path := self.path.partition("?")[0]) in INSTALLED:
            self._answer(200, INSTALLED[path])
        elif path.startswith("/apis/") and path.count("/") == 3:
            self._answer(404, {"message": "the server could not find the requested resource"})
        else:
            self._answer(403, {"message": f"{path} is forbidden"})

    def do_POST(self) -> None:
        self._answer(403, {"message": REFUSED_POD})

    def _answer(self, code: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    clusters: list[Cluster] = []
    with serve_api(Handler, tmp_path) as kubeconfig:

        def connect(namespace: str | None = None) -> Cluster:
            clusters.append(Cluster(KubernetesSettings(kubeconfig=kubeconfig, namespace=namespace)))
            return clusters[-1]

        yield connect
        for cluster in clusters:
            cluster.close()


def test_a_kind_that_the_cluster_lacks_is_not_taken_for_one_that_it_forbids(connect: Connect) -> None:
    cluster = connect("team-red")
    assert (cluster.has_kind("Workflow"), cluster.has_kind("ScaledObject")) == (True, False)
    with pytest.raises(UnsupportedError, match="The cluster has no ScaledObject"):
        cluster.find("ScaledObject", "team-red")
    with pytest.raises(AccessDeniedError, match="workflows is forbidden"):
        cluster.find("Workflow", "team-red")
    assert cluster.list_optional("ScaledObject", "team-red") == cluster.list_optional("Workflow", "team-red") == []


def test_what_is_forbidden_is_reported_with_the_setting_for_rights_in_one_namespace(connect: Connect) -> None:
    with pytest.raises(AccessDeniedError, match="export SCANFLOW_KUBERNETES_NAMESPACE=NAMESPACE"):
        connect().find("ConfigMap")
    with pytest.raises(AccessDeniedError) as error:
        connect("team-red").find("ConfigMap", "team-red")
    assert "SCANFLOW_KUBERNETES_NAMESPACE" not in str(error.value)


def test_a_pod_that_pod_security_refuses_is_not_a_matter_of_rights(connect: Connect) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "team-red"}}
    with pytest.raises(InvalidError, match="admission control rejects pods of the namespace 'team-red'"):
        connect().create(pod)
