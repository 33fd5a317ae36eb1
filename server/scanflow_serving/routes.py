"""The application of an instance: its routes, and the processing of requests.

Everything here runs on the loop. Routes are a dictionary that is rebuilt when revisions change.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from scanflow.errors import ScanflowError
from scanflow.instance_messages import DesiredInstanceState, InstanceSpec
from scanflow_serving import documents, seldon_protocol
from scanflow_serving.calls import OipCall, RouteTarget, SeldonCall, add_headers
from scanflow_serving.component_threads import Engine
from scanflow_serving.health import HealthChecks
from scanflow_serving.inference_problems import ProblemError, make_not_found
from scanflow_serving.instance_gpu import measure_unused_memory
from scanflow_serving.messages import InferRequest, InferResponse, Request, Response
from scanflow_serving.prediction_recorder import Recorder
from scanflow_serving.processing import RequestProcessor, make_defect_problem
from scanflow_serving.revisions import LoadedRevision, Revisions, WeightedChooser
from scanflow_serving.serving_metrics import Metrics, RevisionMetrics, Samples
from scanflow_serving.shadows import Shadows
from scanflow_serving.thread_pinning import Pinning

_MODELS: Final = "/v2/models/"
_LOADING_SWITCH_S: Final = 0.0002
"""The interpreter's switch interval while a model loads, in seconds (default: 0.005), so as not to delay requests."""

_log = logging.getLogger(__name__)
Handler = Callable[[Request], Awaitable[Response]]


class ServingApplication:
    def __init__(
        self, spec: InstanceSpec, *, loop: asyncio.AbstractEventLoop, on_unhealthy: Callable[[], None] | None = None
    ) -> None:
        """``on_unhealthy`` is called when too many threads hang, so that the process should be replaced."""
        limits = spec.limits
        self._spec = spec
        self._names = [spec.service, *spec.aliases]
        self._loop = loop
        self.limits = limits
        self.metrics = Metrics(spec.service)
        self._others: Samples = ()
        self.engine = Engine(
            loop,
            threads=limits.concurrency,
            queue=limits.queue,
            deadline_s=limits.deadline_s,
            on_unhealthy=on_unhealthy,
        )
        self.shadows = Shadows(loop, self.metrics, deadline_s=limits.deadline_s)
        self.revisions = Revisions(
            self.engine, self.shadows.engine, self.metrics, threads=documents.get_thread_count(spec)
        )
        self._recorder = (
            Recorder(spec.recording, count=self.metrics.count)
            if spec.recording is not None and spec.recording.fraction > 0
            else None
        )
        self._processor = RequestProcessor(
            self.engine, self.revisions, self.shadows, self._recorder, self.metrics, limits
        )
        self._instance = ("x-scanflow-instance", spec.instance)
        self._unrouted = RevisionMetrics(self.metrics, "")
        self.health = HealthChecks(self.engine)
        self.pinning = Pinning(spec.cpus if spec.pin_threads else (), self.engine, self.revisions.loaders)
        self.pinning.exclude()
        self._targets: dict[tuple[str, str], RouteTarget] = {}
        self._closed = False
        self.draining = False
        """Whether the instance is draining: it is not ready, but still answers requests."""

        folder = str(Path(spec.app_dir).resolve())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        self._routes: dict[str, dict[str, Handler]] = {}
        self._build_routes()

    # -- state and lifecycle

    def ready(self) -> bool:
        serving = self.revisions.chooser is not None
        return serving and not (self._closed or self.draining or self.engine.unhealthy or self.health.failures)

    def live(self) -> bool:
        return not (self._closed or self.engine.unhealthy)

    def describe_state(self, *, metrics: bool = False, others: Samples | None = None) -> dict[str, Any]:
        """Return the instance's state, for its supervisor.

        Args:
            metrics: With all samples of its metrics.
            others: The samples of the service's other instances together, which ``/metrics`` is to add.
        """
        if others is not None:
            self._others = others
        self._count_requests()
        return {
            "generation": self.revisions.generation,
            "revisions": documents.list_revisions([*self.revisions.loaded.values(), *self.revisions.retiring]),
            "in_flight": self.engine.in_flight,
            "queue": self.engine.waiting,
            "ready": self.ready(),
            "draining": self.draining,
            "unhealthy": self.engine.unhealthy,
            "unwell": next(iter(self.health.failures.values()), ""),
            "pinned": self.pinning.update(),
            **({} if (unused := measure_unused_memory()) is None else {"unused_device_bytes": unused}),
            **({"metrics": self.metrics.collect_samples()} if metrics else {}),
            **documents.describe_process(),
        }

    async def apply(self, desired: DesiredInstanceState) -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, _LOADING_SWITCH_S))
        try:
            changed = await self.revisions.apply(desired)
        except ScanflowError as error:
            _log.warning("revisions of generation %d cannot be served: %s", desired.generation, error)
            raise
        finally:
            sys.setswitchinterval(before)
        if changed:
            self._build_routes()
            self.health.watch(self.revisions.loaded.values())
            self.pinning.update()

    def add_alias(self, service: str) -> None:
        """Serve under the name of another service too, as its backup."""
        if service not in self._names:
            self._names.append(service)
            self._build_routes()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.health.close()
        await self.engine.close()
        await self.shadows.engine.close()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)

    # -- requests

    async def handle(self, request: Request) -> Response:
        """Answer a request. Never raises."""
        try:
            methods = self._routes.get(request.path)
            handler = methods.get(request.method) if methods is not None else None
            if handler is None:
                handler = self._get_handler(request)
            return await handler(request)
        except ProblemError as problem:
            return self.refuse(problem)
        except Exception as error:  # noqa: BLE001 - the loop's edge: whatever is wrong here, the client gets a response
            return self.refuse(make_defect_problem(error))

    def refuse(self, problem: ProblemError) -> Response:
        """Return and count the response to a request that reached no model."""
        self._unrouted.count_response(problem.status, 0.0)
        return add_headers(problem, (self._instance,))

    async def infer(self, model: str, version: str, request: InferRequest, deadline_s: float) -> InferResponse:
        target = self._targets.get((model, version))
        if target is None:
            raise self._make_unknown_problem(model, version)
        return await self._processor.infer(target, request, deadline_s)

    # -- routes

    def _build_routes(self) -> None:
        table: dict[str, dict[str, Handler]] = {}

        def get(path: str, handler: Handler) -> None:
            table.setdefault(path, {}).update({"GET": handler, "HEAD": handler})

        def post(path: str, handler: Handler) -> None:
            table.setdefault(path, {})["POST"] = handler

        self._processor.headers = {
            loaded.id: (self._instance, ("x-scanflow-revision", loaded.id)) for loaded in self.revisions.loaded.values()
        }
        get("/", self._show_instance)
        get("/v2", self._describe_server)
        for path in ("/v2/health/live", "/healthz"):
            get(path, self._live)
        for path in ("/v2/health/ready", "/readyz"):
            get(path, self._ready)
        get("/metrics", self._metrics)
        post("/v2/repository/index", self._index)
        self._targets = self._list_targets()
        for (name, version), target in self._targets.items():
            path = f"{_MODELS}{name}" + (f"/versions/{version}" if version else "")
            get(path, partial(self._describe_node, target))
            get(f"{path}/ready", partial(self._report_ready, target))
            post(f"{path}/infer", partial(self._processor.respond, OipCall, target))
        whole = self._targets.get((self._spec.service, ""))
        post(
            "/api/v1.0/predictions", partial(self._processor.respond, SeldonCall, whole) if whole else _build_not_ready
        )
        post("/api/v1.0/feedback", partial(self._give_feedback, whole) if whole else _build_not_ready)
        self._routes = table

    def _list_targets(self) -> dict[tuple[str, str], RouteTarget]:
        """Return the targets by name and version; an empty version chooses by weight."""
        chooser = self.revisions.chooser
        if chooser is None:
            return {}
        targets: dict[tuple[str, str], RouteTarget] = {}
        serving = [loaded for loaded in self.revisions.loaded.values() if not loaded.shadow]
        for name in self._names:
            targets[name, ""] = RouteTarget(name, None, chooser)
            for loaded in serving:
                targets[name, loaded.id] = RouteTarget(name, None, WeightedChooser([loaded]))
        whole = {name for name, _ in targets}
        for node in {node: None for loaded in serving for node in loaded.components if node not in whole}:
            having = [loaded for loaded in serving if node in loaded.components]
            before = self._targets.get((node, ""))
            targets[node, ""] = RouteTarget(node, node, WeightedChooser(having, before.chooser if before else None))
            versions: dict[str, list[LoadedRevision]] = {}
            for loaded in having:
                versions.setdefault(targets[node, ""].get_version(loaded), []).append(loaded)
            for version, group in versions.items():
                targets[node, version] = RouteTarget(node, node, WeightedChooser(group))
        return targets

    def _list_versions(self, name: str) -> list[str]:
        return [version for model, version in self._targets if model == name and version]

    def _get_handler(self, request: Request) -> Handler:
        """Return the handler of a request whose path has to be normalized, or raise its problem."""
        path = unquote(request.path).rstrip("/") or "/"
        methods = self._routes.get(path)
        if methods is not None:
            if request.method in methods:
                return methods[request.method]
            allowed = ", ".join(methods)
            raise ProblemError(
                405,
                f"{request.method[:20]} is not allowed for {path[:200]}: use {allowed}.",
                headers=(("allow", allowed),),
            )
        if path.startswith(_MODELS):
            name, _, rest = path.removeprefix(_MODELS).partition("/")
            if name == "stats" or rest.rpartition("/")[2] == "stats":
                raise ProblemError(
                    404, "This server has no statistics of Triton's. Requests, latencies and errors: GET /metrics."
                )
            version = rest.removeprefix("versions/").partition("/")[0] if rest.startswith("versions/") else ""
            if (name, version) not in self._targets:
                raise self._make_unknown_problem(name, version)
        raise make_not_found("path", path, self._routes)

    def _make_unknown_problem(self, name: str, version: str) -> ProblemError:
        if not self._targets:
            return _make_not_loaded_problem()
        if (name, "") not in self._targets:
            return make_not_found("model", name, [model for model, version in self._targets if not version])
        return ProblemError(
            404, f"The model {name!r} has no version {version[:80]!r}. Known: {', '.join(self._list_versions(name))}."
        )

    # -- health and metadata

    async def _show_instance(self, _request: Request) -> Response:
        names = [name for name, version in self._targets if not version]
        return documents.to_response(documents.describe_instance(self._spec, names), (self._instance,))

    async def _describe_server(self, _request: Request) -> Response:
        return documents.to_response(documents.describe_server())

    async def _live(self, _request: Request) -> Response:
        return _make_state_response("live", self.live())

    async def _ready(self, _request: Request) -> Response:
        return _make_state_response("ready", self.ready())

    async def _describe_node(self, target: RouteTarget, _request: Request) -> Response:
        loaded = max(target.chooser.choices, key=lambda choice: choice.weight)
        document = documents.describe_model(target.name, target.get_graph(loaded), self._list_versions(target.name))
        return documents.to_response(document, self._processor.headers[loaded.id])

    async def _report_ready(self, target: RouteTarget, _request: Request) -> Response:
        unwell = (
            self.health.failures.get(target.node) if target.node else next(iter(self.health.failures.values()), None)
        )
        if unwell:
            raise ProblemError(503, unwell, retry_after_s=1.0)
        return _make_state_response("ready", self.ready() or target.node is not None)

    async def _index(self, _request: Request) -> Response:
        names = [name for name, version in self._targets if not version]
        models = {name: self._list_versions(name) for name in names}
        return documents.to_response(documents.list_models(models, ready=self.ready()))

    def _count_requests(self) -> None:
        self.metrics.get_counter("scanflow_in_flight").value = self.engine.in_flight
        self.metrics.get_counter("scanflow_waiting").value = self.engine.waiting

    async def _metrics(self, _request: Request) -> Response:
        self._count_requests()
        return Response(200, *self.metrics.render(self._others))

    async def _give_feedback(self, target: RouteTarget, request: Request) -> Response:
        self._processor.admit()
        media = request.headers.get("content-type", "")
        feedback = seldon_protocol.decode_feedback(request.body, allow_nan=self.limits.allow_nan, media=media)
        tagged = self.revisions.loaded.get(str(feedback.tags.get(seldon_protocol.REVISION_TAG, "")))
        loaded = tagged if tagged is not None and not tagged.shadow else target.chooser.pick()

        def finish(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(self.limits.deadline_s)

        loaded.in_flight += 1
        self.engine.in_flight += 1
        try:
            async with asyncio.timeout(self.limits.deadline_s):
                count = await self.engine.run(partial(seldon_protocol.give_feedback, loaded.graph, feedback, finish))
        except TimeoutError:
            self.engine.check_workers()
            raise ProblemError(504, f"The feedback was not processed within {self.limits.deadline_s:g} s.") from None
        finally:
            self.engine.in_flight -= 1
            self.revisions.release(loaded)
        return documents.to_response(
            {"meta": {"tags": {"notified": count}}}, self._processor.headers.get(loaded.id, ())
        )


def _make_state_response(word: str, well: bool) -> Response:
    return documents.to_response({word: well}, status=200 if well else 503)


def _make_not_loaded_problem() -> ProblemError:
    return ProblemError(503, "No model is loaded yet. Try again in a moment.", retry_after_s=1.0)


async def _build_not_ready(_request: Request) -> Response:
    raise _make_not_loaded_problem()
