"""Several servers of one release, with PostgreSQL and S3: one acts, and another goes on with its runs when it dies.

PostgreSQL runs on this machine, which pods have to reach; ``SCANFLOW_TEST_S3`` names the address of an S3 that asks for
no keys (default: the one of Argo's quick start on the test cluster).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.object_labels import derive_namespace
from tests.cluster.loops import address_for_pods
from tests.cluster.test_helm_release import NAME, PATIENCE_S, Release, make_release
from tests.databases import private_postgres
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(600)]

S3 = os.environ.get("SCANFLOW_TEST_S3", "http://s3.argo.svc:9000")
SLEEPS_S = 45
APP = """
import time
import scanflow as sf

@sf.step
def first() -> int:
    return 1

@sf.step
def second(number: int) -> int:
    time.sleep(SLEEPS)
    return number + 1

made = first.bind()
app = sf.Application(name="NAME", team="tests", workflows=[sf.Workflow(name="w", nodes=[made, second.bind(made)])])
if __name__ == "__main__":
    import os
    client = sf.Client(os.environ["SCANFLOW_URL"], token=os.environ["SCANFLOW_TOKEN"], progress=False)
    print(client.run(app, wait=False).name)
"""
KEEP = """
import mlflow, os, tempfile
from mlflow.tracking import MlflowClient
os.environ["MLFLOW_TRACKING_TOKEN"] = os.environ["SCANFLOW_TRACKER_TOKEN"]  # in the tracker's own pod
mlflow.set_tracking_uri("http://localhost:5000")
client = MlflowClient()
run = client.create_run(client.create_experiment("several"))
client.log_text(run.info.run_id, "kept", "note.txt")
print(mlflow.artifacts.load_text(run.info.artifact_uri + "/note.txt"))
"""


@pytest.fixture(scope="module")
def release(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    folder = tmp_path_factory.mktemp("several")
    with (
        private_postgres(host=address_for_pods(cluster), password=secrets.token_hex(8)) as postgres,
        make_release(cluster, folder, more=["scanflow/tracker"]) as release,
    ):
        cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": release.namespace}})
        mlflow = {
            "MLFLOW_BACKEND_STORE_URI": postgres.new_remote_database(),
            "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{release.namespace}/artifacts",
            "MLFLOW_S3_ENDPOINT_URL": S3,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        own = {"namespace": release.namespace}
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        objects: list[Manifest] = [
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "home", **own}, "spec": claim},
            _secret("database", own, {"url": postgres.new_remote_database()}),
            _secret("mlflow", own, mlflow),
        ]
        for manifest in objects:
            cluster.create(manifest)
        # This claim is mounted by one node, where both servers then are: many clusters of tests have no other mode.
        release.values["server"] |= {
            "replicas": 2,
            "database": {"secret": "database"},
            "home": {"existingClaim": "home", "accessMode": "ReadWriteMany"},
        }
        small = {"requests": {"cpu": "50m", "memory": "128Mi"}}
        release.values["tracker"] = {
            "enabled": True,
            "secret": "mlflow",
            "image": {"tag": release.tag},
            "resources": small,
        }
        release.put("install")
        yield release


def _secret(name: str, own: dict[str, str], data: dict[str, str]) -> Manifest:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, **own}, "stringData": data}


def test_when_the_leading_server_is_killed_the_other_goes_on_with_its_run(release: Release, tmp_path: Path) -> None:
    name = f"helm{uuid.uuid4().hex[:6]}"
    program = tmp_path / "app.py"
    program.write_text(APP.replace("SLEEPS", str(SLEEPS_S)).replace("NAME", name))
    namespace = derive_namespace(name, "tests")

    def show_run(scanflow: Callable[..., str], begun: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(scanflow("show", begun, "--json"))
        return document

    try:
        with release.open_client() as scanflow:
            begun = scanflow(program=program).strip()
            wait_until(
                lambda: (
                    {entry["step"]: entry["state"] for entry in show_run(scanflow, begun)["tasks"]}.get("second")
                    == "running"
                ),
                "the second step runs",
                patience_s=PATIENCE_S,
            )
        first = release.pod()
        began = time.monotonic()
        release.cluster.delete("Pod", first, release.namespace, grace_s=0)
        wait_until(lambda: release.pod() not in {"", first}, "another server acts", patience_s=PATIENCE_S)
        print(f"\nanother acts after {time.monotonic() - began:.1f} s")
        with release.open_client() as scanflow:
            wait_until(lambda: show_run(scanflow, begun)["state"] != "running", "the run ends", patience_s=PATIENCE_S)
            record = show_run(scanflow, begun)
        assert record["state"] == "succeeded", record
        assert [(task["step"], task["attempts"]) for task in record["tasks"]] == [("first", 1), ("second", 1)]
        workflows, _ = release.cluster.find("Workflow", namespace)
        assert len(workflows) == 1, "nothing was begun again"
    finally:
        release.cluster.delete("Namespace", namespace)


def test_the_tracker_keeps_runs_in_postgresql_and_files_in_s3(release: Release, cluster: Cluster) -> None:
    service = cluster.get("Service", f"{NAME}-tracker", release.namespace)
    assert service is not None
    pods, _ = cluster.find("Pod", release.namespace, labels="app.kubernetes.io/component=tracker")
    content = cluster.exec(pods[0]["metadata"]["name"], release.namespace, ["python", "-c", KEEP])
    assert content.strip() == "kept"


def test_behind_a_gateway_that_ends_tls_the_server_is_reached_by_its_name(release: Release, tmp_path: Path) -> None:
    cluster, own = release.cluster, {"namespace": release.namespace}
    host = f"{NAME}.{release.namespace}.svc"  # for which the certificate of the release is
    if not cluster.has_kind("Gateway"):
        pytest.skip("the cluster has no Gateway API")
    own_tls = cluster.get("Secret", f"{NAME}-tls", release.namespace)
    assert own_tls is not None
    pair = {key: own_tls["data"][key] for key in ("tls.crt", "tls.key")}
    metadata = {"name": "edge", **own}
    cluster.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": pair}
    )
    listener = {
        "name": "websecure",
        "protocol": "HTTPS",
        "port": 8443,
        "tls": {"mode": "Terminate", "certificateRefs": [{"name": "edge"}]},
    }
    spec = {"gatewayClassName": "traefik", "listeners": [listener]}
    cluster.create({"apiVersion": KINDS["Gateway"].api_version, "kind": "Gateway", "metadata": metadata, "spec": spec})
    release.values["server"]["tls"] = {"mode": "proxy"}
    release.values["gateway"] = {"enabled": True, "name": "edge", "hostnames": [host]}
    release.put("upgrade")
    traefik = cluster.get("Service", "traefik", "traefik")
    assert traefik is not None
    context = ssl.create_default_context(cadata=base64.b64decode(own_tls["data"]["ca.crt"]).decode())
    with httpx2.Client(
        base_url=f"https://{traefik['spec']['clusterIP']}", headers={"Host": host}, verify=context, timeout=10
    ) as client:
        where = {"sni_hostname": host}

        def get_status_code(token: str) -> int:
            with contextlib.suppress(httpx2.TransportError):
                bearer = {"Authorization": f"Bearer {token}"}
                return client.get("/api/v1/status", headers=bearer, extensions=where).status_code
            return 0

        token = release.secret(f"{NAME}-token", "token")
        wait_until(lambda: get_status_code(token) == 200, "the route leads to the server", patience_s=PATIENCE_S)
        assert get_status_code("scanflow_wrong") == 401
    release.helm("rollback", "1", "--wait", "--timeout", "3m")
    with release.open_client() as scanflow:
        assert json.loads(scanflow("status", "--json"))
    assert cluster.get("HTTPRoute", NAME, release.namespace) is None
