"""Small servers as pods, which say who they are and count what they were asked; and a Gateway before them."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Any

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.object_labels import build_labels, derive_namespace
from scanflow.backends.kubernetes.online.traffic import GRPC_PORT, H2C, HTTP_PORT
from scanflow.errors import UnsupportedError
from tests.waiting import wait_until

TEAM = "tests"

HTTP = """
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
count = 0
class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are written apart, and the body would wait 40 ms
    def do_GET(self):
        global count
        if self.path == "/count":
            body = str(count).encode()
        elif self.path == "/metrics":
            labels = '{service="%s",revision="r1",code="200"}' % os.environ["SERVICE"]
            service = '{service="%s"}' % os.environ["SERVICE"]
            body = f"scanflow_requests_total{labels} {count}\\nscanflow_in_flight{service} 0\\n".encode()
        elif self.path == "/ready":
            body = b"yes"
        else:
            count += 1
            body = json.dumps({"who": os.environ["WHO"], "path": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
class Server(ThreadingHTTPServer):
    request_queue_size = 128
Server(("", 8080), Echo).serve_forever()
"""

GRPC = """
import os
from concurrent import futures
import grpc
def who(request, context):
    return os.environ["WHO"].encode()
handler = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ServerLive": grpc.unary_unary_rpc_method_handler(who)})
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((handler,))
server.add_insecure_port("[::]:8081")
server.start()
server.wait_for_termination()
"""  # noqa: E501


class Echoes:
    """A namespace with echo servers and a Gateway, as an application would have them."""

    def __init__(self, cluster: Cluster, app: str) -> None:
        self.cluster, self.app, self.namespace = cluster, app, derive_namespace(app, TEAM)
        self.gateway = f"{self.namespace}/public"

    def server(self, name: str, *, replicas: int = 1, grpc: bool = False, service: str = "echo") -> None:
        """Start a Deployment and a Service of that name; pods say its name, or with ``grpc`` their own."""
        own = {"scanflow.dev/service": service, "scanflow.dev/revision": name}
        labels = {**build_labels(self.app, TEAM), **own}
        port = GRPC_PORT if grpc else HTTP_PORT
        image = os.environ.get("SCANFLOW_KUBERNETES_IMAGE", "scanflow/base:latest") if grpc else "python:3.11-slim"
        who: Manifest = {"fieldRef": {"fieldPath": "metadata.name"}}
        probe: Manifest = {"tcpSocket": {"port": port}} if grpc else {"httpGet": {"path": "/ready", "port": port}}
        container = {
            "name": "echo",
            "image": image,
            "command": ["python", "-c", GRPC if grpc else HTTP],
            "env": [
                {"name": "WHO", **({"valueFrom": who} if grpc else {"value": name})},
                {"name": "SERVICE", "value": service},
            ],
            "ports": [{"containerPort": port}],
            "readinessProbe": {**probe, "periodSeconds": 1},
            "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}},
        }
        notes = {"prometheus.io/scrape": "true", "prometheus.io/port": str(port)} if not grpc else {}
        template = {
            "metadata": {"labels": labels, "annotations": notes},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
        }
        self.apply("Deployment", name, "apps/v1", replicas=replicas, selector={"matchLabels": own}, template=template)
        ports = [{"name": "serve", "port": port, **({"appProtocol": H2C} if grpc else {})}]
        self.apply("Service", name, "v1", selector=own, ports=ports)

    def apply(self, kind: str, name: str, api_version: str, **spec: Any) -> Manifest:
        metadata = {"name": name, "namespace": self.namespace, "labels": build_labels(self.app, TEAM)}
        return self.cluster.apply({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})

    def ready(self, *names: str) -> None:
        """Wait until all pods of Deployments are ready."""

        def available() -> bool:
            deployments = [self.cluster.get("Deployment", name, self.namespace) for name in names]
            return all(
                manifest and manifest.get("status", {}).get("readyReplicas") == manifest["spec"]["replicas"]
                for manifest in deployments
            )

        wait_until(available, f"{', '.join(names)} are ready")

    def route(self, *routes: Manifest) -> None:
        """Apply routes, and wait until the Gateway has taken them."""
        for route in routes:
            self.cluster.apply(route)
            if not route["kind"].endswith("Route"):
                continue

            def is_taken(manifest: Manifest = route) -> bool:
                route = self.cluster.get(manifest["kind"], manifest["metadata"]["name"], self.namespace)
                return route is not None and is_accepted(route)

            wait_until(is_taken, f"the {route['kind']} is accepted", patience_s=20)

    def count(self, name: str) -> int:
        """Return how many requests the pods behind a Service have counted; there should be one pod."""
        return int(
            self.cluster.fetch_text(f"/api/v1/namespaces/{self.namespace}/services/{name}:{HTTP_PORT}/proxy/count")
        )


@contextmanager
def echoes(cluster: Cluster, what: str) -> Iterator[Echoes]:
    """Give a namespace of its own, with a Gateway; it is removed at the end."""
    echoes = Echoes(cluster, f"{what}{os.getpid()}")
    try:
        cluster.find("Gateway", echoes.namespace)
    except UnsupportedError as error:
        pytest.skip(str(error))
    try:
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": echoes.namespace}})
        listener = {"name": "web", "protocol": "HTTP", "port": 8000}
        echoes.apply(
            "Gateway",
            "public",
            "gateway.networking.k8s.io/v1",
            gatewayClassName=os.environ.get("SCANFLOW_TEST_GATEWAY_CLASS", "traefik"),
            listeners=[listener],
        )
        yield echoes
    finally:
        cluster.delete("Namespace", echoes.namespace)


def gateway_address(cluster: Cluster) -> str:
    """Return ``host:port`` of the Gateway's controller: Traefik's Service, which nodes of the cluster reach."""
    service = cluster.get("Service", "traefik", "traefik")
    if service is None:
        pytest.skip("the cluster has no Service traefik/traefik to call the Gateway by")
    return f"{service['spec']['clusterIP']}:80"


def call(url: str) -> dict[str, Any]:
    """Return what an echo says; ``who`` is its status where the answer is none."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            document: dict[str, Any] = json.loads(answer.read())
            return document
    except urllib.error.HTTPError as error:
        return {"who": str(error.code), "path": ""}


def count_answers(url: str, calls: int) -> Counter[str]:
    """Return who answered how many of so many calls, one after the other."""
    return Counter(call(url)["who"] for _ in range(calls))


@contextmanager
def keep_requesting(address: str, path: str, *, callers: int) -> Iterator[Counter[str]]:
    """Have some callers ask, on connections that they keep; the count of who answered grows meanwhile.

    What is no answer is counted by its status or its error.
    """
    answered: Counter[str] = Counter()
    over = threading.Event()

    def ask() -> None:
        connection = HTTPConnection(address, timeout=10)
        while not over.is_set():
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                body = answer.read()
                who = json.loads(body)["who"] if answer.status == 200 else str(answer.status)
            except (OSError, HTTPException) as error:
                connection.close()
                who = type(error).__name__
            answered[who] += 1
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield answered
    finally:
        over.set()
        for thread in threads:
            thread.join()


def seconds_until(true: Callable[[], object], what: str, *, patience_s: float = 60.0) -> float:
    """Wait, and return how long it took."""
    began = time.monotonic()
    wait_until(true, what, patience_s=patience_s)
    return time.monotonic() - began


def is_accepted(route: Manifest) -> bool:
    """Return whether each of a route's Gateways has accepted it as it is now, and none refuses a part of it."""
    parents = route.get("status", {}).get("parents", ())
    conditions = [
        condition
        for parent in parents
        for condition in parent.get("conditions", ())
        if condition.get("observedGeneration") == route["metadata"]["generation"]
    ]
    accepting = sum(condition["type"] == "Accepted" for condition in conditions)
    return accepting >= len(route["spec"]["parentRefs"]) and all(
        condition["status"] == "True" for condition in conditions
    )
