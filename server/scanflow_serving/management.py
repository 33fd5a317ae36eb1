"""The management port of a pod's instance: metrics, health and state, never a prediction.

The data plane may ask for a token, which neither Prometheus nor the API server's proxy has.
"""

from __future__ import annotations

from typing import Any, Final

from scanflow_serving import documents
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.instance_gpu import has_device
from scanflow_serving.messages import Request, Response
from scanflow_serving.routes import ServingApplication

STATE: Final = "/state"
_SHARED_PATHS: Final = frozenset({"/metrics", "/v2/health/live", "/v2/health/ready", "/healthz", "/readyz"})


class Management:
    """The paths of the management port."""

    def __init__(self, application: ServingApplication) -> None:
        self._application = application

    async def handle(self, request: Request) -> Response:
        if request.method not in {"GET", "HEAD"}:
            return self.refuse(ProblemError(405, "This port is read-only.", headers=(("allow", "GET, HEAD"),)))
        if request.path == STATE:
            own = {"rss_bytes": documents.find_rss_bytes(), **_read_devices()}
            return documents.to_response({**self._application.describe_state(metrics=True), **own})
        if request.path in _SHARED_PATHS:
            return await self._application.handle(request)
        return self.refuse(ProblemError(404, f"There is no path {request.path[:80]!r} on this port."))

    def refuse(self, problem: ProblemError) -> Response:
        return problem.build_response()


def _read_devices() -> dict[str, Any]:
    """Return the GPUs that this pod was granted, if any."""
    if not has_device():
        return {}
    from scanflow.backends.pod_devices import read_pod_devices

    return {"devices": [use.model_dump() for use in read_pod_devices()]}
