"""Canaries on a cluster that a running server promotes or removes by their policy, while nobody else looks at them."""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.service_records import CanaryPolicy
from scanflow.errors import ScanflowError
from tests.cluster.loops import Loop
from tests.cluster.online import register_factors
from tests.waiting import patient, wait_until

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(900)]

MODULE = """
class Multiply:
    def __init__(self, by):
        self.by = by

    def predict(self, X):
        if self.by < 0:
            raise ValueError("it cannot multiply by less than nothing")
        return X * self.by


def _load_pyfunc(path):
    with open(path) as file:
        return Multiply(int(file.read()))
"""
APP = """
import scanflow as sf

node = sf.Service(name="multiply", model="models:/multiply/1")
flow = sf.Workflow(name="{name}", type="online", nodes=[node])
app = sf.Application(name="{name}", team="tests", workflows=[flow], tracker=sf.Tracker())
"""
POLICY = CanaryPolicy(metric="errors", after_requests=20)


def test_a_server_promotes_a_canary_that_answers_and_removes_one_that_fails(
    cluster: Cluster, loop_images: str, tmp_path: Path
) -> None:
    del loop_images  # in the environment
    name = f"canary{uuid.uuid4().hex[:6]}"
    (tmp_path / "multiply.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "app.py").write_text(APP.format(name=name), encoding="utf-8")
    loop = Loop(cluster, tmp_path, tmp_path / "app.py")

    def is_decided(client: sf.Client) -> bool:
        """Send a request, and return whether no canary is left."""
        with suppress(ScanflowError):  # of the version that fails
            client.predict(name, [1])
        return [revision.role for revision in client.service(name).revisions] == ["current"]

    def predict_ten_times(client: sf.Client) -> list[list[int]]:
        """Return ten predictions, which a pod that drains may answer, too."""
        with suppress(ScanflowError):
            return [client.predict(name, [1]).tolist() for _ in range(10)]
        return []

    with loop.running() as client:
        register_factors(loop.knowledge(), tmp_path, name, (2, 3, -1))
        loop.scanflow("deploy", f"app.py:{name}")
        assert client.predict(name, [1]).tolist() == [2]

        client.traffic(name, "models:/multiply/2", weight=0.5, policy=POLICY)
        wait_until(lambda: is_decided(client), "the canary is promoted", patience_s=patient(120))
        wait_until(
            lambda: predict_ten_times(client) == [[3]] * 10, "the old pod answers no more", patience_s=patient(60)
        )

        client.traffic(name, "models:/multiply/3", weight=0.5, policy=POLICY)
        wait_until(lambda: is_decided(client), "the canary is removed", patience_s=patient(120))
        wait_until(lambda: predict_ten_times(client) == [[3]] * 10, "its pod answers no more", patience_s=patient(60))
