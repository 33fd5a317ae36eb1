"""``scanflow demo --backend kubernetes``: the loop of the digits, in pods from beginning to end, and nothing left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import derive_namespace
from tests.loop_events import in_order

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(1200)]

TOLD = ["tracker", "checker", "checker", "planner", "executor"]


def test_the_demo_closes_the_loop_on_a_cluster_and_leaves_nothing(
    cluster: Cluster, loop_images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cluster.get("Namespace", derive_namespace("mnist", "datascience")) is not None:
        pytest.skip("somebody's tutorial is on this cluster")
    monkeypatch.setenv("SCANFLOW_KUBERNETES_SERVER_IMAGE", loop_images)
    report = tmp_path / "report.html"
    words = ["demo", "--backend", "kubernetes", "--report", str(report)]
    environ = {**os.environ, "SCANFLOW_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "scanflow_client", *words], env=environ, capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    agents = re.findall(r"^ +\d+ s  (\w+)", done.stdout, re.MULTILINE)
    assert in_order(TOLD, agents), done.stdout
    accuracies = re.search(r"accuracy +clean [\d.]+ ?%; drifted ([\d.]+) ?%, then ([\d.]+) ?%", done.stdout)
    assert accuracies is not None, done.stdout
    assert float(accuracies[2]) > float(accuracies[1]) + 2, done.stdout
    assert re.search(r"requests +[\d,]+ sent, 0 failed", done.stdout), done.stdout
    assert report.read_text(encoding="utf-8").count("<figure") >= 8
    for kind in ("ClusterRole", "ClusterRoleBinding", "Namespace"):
        names = [
            manifest["metadata"]["name"]
            for manifest in cluster.find(kind)[0]
            if "deletionTimestamp" not in manifest["metadata"]
        ]
        assert not [name for name in names if name.startswith(("scanflow-program-", "scanflow-mnist-data"))], names
