"""Sensors as their authors wrote them, made ready to be run by the host: given what they ask for, in the right place.

Async functions run on the loop, plain ones in a thread of the host's pool; looking through the knowledge base happens
in a thread too. Each firing looks at the runs that ended since the last one that succeeded looked.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from scanflow.agent.actions import Act, Call
from scanflow.agent.context import Context, Services
from scanflow.agent.decide import build_intent
from scanflow.agent.records import JSON, Event, Intent
from scanflow.agent.sensors.firing import Firing as Given
from scanflow.agent.sensors.firing import fire, has_parameter
from scanflow.agent.sensors.runs import Run, find_runs
from scanflow.app.agents import SensorFunction
from scanflow.app.application import Application
from scanflow.errors import MissingExtraError
from scanflow_agents.host.control_loop import HostedSensor, SensorResult
from scanflow_agents.host.outbox import Delivery, Outbox
from scanflow_agents.host.sensor_state import FiringRequest, SensorState
from scanflow_agents.host.thread_pool import ThreadPool

if TYPE_CHECKING:
    from scanflow.knowledge.port import KnowledgeBase


SETTLED_S = 1.0
"""Runs are looked at this long after they ended: one that is being written as it ends is not yet to be found."""

ACCEPTED_S = 10.0
"""How long an actuator waits for its call to be accepted; after that it is delivered while the agent goes on."""


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
        return await self._deliver(call.replace(key=call.key or self._key()))

    async def act(self, act: Act) -> JSON:
        intent = build_intent(
            act,
            app=self.environment.application.name,
            team=self.environment.application.team,
            agent=self.environment.agent,
            strategy=self.sensor,
            rule="asked for by the sensor itself",
            key=self._key(),
            at=self.environment.clock(),
        )
        return await self._deliver(intent)

    async def _deliver(self, want: Intent | Call) -> JSON:
        delivery = Delivery.of(self.sensor, want, at=self.environment.clock())
        answer: JSON = await self.environment.outbox().deliver(delivery, patience_s=ACCEPTED_S)
        return answer

    def _key(self) -> str:
        self.count += 1
        return f"{self.environment.agent}/{self.sensor}/{self.cause}{'' if self.count == 1 else f'/{self.count}'}"


def hosted_sensor(
    sensor: SensorFunction[..., Any],
    environment: SensorEnvironment,
    *,
    strategies: frozenset[str] = frozenset(),
    **limits: Any,
) -> HostedSensor:
    """``limits`` are fields of :class:`HostedSensor`, where the sensor's author has said nothing else."""
    ready = _ready(sensor, environment.workers)
    looks = has_parameter(sensor, "runs")

    async def run(firing: FiringRequest, sensor_state: SensorState) -> SensorResult:
        looked = environment.clock() - SETTLED_S if looks else None
        runs: list[Run] = []
        if looked is not None:
            if environment.tracker is None:
                raise MissingExtraError(
                    f"The sensor {sensor.name!r} looks at tracked runs, and MLflow is not installed here. Install it: "
                    "pip install 'scanflow[local]'"
                )
            look = partial(_runs, environment.tracker, environment.application, sensor, sensor_state.looked, looked)
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
            wanted=partial(_intents, environment.outbox().waiting(strategies)),
            loop=asyncio.get_running_loop(),
        )
        event = None if firing.event is None else Event.model_validate(firing.event)
        given = Given(context=context, runs=runs, event=event, args=firing.args, kwargs=firing.kwargs)
        return SensorResult(value=await fire(ready, given), looked=looked)

    said = {name: getattr(sensor.sensor, name) for name in ("limit_s", "grace_s", "misfire")}
    own = {name: value for name, value in said.items() if value is not None}
    fields: dict[str, Any] = {**limits, **own, "strategies": strategies}
    return HostedSensor(name=sensor.name, trigger=sensor.trigger, run=run, **fields)


def _intents(deliveries: Sequence[Delivery]) -> list[Intent]:
    return [Intent.model_validate_json(delivery.body) for delivery in deliveries if delivery.kind == "intent"]


def _runs(
    tracker: KnowledgeBase, app: Application, sensor: SensorFunction[..., Any], after: float | None, until: float
) -> list[Run]:
    return find_runs(
        tracker,
        app.name,
        app.team,
        nodes=sensor.sensor.nodes,
        filter_string=sensor.sensor.filter_string,
        workflows=app.workflows,
        after=after,
        until=until,
    )


def _ready(sensor: SensorFunction[..., Any], workers: ThreadPool) -> SensorFunction[..., Any]:
    """Return the sensor with a function to be awaited, a plain one called in a thread of ours. Its signature, which
    each firing looks at, is worked out once."""
    written: Any = sensor.function

    @wraps(written)
    async def in_thread(*args: Any, **kwargs: Any) -> Any:
        value = await workers.run(partial(written, *args, **kwargs))
        return await value if inspect.isawaitable(value) else value

    @wraps(written)
    async def on_loop(*args: Any, **kwargs: Any) -> Any:
        return await written(*args, **kwargs)

    ready: Any = on_loop if inspect.iscoroutinefunction(written) else in_thread
    ready.__signature__ = inspect.signature(written)
    return replace(sensor, function=ready)
