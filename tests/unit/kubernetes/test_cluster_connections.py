"""Connections to an API server, of which this is one that answers watches when it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from tests.api_server import serve_api
from tests.waiting import PATIENCE_S

go_on = threading.Event()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        for number, wait in ((1, False), (2, True)):
            if wait:
                go_on.wait(PATIENCE_S)
            event = {"type": "ADDED", "object": {"metadata": {"name": f"m{number}", "resourceVersion": str(number)}}}
            self.wfile.write(json.dumps(event).encode() + b"\n")
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    go_on.clear()
    with serve_api(Handler, tmp_path) as kubeconfig:
        yield Cluster(KubernetesSettings(kubeconfig=kubeconfig))


def test_what_is_closed_lets_a_watch_end_and_begins_nothing_more(cluster: Cluster) -> None:
    seen, first = list[str](), threading.Event()

    def watch() -> None:
        for event in cluster.watch("ConfigMap", "default"):
            seen.append(event.object["metadata"]["name"])
            first.set()

    watching = threading.Thread(target=watch)
    watching.start()
    assert first.wait(PATIENCE_S)
    cluster.close()
    with pytest.raises(RuntimeError, match="closed"):
        cluster.find("ConfigMap", "default")
    go_on.set()
    watching.join(PATIENCE_S)
    assert seen == ["m1", "m2"]
