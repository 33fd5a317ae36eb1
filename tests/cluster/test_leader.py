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
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def servers(cluster: Cluster, tmp_path: Path) -> Iterator[list[ServerProcess]]:
    namespace = f"scanflow-leader-{uuid.uuid4().hex[:6]}"
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    made = []
    for name in ("first", "second"):
        environ = {
            "SCANFLOW_BACKEND": "kubernetes",
            "SCANFLOW_SERVER_LEASE": f"{namespace}/server",
            "SCANFLOW_SERVER_NAME": name,
        }
        (tmp_path / name).mkdir()
        made.append(ServerProcess(tmp_path / name / "home", environ=environ))
    try:
        yield made
    finally:
        for one in made:
            one.close()
        cluster.delete("Namespace", namespace)


def acts(server: ServerProcess) -> bool:
    with contextlib.suppress(httpx2.TransportError):
        return server.api.get("/status").status_code == 200
    return False


def lease(cluster: Cluster, server: ServerProcess) -> dict[str, str]:
    namespace, _, name = server.environ["SCANFLOW_SERVER_LEASE"].partition("/")
    found = cluster.get("Lease", name, namespace)
    assert found is not None
    spec: dict[str, str] = found["spec"]
    return spec


def renewed(cluster: Cluster, server: ServerProcess) -> str:
    spec = lease(cluster, server)
    assert spec["holderIdentity"] == "first"
    return spec["renewTime"]


def test_one_of_two_servers_acts_and_the_other_once_the_first_is_gone(
    cluster: Cluster, servers: list[ServerProcess]
) -> None:
    first, second = servers
    first.start()
    until(lambda: acts(first), "the first acts")
    second.start()
    assert httpx2.get(f"{second.url}/readyz").json() == {"status": "standby"}
    refused = second.api.get("/status")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    seen = renewed(cluster, first)
    until(lambda: renewed(cluster, first) != seen, "the first keeps its lease, for longer than between two tries")
    assert (acts(first), acts(second)) == (True, False)
    began = time.monotonic()
    first.kill()
    until(lambda: acts(second), "the second acts")
    assert time.monotonic() - began > 5, "not before the lease is over"
    first.start()
    assert not acts(first)
    assert second.end() in {0, -15}
    assert lease(cluster, first)["holderIdentity"] != "second", "it is released, so that nobody waits until it is over"
    until(lambda: acts(first), "the first acts again")
