"""The route class of the API: the caller's role is checked before a body is read, and its size before it is parsed.

Bodies are parsed and validated in a thread, as they would hold the event loop. What is mounted beside the API, such as
a proxy that streams, has no limit; :class:`~scanflow.http.security.RequestGuard` authenticates its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool

from scanflow.errors import InvalidError
from scanflow.http.body_limits import MAX_BODY_BYTES, MAX_DEFINITION_BYTES, check_declared_length, read_body
from scanflow_server.auth import Needs

_MAX_PARSED_ON_LOOP: Final = 16 * 2**10
"""Larger bodies are parsed in a thread, in bytes: this many take 4 ms at worst, and a thread 0.1 ms."""

_MAX_ERRORS: Final = 1000
"""More errors of one body are counted, not described: a description takes 3 µs that nothing can interrupt."""


class BodyLimit:
    """The dependency that declares the largest body of a route. Routes without one have a limit of 1 MiB."""

    def __init__(self, max_bytes: int, advice: str) -> None:
        self.max_bytes, self.advice = max_bytes, advice

    async def __call__(self) -> None:
        """Do nothing: :class:`ApiRoute` enforces the limit, before dependencies are called."""


DEFAULT_LIMIT: Final = BodyLimit(MAX_BODY_BYTES, "Send less, or split it into several requests.")

DEFINITION: Any = Depends(
    BodyLimit(
        MAX_DEFINITION_BYTES,
        "Large values of a step belong in a file: give the step the file's path as a parameter, and load it there.",
    )
)
"""Declares the limit of routes that take an application or a function."""


class ApiRoute(APIRoute):
    @property
    def body_limit(self) -> BodyLimit:
        calls = [dependency.call for dependency in self.dependant.dependencies]
        return next((call for call in calls if isinstance(call, BodyLimit)), DEFAULT_LIMIT)

    @property
    def needs(self) -> list[Needs]:
        """The permissions that the route declares."""
        calls = [dependency.call for dependency in self.dependant.dependencies]
        return [call for call in calls if isinstance(call, Needs)]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        needs, limit, adapter = self.needs, self.body_limit, self._build_adapter()

        async def check_and_handle(request: Request) -> Response:
            for permission in needs:
                await permission(request)
            sizes: Any = {"max_bytes": limit.max_bytes, "advice": limit.advice}
            check_declared_length(request.scope["headers"], **sizes)
            if adapter is None:
                return await handle(request)
            body = await read_body(request.receive, **sizes)
            if len(body) > _MAX_PARSED_ON_LOOP:
                value = await run_in_threadpool(parse_body, body, adapter)
            else:
                value = parse_body(body, adapter) if body else None
            request.state.audited = describe_body(value)
            return await handle(_ParsedRequest(request, body, value))

        return check_and_handle

    def _build_adapter(self) -> TypeAdapter[Any] | None:
        """Return what validates the body; None: the route takes none."""
        if self.body_field is None:
            return None
        field = self.body_field.field_info
        annotation: Any = Annotated[field.annotation, field]
        return TypeAdapter(annotation)


def describe_body(value: Any) -> str:
    """Return what a body is about, for the audit log, where its route's path does not say it."""
    application = getattr(value, "application", None)
    if not isinstance(application, dict):
        return ""
    workflow = getattr(value, "workflow", None)
    return f"{application.get('name')!s:.63}" + (f":{workflow!s:.63}" if workflow else "")


class _ParsedRequest(Request):
    """A request whose body was read and validated. FastAPI validates values of a model's class by their class alone."""

    def __init__(self, request: Request, body: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._read_bytes, self._value = body, value

    async def body(self) -> bytes:
        return self._read_bytes

    async def json(self) -> Any:
        return self._value


def parse_body(body: bytes, adapter: TypeAdapter[Any]) -> Any:
    """Parse and validate a body.

    Raises:
        InvalidError: it is not JSON, or is nested too deeply, or has too many errors to describe.
        RequestValidationError: describes the invalid values.
    """
    try:
        value = from_json(body)
    except ValueError as error:
        raise InvalidError(f"The body is not valid JSON: {error}. Correct it there.") from None
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        if (count := error.error_count()) > _MAX_ERRORS:
            raise InvalidError(
                f"The body has {count:,} invalid or unknown values. See the route's description: /api/v1/openapi.json"
            ) from None
        raise RequestValidationError(error.errors(include_url=False, include_input=False)) from error
