"""The life of a request that a model answers: admitted, read, answered, counted, recorded and copied to shadows.

All of it is on the loop; what computes is in the engine's worker threads.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Any, Final

from scanflow.instance_messages import Limits
from scanflow_serving.calls import LARGE, GrpcCall, RouteTarget, ServingCall
from scanflow_serving.component_threads import Engine
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.instance_secrets import secrets
from scanflow_serving.messages import Headers, InferRequest, InferResponse, Request, Response
from scanflow_serving.prediction_recorder import Recorder
from scanflow_serving.revisions import Revisions
from scanflow_serving.serving_metrics import Metrics
from scanflow_serving.shadows import Shadows

CLIENT_GONE: Final = 499
"""What a request is counted as whose client has gone before it was answered, as NGINX does."""

_READ_BY_GRPC: Final = Request("POST", "")

_log = logging.getLogger(__name__)


class RequestProcessor:
    def __init__(
        self,
        engine: Engine,
        revisions: Revisions,
        shadows: Shadows,
        recorder: Recorder | None,
        metrics: Metrics,
        limits: Limits,
    ) -> None:
        self._engine, self._revisions, self._shadows, self._recorder = engine, revisions, shadows, recorder
        self._metrics, self._limits = metrics, limits
        self.headers: dict[str, Headers] = {}
        """Those of each revision's responses."""

    async def respond(self, kind: type[ServingCall], target: RouteTarget, request: Request) -> Response:
        call = self._begin(kind, target, request)
        call.unread = len(request.body) > LARGE
        answer: Response = await self._run(call, self._limits.deadline_s)
        return answer

    async def infer(self, target: RouteTarget, request: InferRequest, deadline_s: float) -> InferResponse:
        """Answer a request over gRPC, or raise its problem."""
        call = self._begin(GrpcCall, target, _READ_BY_GRPC, infer=request)
        result = await self._run(call, deadline_s)
        if isinstance(result, ProblemError):
            raise result
        response: InferResponse = result
        return response

    def admit(self) -> None:
        """Refuse a request, and count it, if too many wait already or the instance is draining."""
        try:
            self._engine.admit()
        except ProblemError as problem:
            self._metrics.count("scanflow_refused", reason="queue" if problem.status == 429 else "draining")
            raise

    def _begin(self, kind: type[ServingCall], target: RouteTarget, request: Request, **more: Any) -> ServingCall:
        self.admit()
        loaded = target.chooser.pick()
        about = loaded, target, target.get_graph(loaded), request, self.headers[loaded.id]
        return kind(self._engine, self._recorder, self._limits.allow_nan, *about, **more)

    async def _run(self, call: ServingCall, allowed_s: float) -> Any:
        loaded, engine, status = call.loaded, self._engine, 200
        call.shadowed = call.target.node is None and bool(self._revisions.shadows)
        loaded.in_flight += 1
        engine.in_flight += 1
        try:
            if not call.unread:
                call.read()
                if self._recorder is not None or call.shadowed:
                    call.retain()
                if call.timeout_s is not None:
                    allowed_s = min(allowed_s, call.timeout_s)
            result = await call.run(allowed_s)
        except asyncio.CancelledError:
            loaded.meter.count_response(CLIENT_GONE, monotonic() - call.began)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a response
            problem = error if isinstance(error, ProblemError) else make_defect_problem(error)
            status, result = problem.status, call.make_failure(problem)
            if problem.is_lasting:
                engine.report_broken(problem.detail)
        finally:
            engine.in_flight -= 1
            loaded.response_count += 1
            self._revisions.release(loaded)
        loaded.meter.count_response(status, monotonic() - call.began)
        loaded.count(call.walk)
        if call.walk.metrics:
            self._metrics.count_custom(loaded.id, call.walk.metrics)
        if status == 200 and call.inputs is not None:
            if call.recorded and self._recorder is not None:
                self._recorder.keep(loaded.revision, call.inputs, call.get_outputs())
            if call.shadowed:
                self._shadows.send(call, self._revisions)
        return result


def make_defect_problem(error: BaseException) -> ProblemError:
    _log.error("a request could not be answered", exc_info=error)
    return ProblemError(500, f"The response could not be created: {type(error).__name__}: {secrets.mask(str(error))}")
