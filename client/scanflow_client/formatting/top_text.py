"""What runs now, as a screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scanflow.agent.agent_records import AgentView
from scanflow.app.quantities import format_count
from scanflow.backends.service_records import InstanceRecord, RevisionRecord, ServiceRecord
from scanflow.drawing.states import get_state_look
from scanflow.placement.cpulist import format_numbered
from scanflow.placement.topology_drawing import generate_labels
from scanflow_client.formatting.run_text import format_runs
from scanflow_client.formatting.service_text import format_model_versions
from scanflow_client.formatting.text import (
    MARKS,
    format_age,
    format_bytes,
    format_latency,
    format_percent,
    format_time,
    shorten,
)
from scanflow_client.formatting.text_table import Screen, Table, lay_out
from scanflow_client.formatting.topology_text import FREE, SEVERAL
from scanflow_client.top_reading import CpuLoad, TopReading

LEVELS, ASCII_LEVELS = "▁▂▃▄▅▆▇█", "0123456789"
"""The characters of a CPU's load, from none to all of its time."""

PIPE_WIDTH = 80
MOST_NAMED = 3
_SERVICE = ("service", "state", "ready", "rps", "p50", "p95", "requests", "errors", "serves")
_INSTANCE = ("instance", "state", "on", "busy", "memory", "in flight", "restarts")
_AGENT = ("agent", "state", "since", "last firing", "missed", "errors")
_SPARE_SERVICE = ("serves", "p50", "requests", "errors", "ready")
"""Columns that are left out on a narrow terminal, the first first."""

_SPARE_INSTANCE = ("restarts", "memory", "in flight")
_SPARE_AGENT = ("missed", "since", "last firing")
_SPARE_RUN = ("took", "started", "workflow")


def format_top(reading: TopReading, *, width: int | None = None, ascii_only: bool = False) -> Screen:
    """Return services, instances, CPUs, agents and runs, each as a table, and how many there are of each.

    Where a table is wider than ``width``, what can be spared of it is left out.
    """
    instances = [(service, instance) for service in reading.services for instance in service.instances]
    screen: list[str | Table] = [_format_counts(reading)]
    screen += _fit(Table(_SERVICE, [_format_service(service) for service in reading.services]), _SPARE_SERVICE, width)
    screen += _fit(Table(_INSTANCE, [_format_instance(*entry) for entry in instances]), _SPARE_INSTANCE, width)
    if reading.cpus:
        levels = ASCII_LEVELS if ascii_only else LEVELS
        screen += ["", *draw_loads(reading.cpus, width=width or PIPE_WIDTH, levels=levels)]
    screen += _fit(Table(_AGENT, [_format_agent(agent) for agent in reading.agents]), _SPARE_AGENT, width)
    screen += [f"{agent.full_name} fails: {shorten(agent.error)}" for agent in reading.agents if agent.error]
    for part in format_runs(reading.runs) if reading.runs else ():
        screen += _fit(part, _SPARE_RUN, width) if isinstance(part, Table) else [part]
    if not (reading.services or reading.agents or reading.runs):
        screen += ["", "Nothing runs. Start a run: scanflow run app.py. Serve: scanflow deploy app.py:WORKFLOW"]
    return screen


def _fit(table: Table, spare: Sequence[str], width: int | None) -> list[str | Table]:
    """Return a table with a blank line above it, without as many of the spare columns as needed; nothing if empty."""
    for name in spare if width is not None else ():
        if max(map(len, lay_out(table))) > (width or 0):
            table = _drop_column(table, name)
    return ["", table] if table.rows else []


def _drop_column(table: Table, name: str) -> Table:
    rows = [[cell for head, cell in zip(table.headers, row, strict=True) if head != name] for row in table.rows]
    return Table([head for head in table.headers if head != name], rows)


def _format_counts(reading: TopReading) -> str:
    parts = [
        format_count(len(reading.services), "service"),
        format_count(len(reading.agents), "agent"),
        format_count(len(reading.runs), "running run"),
    ]
    if reading.cpus:
        busy = sum(cpu.load for cpu in reading.cpus)
        parts.append(f"{busy:.1f} of {format_count(len(reading.cpus), 'CPU')} busy")
    return f"{format_time(reading.at)}  {', '.join(parts)}"


def _format_service(record: ServiceRecord) -> tuple[str, ...]:
    serving = [revision for revision in record.revisions if not revision.shadow]
    rates = [revision.rps for revision in serving if revision.rps is not None]
    return (
        record.name,
        f"{MARKS[record.state]} {record.state}",
        f"{record.ready}/{record.shape.instances}",
        f"{sum(rates):.1f}" if rates else "-",
        _format_slowest(revision.p50_s for revision in serving),
        _format_slowest(revision.p95_s for revision in serving),
        str(sum(revision.requests for revision in serving)),
        _format_errors(serving),
        format_model_versions(record),
    )


def _format_slowest(latencies: Iterable[float | None]) -> str:
    return format_latency(max((seconds for seconds in latencies if seconds is not None), default=None))


def _format_errors(revisions: Sequence[RevisionRecord]) -> str:
    errors = sum(revision.errors for revision in revisions)
    requests = sum(revision.requests for revision in revisions)
    return f"{errors} ({format_percent(errors / requests)})" if errors and requests else str(errors)


def _format_instance(service: ServiceRecord, instance: InstanceRecord) -> tuple[str, ...]:
    cpus = format_numbered("CPU", instance.cpus) if instance.cpus else "any CPU"
    return (
        f"{service.name}/{instance.instance}",
        f"{MARKS[instance.state]} {instance.state}",
        cpus if instance.place is None else instance.place,
        format_percent(instance.cpu_share, 0),
        "-" if instance.rss_bytes is None else format_bytes(instance.rss_bytes),
        str(instance.in_flight),
        str(instance.restarts),
    )


def _format_agent(agent: AgentView) -> tuple[str, ...]:
    sensors = agent.sensors or ()
    last = max((sensor.last for sensor in sensors if sensor.last is not None), default=None)
    return (
        agent.full_name,
        f"{get_state_look(agent.state).mark} {agent.state}",
        format_age(agent.started),
        format_age(last),
        str(sum(sensor.missed for sensor in sensors)),
        str(sum(sensor.errors for sensor in sensors)),
    )


def draw_loads(cpus: Sequence[CpuLoad], *, width: int, levels: str) -> list[str]:
    """Return lines with a character for the load of each CPU, and below it the letter of what is pinned to it.

    The names of the instances follow.
    """
    owners = _label_owners(cpus)
    marks = {cpu.cpu: _choose_mark(cpu, owners) for cpu in cpus}
    size = len(_name_row([cpus[-1], cpus[-1]]))
    most = max(8, (width - size - 2) // 8 * 8)
    lines: list[str] = []
    for row in (cpus[first : first + most] for first in range(0, len(cpus), most)):
        lines.append(f"{_name_row(row):<{size}}  {''.join(levels[round(cpu.load * (len(levels) - 1))] for cpu in row)}")
        if owners:
            lines.append(f"{'':<{size}}  {''.join(marks[cpu.cpu] for cpu in row)}")
    for names, label in owners.items():
        listed = f"{names[0]} to {names[-1]}" if len(names) > MOST_NAMED else ", ".join(names)
        lines.append(f"  {label}  {listed}")
    return lines


def _name_row(row: Sequence[CpuLoad]) -> str:
    return f"CPUs {row[0].cpu}-{row[-1].cpu}" if len(row) > 1 else f"CPU {row[0].cpu}"


def _label_owners(cpus: Sequence[CpuLoad]) -> Mapping[tuple[str, ...], str]:
    """Return a letter for each group of instances that share their CPUs, as far as there are letters."""
    groups = dict.fromkeys(cpu.instances for cpu in cpus if cpu.instances)
    return {names: label for names, label in zip(groups, generate_labels(), strict=False) if len(label) == 1}


def _choose_mark(cpu: CpuLoad, owners: Mapping[tuple[str, ...], str]) -> str:
    return owners.get(cpu.instances, SEVERAL) if cpu.instances else FREE
