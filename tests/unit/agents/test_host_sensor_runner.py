"""Sensors as their authors write them, run by the host."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scanflow as sf
from scanflow.agent import Strategy, call
from scanflow.agent import primitives as do
from scanflow.agent.actuators.actuator import actuator
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.app.agent import SensorFunction
from scanflow.errors import InvalidError, MissingExtraError, UnavailableError
from scanflow.knowledge import MemoryKnowledge
from scanflow_agents.host.sensor_runner import SensorEnvironment, build_hosted_sensor
from scanflow_agents.host.sensor_state import FiringRequest, SensorState
from scanflow_agents.host.strategy_runner import Strategies
from scanflow_agents.host.thread_pool import ThreadPool
from tests.unit.agents.host_harness import START, Agent, FakeClock

APP = sf.Application(
    name="mnist",
    team="data",
    workflows=[sf.Workflow(name="inference", nodes=[sf.Executor(name="predictor", mainfile="predict.py")])],
    agents=[sf.Agent(name="tracker", modules=["tracker.py"])],
)


def made_environment(
    clock: FakeClock, agent: Agent | None = None, tracker: MemoryKnowledge | None = None
) -> SensorEnvironment:
    def outbox() -> Any:
        return SimpleNamespace(list_waiting=lambda queues: []) if agent is None else agent.outbox

    return SensorEnvironment(
        application=APP, agent="tracker", clock=clock, workers=ThreadPool(2), outbox=outbox, tracker=tracker
    )


async def fire_function(function: SensorFunction[..., Any], environment: SensorEnvironment, **options: Any) -> Any:
    ready = build_hosted_sensor(function, environment)
    sensor_state = SensorState(sensor=ready.name, trigger=ready.trigger)
    return (await ready.run(FiringRequest(cause="c", at=START, **options), sensor_state)).value


async def test_each_firing_looks_at_the_runs_since_the_last() -> None:
    @sensor(sf.on_call(), nodes=["predictor"], filter_string="metrics.n > 0")
    def count(runs: list[Any]) -> float:
        return float(sum(run.metrics["n"] for run in runs))

    clock, tracker = FakeClock(), MemoryKnowledge()
    ready = build_hosted_sensor(count, made_environment(clock, tracker=tracker))
    sensor_state = SensorState(sensor="count", trigger=sf.on_call())
    values = []
    for number in (1.0, 2.0, 0.0, 4.0):
        when = datetime.fromtimestamp(clock.now, UTC)
        tags = {"scanflow.step": "predictor"}
        tracker.log_run("mnist", "data", metrics={"n": number}, tags=tags, started_at=when, ended_at=when)
        clock.now += 10
        look = await ready.run(FiringRequest(cause="c", at=clock.now), sensor_state)
        sensor_state.looked = look.looked
        values.append(look.value)
    assert values == [1.0, 2.0, 0.0, 4.0]


async def test_a_sensor_that_looks_at_runs_without_a_tracker_says_what_is_missing() -> None:
    @sensor(sf.on_call())
    def count(runs: list[Any]) -> int:
        return len(runs)

    with pytest.raises(MissingExtraError, match="MLflow is not installed"):
        await fire_function(count, made_environment(FakeClock()))


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_actuator_in_a_sensor_is_delivered_under_the_firings_key(tmp_path: Path, is_async: bool) -> None:
    @actuator(path="/sensors/look", depender="checker")
    def call_checker(n: int) -> Any:
        return [n], {}

    @sensor(sf.on_call())
    async def on_loop() -> Any:
        return [await call_checker(1), await call_checker(2)]

    @sensor(sf.on_call())
    def in_thread() -> Any:
        return [call_checker(1), call_checker(2)]

    clock = FakeClock()
    async with Agent(tmp_path, clock) as agent:
        function = on_loop if is_async else in_thread
        answers = await fire_function(function, made_environment(clock, agent))
        assert answers == [{"verdict": "act"}] * 2
        assert agent.keys() == [f"tracker/{function.name}/c", f"tracker/{function.name}/c/2"]


@pytest.mark.parametrize("killed", [False, True], ids=["it goes on", "it is killed meanwhile"])
async def test_a_sensor_sees_what_its_strategies_want_until_it_is_answered(tmp_path: Path, killed: bool) -> None:
    seen: list[list[str]] = []

    @sensor(sf.on_call())
    async def look(context: Context) -> int:
        seen.append([f"{intent.strategy} {intent.key}" for intent in context.wanted()])
        return 1

    @sensor(sf.on_call())
    async def list_wanted_keys(context: Context) -> int:
        seen.append([intent.key for intent in context.wanted()])
        return 1

    retrain = Strategy(name="retrain", when=look, then=[do.run_workflow("training"), call("checker", "check")])
    decider = Strategies([retrain], app="mnist", team="data", parameters={})

    clock, lives = FakeClock(), list[Agent]()
    shared = replace(made_environment(clock), outbox=lambda: lives[-1].outbox)
    sensors = [
        build_hosted_sensor(look, shared, strategies=frozenset({"retrain"})),
        build_hosted_sensor(list_wanted_keys, shared),
    ]

    async def live() -> Agent:
        lives.append(Agent(tmp_path, clock, *sensors, decider=decider))
        lives[-1].post.down = UnavailableError("The server cannot be reached.")
        return await lives[-1].__aenter__()

    async def fire(cause: str, name: str = "look") -> list[str]:
        agent.host.loop.call(name, FiringRequest(cause=cause, at=clock.now))
        await agent.settle()
        return seen[-1]

    agent = await live()
    assert await fire("a") == []
    if killed:
        await agent.kill()
        agent = await live()
    assert await fire("b") == ["retrain tracker/retrain/a"]
    assert await fire("c", "list_wanted_keys") == [], "its strategies want nothing"
    agent.post.down = None
    await agent.settle()
    assert await fire("d") == [], "both were answered"
    await agent.__aexit__()


def test_what_its_author_says_of_a_sensor_counts_more_than_what_holds_for_all() -> None:
    agent = sf.Agent(name="tracker", modules=["tracker.py"])

    @sensor(sf.every(hours=1), limit_s=600, misfire="skip")
    def slow() -> int:
        return 1

    @agent.sensor(sf.every(hours=1), grace_s="5m")
    def late() -> int:
        return 1

    environment = made_environment(FakeClock())
    first, second = (
        build_hosted_sensor(function, environment, limit_s=60.0, grace_s=60.0, misfire="run_once")
        for function in (slow, late)
    )
    assert (first.limit_s, first.grace_s, first.misfire) == (600.0, 60.0, "skip")
    assert (second.limit_s, second.grace_s, second.misfire) == (60.0, 300.0, "run_once")


def test_the_thesis_spelling_takes_the_same_options() -> None:
    @sensor(nodes=["predictor"], filter_string="metrics.n > 0", limit_s=5)
    async def count(runs: list[Any], args: list[Any], kwargs: dict[str, Any]) -> int:
        return len(runs)

    assert build_hosted_sensor(count, made_environment(FakeClock())).limit_s == 5.0


@pytest.mark.parametrize("wrong", [{"limit_s": -1}, {"limit_s": "soon"}, {"grace_s": 0}, {"misfire": "never"}])
def test_a_wrong_limit_is_reported_where_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(wrong))):

        @sensor(sf.on_call(), **wrong)
        def look() -> int:
            return 1
