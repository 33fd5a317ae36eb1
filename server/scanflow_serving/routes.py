"""What an instance answers: the table of its paths, and the way of a request through it.

Everything here runs on the loop. Paths are looked up in a dictionary that is made anew when revisions change.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final
from urllib.parse import unquote

from scanflow.errors import ScanflowError
from scanflow.wire import Desired, InstanceSpec
from scanflow_serving import documents, seldon
from scanflow_serving.calls import LARGE, Call, InferCall, OipCall, SeldonCall, with_headers
from scanflow_serving.engine import Engine
from scanflow_serving.graph import Graph
from scanflow_serving.messages import InferRequest, InferResponse, Reply, Request, Response
from scanflow_serving.meters import Meters
from scanflow_serving.problems import Problem, not_found
from scanflow_serving.recorder import Recorder
from scanflow_serving.revisions import Chooser, Loaded, Revisions
from scanflow_serving.shadows import Shadows
from scanflow_serving.watch import Watch

__all__ = ["Application"]

_MODELS: Final = "/v2/models/"
_LOADING_SWITCH_S: Final = 0.0002
"""While a model is loaded its thread gives way to requests this soon; Python's own default is 5 ms."""

_log = logging.getLogger(__name__)
Handler = Callable[[Request, Reply], None]


class Target:
    """A name that requests are sent to: the whole graph, or one node; with or without a version."""

    __slots__ = ("chooser", "name", "node")

    def __init__(self, name: str, node: str | None, chooser: Chooser[Loaded]) -> None:
        self.name = name
        self.node = node
        self.chooser = chooser

    def graph(self, loaded: Loaded) -> Graph:
        """Return what a request goes through."""
        return loaded.graph if self.node is None else loaded.alone[self.node]

    def version(self, loaded: Loaded) -> str:
        """Return the version that answers: a registered model's own, else the revision."""
        return (loaded.components[self.node].version if self.node else "") or loaded.id


class Application:
    """One instance: what it serves, and to whom."""

    def __init__(
        self,
        spec: InstanceSpec,
        *,
        loop: asyncio.AbstractEventLoop,
        on_unhealthy: Callable[[], None] | None = None,
    ) -> None:
        """``on_unhealthy`` is called when too many threads hang and the process should be replaced."""
        limits = spec.limits
        self._spec = spec
        self._loop = loop
        self._limits = limits
        self.meters = Meters(spec.metrics, spec.service)
        self.engine = Engine(
            loop,
            threads=limits.concurrency,
            queue=limits.queue,
            deadline_s=limits.deadline_s,
            on_unhealthy=on_unhealthy,
        )
        self.shadows = Shadows(loop, self.meters, deadline_s=limits.deadline_s)
        self.revisions = Revisions(
            loop,
            self.engine,
            self.shadows.engine,
            self.meters,
            service=spec.service,
            threads=documents.threads_of(spec),
            deadline_s=limits.deadline_s,
        )
        self.recorder = (
            Recorder(spec.recording, recorded=self.meters.recorded, dropped=self.meters.dropped)
            if spec.recording is not None and spec.recording.fraction > 0
            else None
        )
        self._instance = ("x-scanflow-instance", spec.instance)
        self._headers: dict[str, tuple[tuple[str, str], ...]] = {"": (self._instance,)}
        self._nobody = self.meters.revision("")
        self._watch = Watch(loop, self.engine, self.meters)
        self._targets: dict[tuple[str, str], Target] = {}
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
        """Whether requests can be answered, and should be sent here."""
        serving = self.revisions.chooser is not None
        return serving and not (self._closed or self.draining or self.engine.unhealthy or self._watch.unwell)

    def live(self) -> bool:
        """Whether the process is of use."""
        return not (self._closed or self.engine.unhealthy)

    def state(self) -> dict[str, Any]:
        """Return how the instance is, for its supervisor."""
        self._watch.publish()
        unwell = [*self._watch.unwell.values()]
        return {
            "generation": self.revisions.generation,
            "revisions": documents.revisions([*self.revisions.loaded.values(), *self.revisions.retiring]),
            "in_flight": self.engine.in_flight,
            "queue": self.engine.waiting,
            "ready": self.ready(),
            "unhealthy": self.engine.unhealthy,
            "unwell": unwell[0] if unwell else "",
            **documents.this_process(),
        }

    async def apply(self, desired: Desired) -> None:
        """Load and warm what is new, switch to it, and unload the rest; what fails changes nothing.

        Raises:
            ScanflowError: what failed, and why.
        """
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
            self._watch.look_after(self.revisions.loaded.values())
            documents.pin_workers(self._spec, self.engine)

    async def close(self) -> None:
        """Stop the workers, and write what is still to be recorded."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        await self.engine.close()
        await self.shadows.engine.close()
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)
        self.meters.close()

    # -- requests

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer a request, now or later, exactly once. Never raises."""
        try:
            methods = self._routes.get(request.path)
            handler = methods.get(request.method) if methods is not None else None
            if handler is None:
                handler = self._search(request)
            handler(request, reply)
        except Problem as problem:
            self._refuse(problem, reply)
        except Exception as error:  # noqa: BLE001 - the loop's edge: whatever is wrong here, the caller gets an answer
            self._refuse(_defect(error), reply)

    async def infer(self, model: str, version: str, request: InferRequest, deadline_s: float) -> InferResponse:
        """Answer an inference that came by another way than HTTP.

        Raises:
            Problem: it cannot be answered.
        """
        target = self._targets.get((model, version))
        if target is None:
            raise self._unknown(model, version)
        self._admit()
        answered: asyncio.Future[InferResponse] = self._loop.create_future()

        def reply(result: Any) -> None:
            if answered.done():  # the caller has gone
                return
            if isinstance(result, Problem):
                answered.set_exception(result)
            else:
                answered.set_result(result)

        loaded = target.chooser.pick()
        graph, label = target.graph(loaded), target.version(loaded)
        call = InferCall(self, loaded, graph, request, reply, label=target.name, version=label, infer=request)
        self._begin(call, target, deadline_s, unread=False)
        return await answered

    def retain(self, call: Call) -> None:
        """Keep what was sent, if it is to be recorded or shown to a shadow; in any thread."""
        call.recorded = self.recorder is not None and self.recorder.wants(call.sent())
        if call.recorded or call.shadowed:
            call.keep_inputs()

    def finished(self, call: Call, result: Any, error: BaseException | None) -> None:
        """Give out an answer, and count it."""
        status = 200
        if error is not None:
            problem = error if isinstance(error, Problem) else _defect(error)
            status, result = problem.status, call.failure(problem)
        loaded = call.loaded
        try:
            call.reply(result)
        finally:
            self.revisions.left(loaded)
            loaded.answered += 1
            loaded.meter.answered(status, monotonic() - call.began)
            loaded.count(call.walk)
        if call.walk.metrics:
            self.meters.custom(loaded.id, call.walk.metrics)
        if status == 200 and call.inputs is not None:
            if call.recorded and self.recorder is not None:
                self.recorder.keep(loaded.id, call.inputs, call.outputs())
            if call.shadowed:
                self.shadows.show(call, self.revisions)

    def _infer(self, target: Target, request: Request, reply: Reply) -> None:
        self._admit()
        loaded = target.chooser.pick()
        call = OipCall(
            self,
            loaded,
            target.graph(loaded),
            request,
            reply,
            label=target.name,
            version=target.version(loaded),
            headers=self._headers[loaded.id],
            allow_nan=self._limits.allow_nan,
        )
        self._begin(call, target, self._limits.deadline_s, unread=len(request.body) > LARGE)

    def _predict(self, target: Target, request: Request, reply: Reply) -> None:
        self._admit()
        loaded = target.chooser.pick()
        headers, allow_nan = self._headers[loaded.id], self._limits.allow_nan
        call = SeldonCall(self, loaded, loaded.graph, request, reply, headers=headers, allow_nan=allow_nan)
        self._begin(call, target, self._limits.deadline_s, unread=len(request.body) > LARGE)

    def _admit(self) -> None:
        try:
            self.engine.admit()
        except Problem as problem:
            self.meters.refused("queue" if problem.status == 429 else "draining")
            raise

    def _begin(self, call: Call, target: Target, allowed_s: float, *, unread: bool) -> None:
        """Read a request, unless it is so large that a worker does, and let the engine have it."""
        call.shadowed = target.node is None and bool(self.revisions.shadows)
        call.unread = unread
        if not unread:
            try:
                call.read()
            except Problem as problem:
                call.loaded.meter.answered(problem.status, monotonic() - call.began)
                call.reply(call.failure(problem))
                return
            if self.recorder is not None or call.shadowed:
                self.retain(call)
            asked_s = call.timeout_s
            if asked_s is not None and asked_s < allowed_s:
                allowed_s = asked_s
        call.start(allowed_s)

    def _refuse(self, problem: Problem, reply: Reply) -> None:
        self._nobody.answered(problem.status, 0.0)
        reply(with_headers(problem, (self._instance,)))

    # -- the table

    def _build_routes(self) -> None:
        """Make the table of paths anew, from what is loaded."""
        table: dict[str, dict[str, Handler]] = {}

        def get(path: str, handler: Handler) -> None:
            table.setdefault(path, {}).update({"GET": handler, "HEAD": handler})

        def post(path: str, handler: Handler) -> None:
            table.setdefault(path, {})["POST"] = handler

        self._headers = {
            one.id: (self._instance, ("x-scanflow-revision", one.id)) for one in self.revisions.loaded.values()
        }
        get("/", self._about)
        get("/v2", lambda _request, reply: reply(documents.as_json(documents.server())))
        for path in ("/v2/health/live", "/healthz"):
            get(path, lambda _request, reply: reply(_state("live", self.live())))
        for path in ("/v2/health/ready", "/readyz"):
            get(path, lambda _request, reply: reply(_state("ready", self.ready())))
        get("/metrics", self._metrics)
        post("/v2/repository/index", self._index)
        self._targets = self._find_targets()
        for (name, version), target in self._targets.items():
            path = f"{_MODELS}{name}" + (f"/versions/{version}" if version else "")
            get(path, partial(self._metadata, target))
            get(f"{path}/ready", partial(self._model_ready, target))
            post(f"{path}/infer", partial(self._infer, target))
        whole = self._targets.get((self._spec.service, ""))
        post("/api/v1.0/predictions", partial(self._predict, whole) if whole else _not_ready)
        post("/api/v1.0/feedback", partial(self._feedback, whole) if whole else _not_ready)
        self._routes = table

    def _find_targets(self) -> dict[tuple[str, str], Target]:
        """Return what can be asked, by name and version; the version empty: by weight."""
        chooser = self.revisions.chooser
        if chooser is None:
            return {}
        found: dict[tuple[str, str], Target] = {}
        serving = [one for one in self.revisions.loaded.values() if not one.shadow]
        for name in (self._spec.service, *self._spec.aliases):
            found[name, ""] = Target(name, None, chooser)
            for one in serving:
                found[name, one.id] = Target(name, None, Chooser([one]))
        whole = {name for name, _ in found}
        for node in {node: None for one in serving for node in one.components if node not in whole}:
            having = [one for one in serving if node in one.components]
            before = self._targets.get((node, ""))
            found[node, ""] = Target(node, node, Chooser(having, before.chooser if before else None))
            versions: dict[str, list[Loaded]] = {}
            for one in having:
                versions.setdefault(found[node, ""].version(one), []).append(one)
            for version, those in versions.items():
                found[node, version] = Target(node, node, Chooser(those))
        return found

    def _versions(self, name: str) -> list[str]:
        return [version for known, version in self._targets if known == name and version]

    def _search(self, request: Request) -> Handler:
        """Return who answers a request that the table does not have as it is.

        Raises:
            Problem: 404 or 405, with what there is.
        """
        path = unquote(request.path).rstrip("/") or "/"
        methods = self._routes.get(path)
        if methods is not None:
            if request.method in methods:
                return methods[request.method]
            allowed = ", ".join(methods)
            raise Problem(
                405, f"{request.method[:20]} is not for {path[:200]}: use {allowed}.", headers=(("allow", allowed),)
            )
        if path.startswith(_MODELS):
            name, _, rest = path.removeprefix(_MODELS).partition("/")
            version = rest.removeprefix("versions/").partition("/")[0] if rest.startswith("versions/") else ""
            if (name, version) not in self._targets:
                raise self._unknown(name, version)
        raise not_found("path", path, self._routes)

    def _unknown(self, name: str, version: str) -> Problem:
        if not self._targets:
            return _no_model_yet()
        if (name, "") not in self._targets:
            return not_found("model", name, [known for known, version in self._targets if not version])
        return Problem(
            404, f"The model {name!r} has no version {version[:80]!r}. Known: {', '.join(self._versions(name))}."
        )

    # -- the small answers

    def _about(self, _request: Request, reply: Reply) -> None:
        names = [name for name, version in self._targets if not version]
        reply(documents.as_json(documents.about(self._spec, names), (self._instance,)))

    def _metadata(self, target: Target, _request: Request, reply: Reply) -> None:
        loaded = max(target.chooser.choices, key=lambda one: one.weight)
        document = documents.model(target.name, target.graph(loaded), self._versions(target.name))
        reply(documents.as_json(document, self._headers[loaded.id]))

    def _model_ready(self, target: Target, _request: Request, reply: Reply) -> None:
        unwell = self._watch.unwell.get(target.node) if target.node else next(iter(self._watch.unwell.values()), None)
        if unwell:
            raise Problem(503, unwell, retry_after_s=1.0)
        reply(_state("ready", self.ready() or target.node is not None))

    def _index(self, _request: Request, reply: Reply) -> None:
        names = [name for name, version in self._targets if not version]
        models = {name: self._versions(name) for name in names}
        reply(documents.as_json(documents.index(models, ready=self.ready())))

    def _metrics(self, _request: Request, reply: Reply) -> None:
        """Merge the figures of all instances, aside: there may be many files."""
        self._watch.publish()

        def told(rendered: asyncio.Future[tuple[bytes, str]]) -> None:
            error = rendered.exception()
            if error is not None:
                reply(_defect(error).response())
                return
            body, content_type = rendered.result()
            reply(Response(200, body, content_type))

        self._loop.run_in_executor(None, self.meters.render).add_done_callback(told)

    def _feedback(self, target: Target, request: Request, reply: Reply) -> None:
        self._admit()
        feedback = seldon.decode_feedback(request.body, allow_nan=self._limits.allow_nan)
        said = self.revisions.loaded.get(str(feedback.tags.get(seldon.REVISION_TAG, "")))
        loaded = said if said is not None and not said.shadow else target.chooser.pick()
        loaded.in_flight += 1

        def finish(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(self._limits.deadline_s)

        def done(told: Any, error: BaseException | None) -> None:
            self.revisions.left(loaded)
            if error is None:
                reply(documents.as_json({"meta": {"tags": {"told": told}}}, self._headers.get(loaded.id, ())))
            else:
                reply(with_headers(error if isinstance(error, Problem) else _defect(error), (self._instance,)))

        work = partial(seldon.give_feedback, loaded.graph, feedback, finish)
        self.engine.start(work, done, allowed_s=self._limits.deadline_s, holder=request)


def _state(word: str, well: bool) -> Response:
    return documents.as_json({word: well}, status=200 if well else 503)


def _no_model_yet() -> Problem:
    return Problem(503, "No model is loaded yet. Try again in a moment.", retry_after_s=1.0)


def _not_ready(_request: Request, _reply: Reply) -> None:
    raise _no_model_yet()


def _defect(error: BaseException) -> Problem:
    """Return the problem of an error that nobody foresaw."""
    _log.error("a request could not be answered", exc_info=error)
    return Problem(500, f"The answer could not be made: {type(error).__name__}: {error}")
