"""What a sensor may ask for while it fires: whose agent it is, its parameters, the tracker, the services, the time.

A sensor or actuator gets it as its parameter named ``context``; :func:`current` finds it from anywhere below.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from scanflow.agent.actions import Act, Call, Doing
from scanflow.agent.records import JSON, Intent
from scanflow.errors import UsageError

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.backends.service_records import ServiceRecord
    from scanflow.knowledge.port import KnowledgeBase


class Services(Protocol):
    def services(self) -> list[ServiceRecord]:
        """Return what is deployed, by name."""
        ...

    def service(self, name: str) -> ServiceRecord:
        """Return one deployed service; ``NotFoundError``: there is none of that name."""
        ...


class Caller(Protocol):
    """Carries out what a sensor or actuator wants done; both return when it is accepted, not when it is over."""

    async def call(self, call: Call) -> JSON:
        """Call a sensor of an agent, and return its answer."""
        ...

    async def act(self, act: Act) -> JSON:
        """Hand a primitive to the arbiter, and return its decision."""
        ...


@dataclass(frozen=True, kw_only=True)
class Context:
    """What surrounds one firing."""

    app: str
    team: str
    agent: str
    clock: Callable[[], float]
    """Seconds since the epoch."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The agent's, and over those the sensor's own."""

    tracker: KnowledgeBase | None = None
    """The knowledge base. None: the application has no tracker."""

    services: Services | None = None
    caller: Caller | None = None
    application: Application | None = None
    wanted: Callable[[], Sequence[Intent]] = tuple
    """What the sensor's strategies wanted that the server had not answered when this firing began, the oldest first.
    The server's own list has all the rest: what is in neither is not wanted."""

    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the agent, which a plain function that runs in a thread hands its calls to."""

    async def perform(self, doing: Doing) -> JSON:
        """Carry out a call or a primitive, from inside an async sensor or actuator."""
        if self.caller is None:
            raise UsageError(
                f"{doing} cannot be done here: this context has no caller. Run the agent (scanflow up), or give "
                "Context(caller=...) in a test."
            )
        return await (self.caller.call(doing) if isinstance(doing, Call) else self.caller.act(doing))

    def perform_soon(self, doing: Doing, *, patience_s: float = 60.0) -> JSON:
        """Carry it out from inside a plain function that runs in a thread, waiting for at most ``patience_s``."""
        if self.loop is None:
            raise UsageError(
                f"{doing} cannot be done here: this context has no event loop. Run the agent (scanflow up), or write "
                "'async def' and 'await'."
            )
        return asyncio.run_coroutine_threadsafe(self.perform(doing), self.loop).result(patience_s)


_current: ContextVar[Context | None] = ContextVar("scanflow_context", default=None)


@contextmanager
def firing(context: Context) -> Iterator[Context]:
    """Let ``context`` be the current one inside, for this task and what it starts."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def current_or_none() -> Context | None:
    return _current.get()


def current() -> Context:
    """Return the context of the firing that this is called in; ``UsageError`` outside of one."""
    found = _current.get()
    if found is None:
        raise UsageError(
            "There is no context here: a sensor has one only while it fires. In a test, wrap the call in "
            "'with firing(Context(...)):'."
        )
    return found
