"""The context of a firing: the agent, its parameters, the tracker, the services and the clock.

A sensor or actuator gets it as its parameter ``context``; :func:`current` returns it from anywhere in the call stack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from scanflow.agent.actions import Act, Call, Doing
from scanflow.agent.agent_records import JSON, Intent
from scanflow.errors import UsageError

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.backends.service_records import ServiceRecord
    from scanflow.knowledge.knowledge_port import KnowledgeBase


class Services(Protocol):
    def services(self) -> list[ServiceRecord]:
        """Return the deployed services, sorted by name."""
        ...

    def service(self, name: str) -> ServiceRecord:
        """Return one deployed service; raise ``NotFoundError`` if there is none of that name."""
        ...


class Caller(Protocol):
    """Carries out calls and primitives for a sensor or actuator. Both methods return on acceptance."""

    async def call(self, call: Call) -> JSON:
        """Call a sensor of an agent and return its answer."""
        ...

    async def act(self, act: Act) -> JSON:
        """Submit a primitive to the arbiter and return its decision."""
        ...


@dataclass(frozen=True, kw_only=True)
class Context:
    """The context of one firing."""

    app: str
    """The name of the application."""

    team: str
    """The team of the application."""

    agent: str
    """The name of the agent."""

    clock: Callable[[], float]
    """Seconds since the epoch."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The agent's parameters, overridden by the sensor's own."""

    tracker: KnowledgeBase | None = None
    """The knowledge base. None: the application has no tracker."""

    services: Services | None = None
    """The services of the application. None: the agent cannot reach any."""

    caller: Caller | None = None
    """Carries out calls and primitives. None: in tests, or where nothing may be done."""

    application: Application | None = None
    """The application as it is stored. None: it was not handed in."""

    wanted: Callable[[], Sequence[Intent]] = tuple
    """Intents of the sensor's strategies that the server had not answered when this firing began, the oldest first.
    The server lists all others."""

    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the agent, to which plain functions in threads submit their calls."""

    async def perform(self, doing: Doing) -> JSON:
        """Carry out a call or a primitive from an async sensor or actuator."""
        if self.caller is None:
            raise UsageError(
                f"{doing} cannot be done here: this context has no caller. Run the agent (scanflow up), or give "
                "Context(caller=...) in a test."
            )
        return await (self.caller.call(doing) if isinstance(doing, Call) else self.caller.act(doing))

    def perform_soon(self, doing: Doing) -> JSON:
        """Carry out a call or a primitive from a plain function in a thread, waiting at most a minute."""
        if self.loop is None:
            raise UsageError(
                f"{doing} cannot be done here: this context has no event loop. Run the agent (scanflow up), or write "
                "'async def' and 'await'."
            )
        return asyncio.run_coroutine_threadsafe(self.perform(doing), self.loop).result(timeout=60.0)


_current: ContextVar[Context | None] = ContextVar("scanflow_context", default=None)


@contextmanager
def use_context(context: Context) -> Iterator[Context]:
    """Make ``context`` the current context of this task and of the tasks it starts."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def current_or_none() -> Context | None:
    return _current.get()


def current() -> Context:
    """Return the context of the current firing; raise ``UsageError`` outside of one."""
    context = _current.get()
    if context is None:
        raise UsageError(
            "There is no context here: a sensor has one only while it fires. In a test, wrap the call in "
            "'with use_context(Context(...)):', from scanflow.agent."
        )
    return context
