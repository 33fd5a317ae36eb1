"""The discrete-event simulation: jobs arrive, wait, run, slow each other down, and end.

A waiting job starts as soon as the planner can place all of it (gang); one that does not fit lets later ones pass, as
Volcano's gang plugin does. While the same jobs run, each advances at a constant rate; with each start and end the rates
change. A few jobs run at a time, so the next end is searched, and only what is known ahead is in the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Literal

from scanflow.app.mpi import MPIWorkload
from scanflow.errors import InvalidError
from scanflow.placement.mpi.job_plan import MPIPlan, plan_job
from scanflow_research.simulation.contention import Contention, Workers, compute_slowdowns, group_alike
from scanflow_research.simulation.machines import Machines
from scanflow_research.simulation.programs import SubmittedJob
from scanflow_research.simulation.schemes import DeploymentScheme


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWorker:
    node: str
    cores: tuple[int, ...]
    """The numbers of its cores on the node. Without pinning they are only counted: its ranks run on all cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """The result of a simulated job; times from the start of the experiment."""

    name: str
    program: str
    submitted_s: float
    started_s: float
    ended_s: float
    released_s: float
    """When its cores were released."""

    workers: tuple[PlacedWorker, ...]

    @property
    def waiting_s(self) -> float:
        return self.started_s - self.submitted_s

    @property
    def running_s(self) -> float:
        return self.ended_s - self.started_s

    @property
    def response_s(self) -> float:
        return self.ended_s - self.submitted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    scenario: str
    seed: int
    jobs: tuple[SimulatedJob, ...]
    """In the order of submission."""

    @property
    def waiting_s(self) -> float:
        """The sum over all jobs, like the next two."""
        return sum(job.waiting_s for job in self.jobs)

    @property
    def running_s(self) -> float:
        return sum(job.running_s for job in self.jobs)

    @property
    def response_s(self) -> float:
        return sum(job.response_s for job in self.jobs)

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end (thesis 6.4.1)."""
        return max(job.ended_s for job in self.jobs) - min(job.submitted_s for job in self.jobs)

    def compute_running_times(self) -> dict[str, float]:
        """Return the mean running time of each program, in seconds."""
        times_by_program: dict[str, list[float]] = {}
        for job in self.jobs:
            times_by_program.setdefault(job.program, []).append(job.running_s)
        return {program: sum(times) / len(times) for program, times in times_by_program.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCluster:
    n_nodes: int = 4
    sockets: int = 2
    cores_per_socket: int = 16


def simulate(
    jobs: Sequence[SubmittedJob],
    scenario: DeploymentScheme,
    contention: Contention,
    *,
    cluster: SimulatedCluster | None = None,
    seed: int = 0,
) -> Simulation:
    """Simulate these jobs. The same arguments give the same result.

    Raises:
        InvalidError: a job fits not even the empty cluster.
    """
    return _Simulator(scenario, contention, cluster or SimulatedCluster(), seed).run(jobs)


@dataclass(slots=True, kw_only=True)
class _Running:
    job: SubmittedJob
    started_s: float
    remaining_s: float
    """Remaining running time without slowdown."""

    workers: tuple[PlacedWorker, ...]
    places: tuple[Workers, ...]
    rate: float = field(default=1.0)

    @property
    def time_left_s(self) -> float:
        return self.remaining_s / self.rate


_Event = tuple[float, int, Literal["submit", "start", "release"], "SubmittedJob | _Running"]


class _Simulator:
    def __init__(
        self, scenario: DeploymentScheme, contention: Contention, cluster: SimulatedCluster, seed: int
    ) -> None:
        self._scenario, self._contention, self._seed = scenario, contention, seed
        self._machines = Machines(cluster.n_nodes, cluster.sockets, cluster.cores_per_socket, pinned=scenario.pinned)
        self._random = Random(seed)  # noqa: S311  to draw, not to hide
        self._placing = scenario.choose_placing(self._random)
        self._now = 0.0
        self._events: list[_Event] = []
        self._numbers = count()  # events at one time keep their order
        self._waiting: list[tuple[SubmittedJob, MPIWorkload]] = []
        self._running: list[_Running] = []
        self._done: list[SimulatedJob] = []

    def run(self, jobs: Sequence[SubmittedJob]) -> Simulation:
        for job in jobs:
            self._schedule(job.submitted_s, "submit", job)
        while self._events or self._running:
            first = min(self._running, key=lambda job: job.time_left_s, default=None)
            if first is not None and (not self._events or self._now + first.time_left_s <= self._events[0][0]):
                self._advance(self._now + first.time_left_s)
                self._end(first)
            else:
                self._take_next_event()
        if self._waiting:
            self._plan(self._waiting[0][1])  # says why it does not fit, though all is free
        done = {job.name: job for job in self._done}
        return Simulation(scenario=self._scenario.name, seed=self._seed, jobs=tuple(done[job.name] for job in jobs))

    def _schedule(self, at: float, kind: Literal["submit", "start", "release"], what: SubmittedJob | _Running) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), kind, what))

    def _take_next_event(self) -> None:
        at, _, kind, what = heapq.heappop(self._events)
        self._advance(at)
        if kind == "start" and isinstance(what, _Running):
            self._running.append(what)
            self._set_rates()
            return
        if kind == "submit" and isinstance(what, SubmittedJob):
            self._waiting.append((what, self._scenario.build_workload(what)))
        elif isinstance(what, _Running):
            for worker in what.workers:
                self._machines.release(worker.node, worker.cores)
        self._start_what_fits()

    def _advance(self, to: float) -> None:
        for running in self._running:
            running.remaining_s -= (to - self._now) * running.rate
        self._now = to

    def _set_rates(self) -> None:
        slowed = compute_slowdowns(
            [(running.job.program, running.places) for running in self._running], self._contention
        )
        for running, slowdown in zip(self._running, slowed, strict=True):
            running.rate = 1 / slowdown

    def _end(self, running: _Running) -> None:
        self._running.remove(running)
        released = self._now + self._scenario.release_s
        self._done.append(
            SimulatedJob(
                name=running.job.name,
                program=running.job.program.name,
                submitted_s=running.job.submitted_s,
                started_s=running.started_s,
                ended_s=self._now,
                released_s=released,
                workers=running.workers,
            )
        )
        self._schedule(released, "release", running)
        self._set_rates()

    def _start_what_fits(self) -> None:
        if not self._scenario.in_order:
            self._random.shuffle(self._waiting)
        waiting: list[tuple[SubmittedJob, MPIWorkload]] = []
        for job, workload in self._waiting:
            try:
                self._start(job, self._plan(workload))
            except InvalidError:
                waiting.append((job, workload))
        self._waiting = waiting

    def _plan(self, workload: MPIWorkload) -> MPIPlan:
        return plan_job(workload, self._machines.nodes, placing=self._placing)

    def _start(self, job: SubmittedJob, plan: MPIPlan) -> None:
        node_by_worker = {rank.worker: rank.node for rank in plan.ranks}
        workers = tuple(
            PlacedWorker(
                node=node_by_worker[worker.index],
                cores=self._machines.take(node_by_worker[worker.index], worker.n_tasks),
            )
            for worker in plan.workers
        )
        started = self._now + self._scenario.start_s + len(workers) * self._scenario.start_worker_s
        places = group_alike([self._machines.place_ranks(worker.node, worker.cores) for worker in workers])
        running = _Running(job=job, started_s=started, remaining_s=job.program.seconds, workers=workers, places=places)
        self._schedule(started, "start", running)
