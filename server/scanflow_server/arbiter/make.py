"""The engine of a server, made from its parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from sqlalchemy import select

from scanflow.agent.primitive_model import PrimitiveResult
from scanflow.agent.records import Intent, PrimitiveCall
from scanflow_server.arbiter.engine import ArbiterEngine
from scanflow_server.arbiter.look import measured, observed
from scanflow_server.commands import QueuedDeployer, carry_out
from scanflow_server.context import ServerContext
from scanflow_server.primitives.server_state import ApplicationStore, RequestedRuns
from scanflow_server.primitives.table import do
from scanflow_server.store import agents
from scanflow_server.store.tables import events

LIVES_S = 20.0
"""For how long after its last word an agent is held to be there, in seconds; it says that it is every 5."""


def make_engine(context: ServerContext) -> ArbiterEngine:
    """Return the engine of a server. Start it when the store is migrated."""
    applications, runs = ApplicationStore(context), RequestedRuns(context)

    def perform(
        intent: Intent,
        call: PrimitiveCall,
        key: str,
        noted: PrimitiveCall | None,
        note: Callable[[PrimitiveCall], None],
    ) -> PrimitiveResult:
        if intent.source == "person":
            return carry_out(context, intent.id)
        return do(
            QueuedDeployer(context, key),
            applications,
            call,
            app=intent.app,
            team=intent.team,
            key=key,
            runs=runs,
            noted=noted,
            note=note,
        )

    def measure(app: str, metric: str) -> float | None:
        found = measured(context.deployer, metric)
        return posted(context, app, metric) if found is None else found

    def alive(app: str, agent: str) -> bool:
        with context.store.read() as connection:
            found = agents.get(connection, app, agent)
        return found is not None and found.seen is not None and context.clock() - found.seen < LIVES_S

    look = partial(observed, context.deployer, applications)
    return ArbiterEngine(context.store, perform, look=look, measure=measure, alive=alive, clock=context.clock)


def posted(context: ServerContext, app: str, metric: str) -> float | None:
    """Return a metric's newest value that was posted for an application, or for no certain one: that is an event of
    type ``metric`` about it, with ``value``. What is no number, or none that is finite, is not known."""
    mine = events.c.app.in_([app, ""])
    query = select(events.c.data).where(events.c.type == "metric", events.c.subject == metric, mine)
    with context.store.read() as connection:
        data = connection.execute(query.order_by(events.c.id.desc()).limit(1)).scalar()
    value = data.get("value") if isinstance(data, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's integers have no end
        return None
    return number if math.isfinite(number) else None
