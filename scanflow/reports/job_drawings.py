"""MPI jobs as drawings: how long each waited and ran, what ran on each node (thesis Fig. 6.7), and each rank's CPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo

from markupsafe import Markup

from scanflow.app.quantities import format_count, format_duration
from scanflow.backends.job_times import JobTimes, compute_job_totals
from scanflow.backends.rank_files import RANKS
from scanflow.backends.run_records import RunRecord
from scanflow.backends.tasks import split_task
from scanflow.drawing import svg
from scanflow.drawing.cpu_map import CoreBox, CoreGroup, CpuBox, CpuPanel, draw_cpu_map
from scanflow.drawing.states import StateLook, get_state_look
from scanflow.drawing.time_bars import Density, TimeBar, TimeRow, compute_density, draw_time_bars
from scanflow.placement.cpulist import format_cpus, format_numbered, parse_cpus
from scanflow.placement.mpi.job_plan import MPIPlan
from scanflow.placement.topology import Topology

WORKER_COLOURS = ("blue", "green", "violet", "amber")
NAME = "MPI jobs over time"

Address = Callable[[str], str]
"""Returns the address of a run's page, by its name; empty: it has none."""


def draw_gantt(
    jobs: Sequence[JobTimes], *, address: Address | None = None, width: float = svg.WIDTH, zone: tzinfo = UTC
) -> Markup:
    """Draw one or more jobs, the first submitted on top; waiting time is an outline, running time a filled bar."""
    ordered = sorted(jobs, key=lambda job: job.submitted)
    rows = [_build_job_row(job, address) for job in ordered]
    return draw_time_bars(NAME, rows, heading=_format_heading(jobs), width=width, zone=zone)


def draw_node_lanes(
    jobs: Sequence[JobTimes], *, address: Address | None = None, width: float = svg.WIDTH, zone: tzinfo = UTC
) -> Markup:
    """Draw what ran on each node over time, and above how many jobs waited. A job on several nodes is on each."""
    ordered = sorted(jobs, key=lambda job: job.submitted)
    by_node: dict[str, list[JobTimes]] = {}
    for job in ordered:
        for node in job.nodes if job.began is not None else ():
            by_node.setdefault(node, []).append(job)
    rows = [_build_queue_row(ordered)]
    for node in sorted(by_node, key=_split_number):
        rows += _build_node_rows(node, by_node[node], address)
    return draw_time_bars("Nodes over time", rows, heading=format_count(len(by_node), "node"), width=width, zone=zone)


def draw_plan_ranks(
    plan: MPIPlan, topologies: Mapping[str, Topology] | None = None, *, width: float = svg.WIDTH
) -> Markup:
    """Draw where a job's ranks will run: its nodes, and their CPUs where those are known. Workers differ in colour."""
    ranks = [
        _Rank(
            rank.rank,
            rank.node,
            rank.cpus,
            f"rank {rank.rank} of worker {rank.worker} on {rank.node}",
            StateLook("", WORKER_COLOURS[rank.worker % len(WORKER_COLOURS)]),
            outline=rank.worker % 2 == 1,
        )
        for rank in plan.ranks
    ]
    heading = f"{plan.name}: {format_count(len(plan.ranks), 'rank')} in {format_count(len(plan.workers), 'worker')}"
    return _draw_ranks(f"Ranks of {plan.name} by node", heading, ranks, topologies or {}, width)


def draw_run_ranks(
    record: RunRecord, topologies: Mapping[str, Topology] | None = None, *, width: float = svg.WIDTH
) -> Markup:
    """Draw where the ranks of a job's run are, with their states."""
    ranks = [
        _Rank(
            split_task(task.task)[1] or 0,
            *_parse_place(task.place or ""),
            f"{task.task} on {task.place}: {task.state}",
            get_state_look(task.state),
        )
        for task in record.tasks
        if task.step == RANKS
    ]
    return _draw_ranks(
        f"Ranks of {record.name} by node", format_count(len(ranks), "rank"), ranks, topologies or {}, width
    )


@dataclass(frozen=True, slots=True)
class _Rank:
    number: int
    node: str
    cpus: tuple[int, ...]
    words: str
    look: StateLook
    outline: bool = False


def _build_job_row(job: JobTimes, address: Address | None) -> TimeRow:
    look = _get_look(job)
    began = job.submitted + job.waiting_s
    bars = [TimeBar(job.submitted, began, "soft", outline=True)]
    if job.running_s is not None:
        bars.append(TimeBar(began, began + job.running_s, look.colour))
    return TimeRow(
        name=job.job,
        words=_format_job(job),
        bars=bars,
        label="waits" if job.running_s is None else format_duration(job.running_s),
        mark=look.mark,
        colour=look.colour,
        address="" if address is None else address(job.run),
    )


def _get_look(job: JobTimes) -> StateLook:
    return get_state_look("pending" if job.began is None and job.state == "running" else job.state)


def _build_queue_row(jobs: Sequence[JobTimes]) -> TimeRow:
    waits = [(job.submitted, job.submitted + job.waiting_s) for job in jobs]
    begin, end = min(first for first, _ in waits), max(last for _, last in waits)
    waiting = sum(job.began is None and job.ended is None for job in jobs)
    label = f"{format_count(waiting, 'job')} waiting now, longest wait {format_duration(max(map(_get_wait, jobs)))}"
    bar = TimeBar(begin, end, "soft", outline=True)
    density = Density(compute_density(waits, begin, end), "amber")
    return TimeRow("queue", f"queue: {label}", [bar], label=label, density=density)


def _get_wait(job: JobTimes) -> float:
    return job.waiting_s


def _build_node_rows(node: str, jobs: Iterable[JobTimes], address: Address | None) -> list[TimeRow]:
    """Return rows of bars that do not overlap: a job is in the first row that is free when it begins."""
    rows: list[list[TimeBar]] = []
    for job in sorted(jobs, key=lambda job: job.began or 0.0):
        bar = _build_node_bar(job, address)
        row = next((bars for bars in rows if bars[-1].end <= bar.begin), None)
        if row is None:
            rows.append([bar])
        else:
            row.append(bar)
    return [TimeRow("" if place else node, node, bars) for place, bars in enumerate(rows)]


def _build_node_bar(job: JobTimes, address: Address | None) -> TimeBar:
    look, began = _get_look(job), job.submitted + job.waiting_s
    return TimeBar(
        began,
        began + (job.running_s or 0.0),
        look.colour,
        words=_format_job(job),
        label=f"{look.mark} {job.job}",
        address="" if address is None else address(job.run),
    )


def _format_heading(jobs: Sequence[JobTimes]) -> str:
    job_totals = compute_job_totals(jobs)
    heading = format_count(len(jobs), "job")
    if job_totals is None:
        return heading
    waited = format_duration(job_totals.waiting_s)
    return f"{heading}; {job_totals.jobs} ended: makespan {format_duration(job_totals.makespan_s)}, mean wait {waited}"


def _format_job(job: JobTimes) -> str:
    where = f" on {', '.join(job.nodes)}" if job.nodes else ""
    ran = "" if job.running_s is None else f", ran {format_duration(job.running_s)}"
    return f"{job.job} ({job.run}), {job.ranks} ranks{where}: waited {format_duration(job.waiting_s)}{ran}, {job.state}"


def _parse_place(place: str) -> tuple[str, tuple[int, ...]]:
    """Return the node and the CPUs of a rank's place, as its record has it: ``n0, CPUs 0-3``."""
    node, _, cpus = place.partition(", CPU")
    return node, parse_cpus(cpus.removeprefix("s ")) if cpus else ()


def _draw_ranks(
    name: str, heading: str, ranks: Sequence[_Rank], topologies: Mapping[str, Topology], width: float
) -> Markup:
    by_node: dict[str, list[_Rank]] = {}
    for rank in ranks:
        by_node.setdefault(rank.node, []).append(rank)
    nodes = [_build_node(node, by_node[node], topologies.get(node)) for node in sorted(by_node, key=_split_number)]
    heading = svg.shorten_text(f"{heading} on {format_count(len(nodes), 'node')}", width)
    drawn, end = draw_cpu_map(nodes, 20.0, width=width)
    return svg.draw_figure(end + 2, name, svg.draw_text(heading, 0.0, 13.0, "ink", anchor="start"), drawn, width=width)


def _build_node(name: str, ranks: Sequence[_Rank], topology: Topology | None) -> CpuPanel:
    by_cpu: dict[int, list[_Rank]] = {}
    for rank in ranks:
        for cpu in rank.cpus:
            by_cpu.setdefault(cpu, []).append(rank)
    unbound = [_build_box([rank], None) for rank in ranks if not rank.cpus]
    words = f"{name}: {format_count(len(ranks), 'rank')}"
    if topology is None:
        cores = [CoreBox([_build_box(by_cpu[cpu], cpu)]) for cpu in sorted(by_cpu)]
        return CpuPanel(name, words, [CoreGroup("", cores)], unbound=unbound)
    groups: list[CoreGroup] = []
    for socket in topology.sockets:
        own = (core.cpus for core in topology.cores if core.socket == socket)
        cores = [CoreBox([_build_box(by_cpu.get(cpu, []), cpu) for cpu in cpus]) for cpus in own]
        groups.append(CoreGroup(f"socket {socket}", cores))
    return CpuPanel(name, words, groups, unbound=unbound)


def _build_box(ranks: Sequence[_Rank], cpu: int | None) -> CpuBox:
    place = "any CPU" if cpu is None else f"CPU {cpu}"
    if not ranks:
        return CpuBox(str(cpu), f"{place}: free")
    shown = f"{format_cpus(rank.number for rank in ranks)}{ranks[0].look.mark}"
    words = ranks[0].words if len(ranks) == 1 else format_numbered("rank", (rank.number for rank in ranks))
    return CpuBox(shown, f"{place}: {words}", ranks[0].look.colour, outline=ranks[0].outline)


def _split_number(name: str) -> tuple[str, int]:
    """Return what sorts node-10 after node-9."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)
