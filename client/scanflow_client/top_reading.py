"""What runs now, read again and again: services with their instances, runs, agents, and the CPUs of this machine."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scanflow.agent.agent_records import AgentView
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import Deployer
from scanflow.errors import UnsupportedError
from scanflow.processes.proc_stat import read_busy_seconds
from scanflow_client.exclusive_cpus import iterate_pinned_instances

MOST_RUNS = 200
"""The newest runs among which those that run are looked for."""

SAMPLE_S = 0.25
"""The shortest time over which the load of CPUs is measured."""


@dataclass(frozen=True, slots=True)
class CpuLoad:
    cpu: int
    load: float
    """The share of the time since the last reading in which it was busy."""

    instances: tuple[str, ...] = ()
    """The instances of services that are pinned to it: ``digits/1``."""


@dataclass(frozen=True, slots=True)
class TopReading:
    """What runs now."""

    at: float
    services: Sequence[ServiceRecord] = ()
    runs: Sequence[RunRecord] = ()
    """Those that have not ended."""

    agents: Sequence[AgentView] = ()
    """Those that have not stopped."""

    cpus: Sequence[CpuLoad] = ()
    """Of this machine; empty where services run on others."""


class _Sample(NamedTuple):
    at: float
    busy: Mapping[int, float]


class TopReader:
    """Reads what runs now from a deployer, and its agents from the server, if there is one."""

    def __init__(
        self,
        deployer: Deployer,
        list_agents: Callable[[], Sequence[AgentView]] = tuple,
        *,
        read_cpus: Callable[[], Mapping[int, float]] | None = read_busy_seconds,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``read_cpus`` returns the seconds that each CPU was busy; None: services run on other machines."""
        self._deployer, self._list_agents = deployer, list_agents
        self._read_cpus, self._clock, self._sleep = read_cpus, clock, sleep
        self._last = self._sample()

    def read(self) -> TopReading:
        try:
            services = self._deployer.services()
        except UnsupportedError:  # the backend has none
            services = []
        return TopReading(
            at=time.time(),
            services=services,
            runs=[run for run in self._deployer.runs(limit=MOST_RUNS) if run.state == "running"],
            agents=[agent for agent in self._list_agents() if agent.state != "stopped"],
            cpus=self._measure(services),
        )

    def _sample(self) -> _Sample:
        return _Sample(self._clock(), {} if self._read_cpus is None else self._read_cpus())

    def _measure(self, services: Sequence[ServiceRecord]) -> list[CpuLoad]:
        if self._read_cpus is None:
            return []
        if (missing := SAMPLE_S - (self._clock() - self._last.at)) > 0:
            self._sleep(missing)
        before, self._last = self._last, self._sample()
        seconds = self._last.at - before.at
        pinned: dict[int, list[str]] = defaultdict(list)
        for service, instance in iterate_pinned_instances(services):
            for cpu in instance.cpus:
                pinned[cpu].append(f"{service.name}/{instance.instance}")
        return [
            CpuLoad(cpu, max(0.0, min(1.0, (busy - before.busy.get(cpu, busy)) / seconds)), tuple(pinned[cpu]))
            for cpu, busy in sorted(self._last.busy.items())
        ]
