"""The HTTP application: routes, problem documents, and the controllers in its lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from scanflow.errors import InternalError
from scanflow.http.security import RequestGuard
from scanflow_server.api_route import ApiRoute
from scanflow_server.arbiter.engine_assembly import build_engine
from scanflow_server.audit import AuditLog
from scanflow_server.auth import Callers
from scanflow_server.control.agent_controller import AgentsController
from scanflow_server.control.notifications import NotificationsController
from scanflow_server.control.retention import RetentionController
from scanflow_server.control.run_controller import RunsController
from scanflow_server.control.service_controller import ServicesController
from scanflow_server.controller_loop import Controller, Loop
from scanflow_server.dashboard.pages import Pages
from scanflow_server.metrics import Meters, RequestMetrics
from scanflow_server.mlflow_proxy import MlflowProxy
from scanflow_server.page_sessions import Sessions
from scanflow_server.request_problems import Problem, handle_problems
from scanflow_server.request_shares import SharedRequests
from scanflow_server.routes import (
    agent_routes,
    application_routes,
    audit_routes,
    event_routes,
    function_routes,
    intent_routes,
    label_routes,
    login_routes,
    run_routes,
    service_routes,
    system_routes,
    token_routes,
)
from scanflow_server.server_context import ServerContext
from scanflow_server.stream_limits import UnreadBodies

BASE = "/api/v1"
OPEN_PATHS = ("/healthz", "/readyz")
"""Paths that need no token: they show only that the server is there."""


def create_app(context: ServerContext, *, control: bool = True) -> FastAPI:
    engine = build_engine(context)
    controllers: list[Controller] = [
        RunsController(context),
        ServicesController(context, engine),
        AgentsController(context),
        RetentionController(context),
        NotificationsController(context),
    ]

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if not control:
            yield
            return
        loop = Loop(controllers, context.work_notifier)
        loop.start()
        engine.start()
        try:
            yield
        finally:
            context.shutdown.set()
            await run_in_threadpool(engine.stop)
            await run_in_threadpool(loop.stop)

    app = FastAPI(
        title="Scanflow",
        version="1",
        description="Runs, services, agents and their intents: the control plane of one or several teams.",
        openapi_url=f"{BASE}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        generate_unique_id_function=_make_operation_id,
    )
    app.state.context = context
    app.state.engine = engine
    app.state.meters = Meters()
    app.state.callers = Callers(context)
    handle_problems(app)
    app.include_router(system_routes.root)
    modules = (
        audit_routes,
        run_routes,
        function_routes,
        service_routes,
        application_routes,
        event_routes,
        agent_routes,
        intent_routes,
        label_routes,
        token_routes,
        login_routes,
    )
    for router in (system_routes.api, *(module.router for module in modules)):
        app.include_router(router, prefix=BASE)
    for router in (system_routes.root, system_routes.api, *(module.router for module in modules)):
        _check_permissions(router)
    app.add_middleware(SharedRequests, shares=context.requests)
    app.add_middleware(
        RequestGuard,
        hosts=context.settings.names,
        authenticate=app.state.callers.find_caller,
        open_paths=OPEN_PATHS,
        json_only=True,
    )
    app.state.sessions = sessions = Sessions(context, app.state.callers.find_holder)
    app.add_middleware(Pages, context=context, engine=engine, sessions=sessions)
    app.add_middleware(MlflowProxy, context=context, callers=app.state.callers.find_caller, sessions=sessions)
    app.add_middleware(UnreadBodies)
    app.add_middleware(AuditLog, context=context, meters=app.state.meters)
    app.add_middleware(RequestMetrics, meters=app.state.meters, prefix=BASE)
    _extend_openapi(app)
    return app


def _make_operation_id(route: APIRoute) -> str:
    module = route.endpoint.__module__.rpartition(".")[2]
    return f"{module}_{route.name}"


def _check_permissions(router: APIRouter) -> None:
    """Refuse a route that does not declare the permission it needs."""
    for route in router.routes:
        assert isinstance(route, ApiRoute), "A router of the API is made with route_class=ApiRoute."
        if len(route.needs) != (0 if route.path in OPEN_PATHS else 1):
            raise InternalError(
                f"The route {route.path!r} must declare one caller: a Reader, an Editor, ... of auth.py."
            )


def _extend_openapi(app: FastAPI) -> None:
    build_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = build_openapi()
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
            schemas["Problem"] = Problem.model_json_schema()
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this as the way to change it
