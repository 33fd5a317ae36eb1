"""The server's own metrics, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Meters:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "scanflow_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "scanflow_http_request_seconds",
            "Time until the response started.",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.wrong_tokens = Counter(
            "scanflow_http_wrong_tokens", "Requests with a wrong token.", registry=self.registry
        )
        self.sign_ins = Counter("scanflow_sign_ins", "Sign-ins by OpenID Connect.", ["outcome"], registry=self.registry)
        self.things = Gauge("scanflow_things", "Resources, by kind.", ["kind"], registry=self.registry)

        self.stored_bytes = Gauge(
            "scanflow_stored_bytes",
            "What a team's events, samples and requested runs take in the database.",
            ["team"],
            registry=self.registry,
        )

    def count_sign_in(self, status: int) -> None:
        """Count a sign-in by the status of its answer."""
        outcome = "unavailable" if status >= 500 else "refused" if status >= 400 else "succeeded"
        self.sign_ins.labels(outcome).inc()

    def render(self, counts: dict[str, int], stored: Mapping[str, int]) -> bytes:
        for team, n_bytes in stored.items():
            self.stored_bytes.labels(team).set(n_bytes)
        for kind, count in counts.items():
            self.things.labels(kind).set(count)
        return generate_latest(self.registry)


class RequestMetrics:
    """Counts requests and measures their duration. ASGI middleware."""

    def __init__(
        self, app: ASGIApp, *, meters: Meters, prefix: str = "", clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """``prefix`` is where the application includes its routers."""
        self._app, self._meters, self._prefix, self._clock = app, meters, prefix, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock()

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope, message["status"], self._clock() - began)
            await send(message)

        await self._app(scope, receive, send_and_count)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        path = str(getattr(route, "path", "unknown"))  # never the URL itself: its cardinality is unbounded
        if route is not None and not scope["path"].startswith(path.partition("{")[0]):
            path = self._prefix + path  # the path of an included route lacks the prefix
        method = scope["method"] if route is not None else "unknown"
        self._meters.requests.labels(method, path, str(status)).inc()
        self._meters.seconds.labels(method, path).observe(seconds)
