"""What an instance answers: the table of its paths, and the way of a request through it.

Everything here runs on the loop. Paths are looked up in a dictionary that is made anew when revisions change.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final
from urllib.parse import unquote

from scanflow.errors import ScanflowError
from scanflow.wire import Desired, InstanceSpec
from scanflow_serving import documents, seldon
from scanflow_serving.calls import LARGE, GrpcCall, OipCall, RouteTarget, SeldonCall, ServingCall, with_headers
from scanflow_serving.engine import Engine
from scanflow_serving.health import HealthChecks
from scanflow_serving.messages import Headers, InferRequest, InferResponse, Request, Response
from scanflow_serving.metrics import Metrics, RevisionMetrics, Samples
from scanflow_serving.pinning import Pinning
from scanflow_serving.problems import ProblemError, not_found
from scanflow_serving.recorder import Recorder
from scanflow_serving.revisions import Chooser, Loaded, Revisions
from scanflow_serving.shadows import Shadows

_MODELS: Final = "/v2/models/"
_LOADING_SWITCH_S: Final = 0.0002
"""While a model is loaded its thread gives way to requests this soon; Python's own default is 5 ms."""

_READ_BY_GRPC: Final = Request("POST", "")

_log = logging.getLogger(__name__)
Handler = Callable[[Request], Awaitable[Response]]


class ServingApplication:
    def __init__(
        self, spec: InstanceSpec, *, loop: asyncio.AbstractEventLoop, on_unhealthy: Callable[[], None] | None = None
    ) -> None:
        """``on_unhealthy`` is called when too many threads hang and the process should be replaced."""
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
        self.revisions = Revisions(self.engine, self.shadows.engine, self.metrics, threads=documents.threads_of(spec))
        self.recorder = (
            Recorder(spec.recording, count=self.metrics.count)
            if spec.recording is not None and spec.recording.fraction > 0
            else None
        )
        self._instance = ("x-scanflow-instance", spec.instance)
        self._headers: dict[str, Headers] = {"": (self._instance,)}
        self._unrouted = RevisionMetrics(self.metrics, "")
        self.health = HealthChecks(self.engine)
        self.pinning = Pinning(spec.cpus if spec.pin_threads else (), self.engine, self.revisions.loaders)
        self.pinning.exclude()
        self._targets: dict[tuple[str, str], RouteTarget] = {}
        self._closed = False
        self.draining = False
        """Set by whoever drains: readiness is false then; what still comes is answered."""

        folder = str(Path(spec.app_dir).resolve())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        self._routes: dict[str, dict[str, Handler]] = {}
        self._build_routes()

    # -- what the program asks for

    def ready(self) -> bool:
        serving = self.revisions.chooser is not None
        return serving and not (self._closed or self.draining or self.engine.unhealthy or self.health.unwell)

    def live(self) -> bool:
        return not (self._closed or self.engine.unhealthy)

    def state(self, *, metrics: bool = False, others: Samples | None = None) -> dict[str, Any]:
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
            "revisions": documents.revisions([*self.revisions.loaded.values(), *self.revisions.retiring]),
            "in_flight": self.engine.in_flight,
            "queue": self.engine.waiting,
            "ready": self.ready(),
            "draining": self.draining,
            "unhealthy": self.engine.unhealthy,
            "unwell": next(iter(self.health.unwell.values()), ""),
            "pinned": self.pinning.update(),
            **({"metrics": self.metrics.samples()} if metrics else {}),
            **documents.this_process(),
        }

    async def apply(self, desired: Desired) -> None:
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

    def answer_as(self, service: str) -> None:
        """Answer under the name of another service too, whose backup this one has become."""
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
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)

    # -- requests

    async def handle(self, request: Request) -> Response:
        """Answer a request. Never raises."""
        try:
            methods = self._routes.get(request.path)
            handler = methods.get(request.method) if methods is not None else None
            if handler is None:
                handler = self._search(request)
            return await handler(request)
        except ProblemError as problem:
            return self.refuse(problem)
        except Exception as error:  # noqa: BLE001 - the loop's edge: whatever is wrong here, the client gets a response
            return self.refuse(_defect(error))

    def refuse(self, problem: ProblemError) -> Response:
        """Return the response to a request that never came to a model, counted."""
        self._unrouted.answered(problem.status, 0.0)
        return with_headers(problem, (self._instance,))

    async def infer(self, model: str, version: str, request: InferRequest, deadline_s: float) -> InferResponse:
        target = self._targets.get((model, version))
        if target is None:
            raise self._unknown(model, version)
        call = self._begin(GrpcCall, target, _READ_BY_GRPC, infer=request)
        result = await self._run(call, deadline_s)
        if isinstance(result, ProblemError):
            raise result
        found: InferResponse = result
        return found

    def retain(self, call: ServingCall) -> None:
        """Keep a call's inputs, if they are to be recorded or sent to a shadow; in any thread."""
        call.recorded = self.recorder is not None and self.recorder.wants(call.sent())
        if call.recorded or call.shadowed:
            call.keep_inputs()

    async def _answer(self, kind: type[ServingCall], target: RouteTarget, request: Request) -> Response:
        call = self._begin(kind, target, request)
        call.unread = len(request.body) > LARGE
        answer: Response = await self._run(call, self.limits.deadline_s)
        return answer

    def _begin(self, kind: type[ServingCall], target: RouteTarget, request: Request, **more: Any) -> ServingCall:
        self._admit()
        loaded = target.chooser.pick()
        return kind(self, loaded, target, target.graph(loaded), request, self._headers[loaded.id], **more)

    def _admit(self) -> None:
        try:
            self.engine.admit()
        except ProblemError as problem:
            self.metrics.count("scanflow_refused", reason="queue" if problem.status == 429 else "draining")
            raise

    async def _run(self, call: ServingCall, allowed_s: float) -> Any:
        loaded, engine, status = call.loaded, self.engine, 200
        call.shadowed = call.target.node is None and bool(self.revisions.shadows)
        loaded.in_flight += 1
        engine.in_flight += 1
        try:
            if not call.unread:
                call.read()
                if self.recorder is not None or call.shadowed:
                    self.retain(call)
                if call.timeout_s is not None:
                    allowed_s = min(allowed_s, call.timeout_s)
            result = await call.run(allowed_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a response
            problem = error if isinstance(error, ProblemError) else _defect(error)
            status, result = problem.status, call.failure(problem)
        finally:
            engine.in_flight -= 1
            loaded.answered += 1
            self.revisions.left(loaded)
        loaded.meter.answered(status, monotonic() - call.began)
        loaded.count(call.walk)
        if call.walk.metrics:
            self.metrics.custom(loaded.id, call.walk.metrics)
        if status == 200 and call.inputs is not None:
            if call.recorded and self.recorder is not None:
                self.recorder.keep(loaded.revision, call.inputs, call.outputs())
            if call.shadowed:
                self.shadows.show(call, self.revisions)
        return result

    # -- the table

    def _build_routes(self) -> None:
        table: dict[str, dict[str, Handler]] = {}

        def get(path: str, handler: Handler) -> None:
            table.setdefault(path, {}).update({"GET": handler, "HEAD": handler})

        def post(path: str, handler: Handler) -> None:
            table.setdefault(path, {})["POST"] = handler

        self._headers = {
            one.id: (self._instance, ("x-scanflow-revision", one.id)) for one in self.revisions.loaded.values()
        }
        get("/", self._about)
        get("/v2", self._server)
        for path in ("/v2/health/live", "/healthz"):
            get(path, self._live)
        for path in ("/v2/health/ready", "/readyz"):
            get(path, self._ready)
        get("/metrics", self._metrics)
        post("/v2/repository/index", self._index)
        self._targets = self._find_targets()
        for (name, version), target in self._targets.items():
            path = f"{_MODELS}{name}" + (f"/versions/{version}" if version else "")
            get(path, partial(self._metadata, target))
            get(f"{path}/ready", partial(self._model_ready, target))
            post(f"{path}/infer", partial(self._answer, OipCall, target))
        whole = self._targets.get((self._spec.service, ""))
        post("/api/v1.0/predictions", partial(self._answer, SeldonCall, whole) if whole else _not_ready)
        post("/api/v1.0/feedback", partial(self._feedback, whole) if whole else _not_ready)
        self._routes = table

    def _find_targets(self) -> dict[tuple[str, str], RouteTarget]:
        """Return what can be asked, by name and version; the version empty: by weight."""
        chooser = self.revisions.chooser
        if chooser is None:
            return {}
        found: dict[tuple[str, str], RouteTarget] = {}
        serving = [one for one in self.revisions.loaded.values() if not one.shadow]
        for name in self._names:
            found[name, ""] = RouteTarget(name, None, chooser)
            for one in serving:
                found[name, one.id] = RouteTarget(name, None, Chooser([one]))
        whole = {name for name, _ in found}
        for node in {node: None for one in serving for node in one.components if node not in whole}:
            having = [one for one in serving if node in one.components]
            before = self._targets.get((node, ""))
            found[node, ""] = RouteTarget(node, node, Chooser(having, before.chooser if before else None))
            versions: dict[str, list[Loaded]] = {}
            for one in having:
                versions.setdefault(found[node, ""].version(one), []).append(one)
            for version, those in versions.items():
                found[node, version] = RouteTarget(node, node, Chooser(those))
        return found

    def _versions(self, name: str) -> list[str]:
        return [version for known, version in self._targets if known == name and version]

    def _search(self, request: Request) -> Handler:
        """Return who answers a request that the table does not have as it is."""
        path = unquote(request.path).rstrip("/") or "/"
        methods = self._routes.get(path)
        if methods is not None:
            if request.method in methods:
                return methods[request.method]
            allowed = ", ".join(methods)
            raise ProblemError(
                405, f"{request.method[:20]} is not for {path[:200]}: use {allowed}.", headers=(("allow", allowed),)
            )
        if path.startswith(_MODELS):
            name, _, rest = path.removeprefix(_MODELS).partition("/")
            version = rest.removeprefix("versions/").partition("/")[0] if rest.startswith("versions/") else ""
            if (name, version) not in self._targets:
                raise self._unknown(name, version)
        raise not_found("path", path, self._routes)

    def _unknown(self, name: str, version: str) -> ProblemError:
        if not self._targets:
            return _no_model_yet()
        if (name, "") not in self._targets:
            return not_found("model", name, [known for known, version in self._targets if not version])
        return ProblemError(
            404, f"The model {name!r} has no version {version[:80]!r}. Known: {', '.join(self._versions(name))}."
        )

    # -- the small responses

    async def _about(self, _request: Request) -> Response:
        names = [name for name, version in self._targets if not version]
        return documents.as_json(documents.about(self._spec, names), (self._instance,))

    async def _server(self, _request: Request) -> Response:
        return documents.as_json(documents.server())

    async def _live(self, _request: Request) -> Response:
        return _state("live", self.live())

    async def _ready(self, _request: Request) -> Response:
        return _state("ready", self.ready())

    async def _metadata(self, target: RouteTarget, _request: Request) -> Response:
        loaded = max(target.chooser.choices, key=lambda one: one.weight)
        document = documents.model(target.name, target.graph(loaded), self._versions(target.name))
        return documents.as_json(document, self._headers[loaded.id])

    async def _model_ready(self, target: RouteTarget, _request: Request) -> Response:
        unwell = self.health.unwell.get(target.node) if target.node else next(iter(self.health.unwell.values()), None)
        if unwell:
            raise ProblemError(503, unwell, retry_after_s=1.0)
        return _state("ready", self.ready() or target.node is not None)

    async def _index(self, _request: Request) -> Response:
        names = [name for name, version in self._targets if not version]
        models = {name: self._versions(name) for name in names}
        return documents.as_json(documents.index(models, ready=self.ready()))

    def _count_requests(self) -> None:
        self.metrics.number("scanflow_in_flight").value = self.engine.in_flight
        self.metrics.number("scanflow_waiting").value = self.engine.waiting

    async def _metrics(self, _request: Request) -> Response:
        self._count_requests()
        return Response(200, *self.metrics.render(self._others))

    async def _feedback(self, target: RouteTarget, request: Request) -> Response:
        self._admit()
        media = request.headers.get("content-type", "")
        feedback = seldon.decode_feedback(request.body, allow_nan=self.limits.allow_nan, media=media)
        said = self.revisions.loaded.get(str(feedback.tags.get(seldon.REVISION_TAG, "")))
        loaded = said if said is not None and not said.shadow else target.chooser.pick()

        def finish(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(self.limits.deadline_s)

        loaded.in_flight += 1
        self.engine.in_flight += 1
        try:
            async with asyncio.timeout(self.limits.deadline_s):
                told = await self.engine.run(partial(seldon.give_feedback, loaded.graph, feedback, finish))
        except TimeoutError:
            self.engine.timed_out()
            raise ProblemError(504, f"The feedback was not taken within {self.limits.deadline_s:g} s.") from None
        finally:
            self.engine.in_flight -= 1
            self.revisions.left(loaded)
        return documents.as_json({"meta": {"tags": {"told": told}}}, self._headers.get(loaded.id, ()))


def _state(word: str, well: bool) -> Response:
    return documents.as_json({word: well}, status=200 if well else 503)


def _no_model_yet() -> ProblemError:
    return ProblemError(503, "No model is loaded yet. Try again in a moment.", retry_after_s=1.0)


async def _not_ready(_request: Request) -> Response:
    raise _no_model_yet()


def _defect(error: BaseException) -> ProblemError:
    _log.error("a request could not be answered", exc_info=error)
    return ProblemError(500, f"The answer could not be made: {type(error).__name__}: {error}")
