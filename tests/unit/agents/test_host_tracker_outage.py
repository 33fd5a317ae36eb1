"""A tracker that is down for a while: looks at it fail, and once it is back each run is counted, once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import scanflow as sf
from scanflow.agent.sensors.sensor import sensor
from scanflow.errors import UnavailableError
from scanflow.knowledge import MemoryKnowledge
from scanflow_agents.host.control_loop import HostedSensor
from scanflow_agents.host.sensor_runner import SensorEnvironment, build_hosted_sensor
from scanflow_agents.host.thread_pool import ThreadPool
from tests.unit.agents import host_harness
from tests.unit.agents.host_harness import Agent, FakeClock

APP = sf.Application(
    name="mnist",
    team="tests",
    workflows=[sf.Workflow(name="training", nodes=[sf.Executor(name="train", mainfile="train.py")])],
    agents=[sf.Agent(name="tracker", modules=["tracker.py"])],
)
INTERVAL_S = 10.0


class FlakyKnowledge(MemoryKnowledge):
    """The knowledge base of a test, whose tracker answers nobody while it is ``down``."""

    down = False

    def search_runs(self, *arguments: Any, **more: Any) -> Any:
        if self.down:
            raise UnavailableError("The tracker does not answer.")
        return super().search_runs(*arguments, **more)


class InlineWorkers(ThreadPool):
    """Workers that have done what they are asked for when they are asked: a test has no threads to wait for."""

    async def run(self, function: Callable[[], Any]) -> Any:
        return function()


def count_runs(clock: FakeClock, tracker: MemoryKnowledge) -> HostedSensor:
    @sensor(sf.every(seconds=INTERVAL_S), filter_string="metrics.predictions > 0")
    async def count(runs: list[Any]) -> list[str]:
        return [run.name for run in runs]

    def outbox() -> Any:
        return SimpleNamespace(list_waiting=lambda queues: [])

    environment = SensorEnvironment(
        application=APP, agent="tracker", clock=clock, workers=InlineWorkers(), outbox=outbox, tracker=tracker
    )
    return build_hosted_sensor(count, environment)


def record_predictions(tracker: MemoryKnowledge, clock: FakeClock, name: str) -> None:
    when = datetime.fromtimestamp(clock.now, UTC)
    tracker.log_run("mnist", "tests", name=name, metrics={"predictions": 1.0}, started_at=when, ended_at=when)


async def list_samples(agent: Agent, name: str) -> list[dict[str, Any]]:
    return [entry["body"] for entry in await agent.journal("sample") if entry["subject"] == name]


async def test_runs_of_an_outage_are_counted_once_it_is_over_also_by_an_agent_that_was_killed_in_it(
    tmp_path: Path,
) -> None:
    clock, tracker = FakeClock(), FlakyKnowledge()
    well = host_harness.sensor("well", sf.every(seconds=INTERVAL_S))
    agent = await Agent(tmp_path, clock, count_runs(clock, tracker), well).__aenter__()
    record_predictions(tracker, clock, "before")
    await clock.advance(2 * INTERVAL_S)
    tracker.down = True
    record_predictions(tracker, clock, "at first")  # another agent of the same tracker may reach it
    await clock.advance(3 * INTERVAL_S)
    await agent.settle()
    await agent.kill()
    async with Agent(tmp_path, clock, count_runs(clock, tracker), well) as agent:
        record_predictions(tracker, clock, "later")
        await clock.advance(3 * INTERVAL_S)
        tracker.down = False
        await clock.advance(3 * INTERVAL_S)
        looks = await list_samples(agent, "count")
        failed = [look["error"] for look in looks if look["error"] is not None]
        assert failed == ["UnavailableError: The tracker does not answer."] * 6
        counted = [name for look in looks if look["error"] is None for name in look["value"]]
        assert sorted(counted) == ["at first", "before", "later"]
        assert [sample["error"] for sample in await list_samples(agent, "well")] == [None] * len(looks)
        wanted = agent.keys()
        assert sum(key.startswith("tracker/count/") for key in wanted) == 3, "nothing is wanted of a look that failed"
