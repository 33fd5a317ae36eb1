"""Two servers on one lease of a real cluster: one acts, whichever is killed or asked to end."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from tests.server import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def servers(cluster: Cluster, tmp_path: Path) -> Iterator[list[ServerProcess]]:
    namespace = f"scanflow-leader-{uuid.uuid4().hex[:6]}"
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    servers = []
    for name in ("first", "second"):
        environ = {
            "SCANFLOW_BACKEND": "kubernetes",
            "SCANFLOW_SERVER_LEASE": f"{namespace}/server",
            "SCANFLOW_SERVER_NAME": name,
        }
        (tmp_path / name).mkdir()
        servers.append(ServerProcess(tmp_path / name / "home", environ=environ))
    try:
        yield servers
    finally:
        for server in servers:
            server.close()
        cluster.delete("Namespace", namespace)


def is_leader(server: ServerProcess) -> bool:
    with contextlib.suppress(httpx2.TransportError):
        return server.api.get("/status").status_code == 200
    return False


def lease(cluster: Cluster, server: ServerProcess) -> dict[str, str]:
    namespace, _, name = server.environ["SCANFLOW_SERVER_LEASE"].partition("/")
    lease = cluster.get("Lease", name, namespace)
    assert lease is not None
    spec: dict[str, str] = lease["spec"]
    return spec


def read_renewal(cluster: Cluster, server: ServerProcess) -> str:
    spec = lease(cluster, server)
    assert spec["holderIdentity"] == "first"
    return spec["renewTime"]


def test_one_of_two_servers_leads_and_the_other_once_the_first_is_gone(
    cluster: Cluster, servers: list[ServerProcess]
) -> None:
    first, second = servers
    first.start()
    wait_until(lambda: is_leader(first), "the first acts")
    second.start()
    assert httpx2.get(f"{second.url}/readyz").json() == {"status": "standby"}
    refused = second.api.get("/status")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    seen = read_renewal(cluster, first)
    wait_until(
        lambda: read_renewal(cluster, first) != seen, "the first keeps its lease, for longer than between two tries"
    )
    assert (is_leader(first), is_leader(second)) == (True, False)
    began = time.monotonic()
    first.kill()
    wait_until(lambda: is_leader(second), "the second acts")
    assert time.monotonic() - began > 5, "not before the lease is over"
    first.start()
    assert not is_leader(first)
    assert second.end() in {0, -15}
    assert lease(cluster, first)["holderIdentity"] != "second", "it is released, so that nobody waits until it is over"
    wait_until(lambda: is_leader(first), "the first acts again")
