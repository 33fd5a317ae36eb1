"""Adapt sensors for the host: pass the parameters that they declare, and run them on the loop or in a thread.

Async functions run on the loop, plain ones in a thread of the host's pool, as do searches of the knowledge base. Each
firing gets the runs that ended since the search of the last successful one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from scanflow.agent.actions import Act, Call
from scanflow.agent.agent_records import JSON, Event, Intent
from scanflow.agent.context import Context, Services
from scanflow.agent.decide import build_intent
from scanflow.agent.sensors.firing import Firing, fire, has_parameter
from scanflow.agent.sensors.sensed_runs import Run, list_runs
from scanflow.app.agent import SensorFunction
from scanflow.app.application import Application
from scanflow.errors import MissingExtraError
from scanflow.installation import explain_install
from scanflow_agents.host.control_loop import HostedSensor, SensorResult
from scanflow_agents.host.outbox import Delivery, Outbox
from scanflow_agents.host.sensor_state import FiringRequest, SensorState
from scanflow_agents.host.thread_pool import ThreadPool

if TYPE_CHECKING:
    from scanflow.knowledge.knowledge_port import KnowledgeBase


SETTLE_S = 1.0
"""The delay after which ended runs are searched: one that is still being written cannot be found yet."""

ACCEPT_TIMEOUT_S = 10.0
"""The timeout of an actuator's call until its acceptance; after that it is delivered in the background."""


@dataclass(frozen=True, kw_only=True)
class SensorEnvironment:
    application: Application
    agent: str
    clock: Callable[[], float]
    workers: ThreadPool
    outbox: Callable[[], Outbox]
    tracker: KnowledgeBase | None = None

    services: Services | None = None


@dataclass(kw_only=True)
class _Caller:
    environment: SensorEnvironment
    sensor: str
    cause: str
    count: int = field(default=0, init=False)

    async def call(self, call: Call) -> JSON:
        return await self._deliver(call.replace(key=call.key or self._build_key()))

    async def act(self, act: Act) -> JSON:
        intent = build_intent(
            act,
            app=self.environment.application.name,
            team=self.environment.application.team,
            agent=self.environment.agent,
            strategy=self.sensor,
            rule="requested by the sensor itself",
            key=self._build_key(),
            at=self.environment.clock(),
        )
        return await self._deliver(intent)

    async def _deliver(self, action: Intent | Call) -> JSON:
        delivery = Delivery.build(self.sensor, action, at=self.environment.clock())
        answer: JSON = await self.environment.outbox().deliver(delivery, patience_s=ACCEPT_TIMEOUT_S)
        return answer

    def _build_key(self) -> str:
        self.count += 1
        return f"{self.environment.agent}/{self.sensor}/{self.cause}{'' if self.count == 1 else f'/{self.count}'}"


def build_hosted_sensor(
    sensor: SensorFunction[..., Any],
    environment: SensorEnvironment,
    *,
    strategies: frozenset[str] = frozenset(),
    **limits: Any,
) -> HostedSensor:
    """Build a hosted sensor; ``limits`` are defaults of :class:`HostedSensor`'s fields."""
    ready = _prepare(sensor, environment.workers)
    looks = has_parameter(sensor, "runs")

    async def run(firing: FiringRequest, sensor_state: SensorState) -> SensorResult:
        looked = environment.clock() - SETTLE_S if looks else None
        runs: list[Run] = []
        if looked is not None:
            if environment.tracker is None:
                raise MissingExtraError(
                    f"The sensor {sensor.name!r} reads tracked runs, but MLflow is not installed here. "
                    + explain_install("local")
                )
            tracker, app = environment.tracker, environment.application
            look = partial(_list_runs, tracker, app, sensor, sensor_state.looked, looked)
            runs = await environment.workers.run(look)
        context = Context(
            app=environment.application.name,
            team=environment.application.team,
            agent=environment.agent,
            clock=environment.clock,
            parameters=sensor.sensor.parameters,
            tracker=environment.tracker,
            services=environment.services,
            caller=_Caller(environment=environment, sensor=sensor.name, cause=firing.cause),
            application=environment.application,
            wanted=partial(_parse_intents, environment.outbox().list_waiting(strategies)),
            loop=asyncio.get_running_loop(),
        )
        event = None if firing.event is None else Event.model_validate(firing.event)
        inputs = Firing(context=context, runs=runs, event=event, args=firing.args, kwargs=firing.kwargs)
        return SensorResult(value=await fire(ready, inputs), looked=looked)

    declared_limits = {name: getattr(sensor.sensor, name) for name in ("limit_s", "grace_s", "misfire")}
    overrides = {name: value for name, value in declared_limits.items() if value is not None}
    fields: dict[str, Any] = {**limits, **overrides, "strategies": strategies}
    return HostedSensor(name=sensor.name, trigger=sensor.trigger, run=run, **fields)


def _parse_intents(deliveries: Sequence[Delivery]) -> list[Intent]:
    return [Intent.model_validate_json(delivery.body) for delivery in deliveries if delivery.kind == "intent"]


def _list_runs(
    tracker: KnowledgeBase, app: Application, sensor: SensorFunction[..., Any], after: float | None, until: float
) -> list[Run]:
    return list_runs(
        tracker,
        app.name,
        app.team,
        nodes=sensor.sensor.nodes,
        filter_string=sensor.sensor.filter_string,
        workflows=app.workflows,
        after=after,
        until=until,
    )


def _prepare(sensor: SensorFunction[..., Any], workers: ThreadPool) -> SensorFunction[..., Any]:
    """Return the sensor with an async function, which calls a plain one in a thread of the pool. Its signature, which
    each firing reads, is computed once."""
    function: Any = sensor.function

    @wraps(function)
    async def in_thread(*args: Any, **kwargs: Any) -> Any:
        value = await workers.run(partial(function, *args, **kwargs))
        return await value if inspect.isawaitable(value) else value

    @wraps(function)
    async def on_loop(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    ready: Any = on_loop if inspect.iscoroutinefunction(function) else in_thread
    ready.__signature__ = inspect.signature(function)
    return replace(sensor, function=ready)
