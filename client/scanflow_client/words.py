"""How runs and tasks are told to people, as plain lines. Pure: no terminal, no colours."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from scanflow.app.plan import Plan
from scanflow.app.quantities import format_duration
from scanflow.backends.records import RunRecord, TaskRecord
from scanflow.placement.cpulist import format_cpus

__all__ = [
    "MARKS",
    "ago",
    "counted",
    "failure_block",
    "format_bytes",
    "next_command",
    "node_rows",
    "plan_rows",
    "run_rows",
    "seat_rows",
    "step_rows",
    "task_line",
]

MARKS = {
    "succeeded": "✓",
    "failed": "✗",
    "skipped": "–",
    "stopped": "■",
    "running": "●",
    "pending": "·",
    "interrupted": "!",
    "reused": "≡",
}
MAX_FAILURE_LINES = 12
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def task_line(record: TaskRecord, *, label: str | None = None) -> str:
    """Return one line on an ended task: mark, name, duration, and what there is to say."""
    mark = MARKS["reused"] if record.origin else MARKS[record.state]
    took = "" if record.seconds is None or record.origin else format_duration(record.seconds)
    remark = ""
    if record.origin:
        remark = f"reused from {record.origin}"
    elif record.state == "skipped":
        remark = "skipped"
    elif record.failure is not None:
        remark = record.failure.summary
    return f"  {mark} {label or record.task:<28} {took:>9}  {remark}".rstrip()


def failure_block(record: RunRecord) -> list[str]:
    """Return what to say of a failed run, in at most 12 lines: user frames, root cause, the next command."""
    failed = [task for task in record.tasks if task.state == "failed" and task.failure is not None]
    if not failed:
        return [f"The run {record.name} failed: {record.error or 'no step says why'}."]
    first = failed[0]
    assert first.failure is not None
    others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    attempts = f" after {first.attempts} tries" if first.attempts > 1 else ""
    head = f"{MARKS['failed']} {first.task} failed{attempts}: {first.failure.summary}{others}"
    tail = [f"Go on from here: scanflow resume {record.name}"]
    if first.attempts:
        tail.insert(0, f"See more: scanflow logs {record.name} {first.task}")
    room = MAX_FAILURE_LINES - 1 - len(tail)
    return [head, *(f"  {line}" for line in first.failure.lines()[-room:]), *tail]


def next_command(record: RunRecord) -> str:
    """Return the one command to use next."""
    if record.state in {"stopped", "interrupted"}:
        return f"Go on with it: scanflow resume {record.name}"
    if record.state == "running":
        return f"Stop it: scanflow stop {record.name}"
    return f"Look at it: scanflow show {record.name}"


def run_rows(records: Sequence[RunRecord]) -> list[tuple[str, ...]]:
    """Return a table of runs: name, workflow, state, when, how long."""
    return [
        (
            record.name,
            f"{record.app}:{record.workflow}",
            f"{MARKS[record.state]} {record.state}",
            ago(record.created),
            "" if record.seconds is None else format_duration(record.seconds),
        )
        for record in records
    ]


def step_rows(record: RunRecord) -> list[tuple[str, ...]]:
    """Return a table of a run's steps: name, state, tries, duration, CPU time, memory; fan-outs in one row."""
    by_step: dict[str, list[TaskRecord]] = {}
    for task in record.tasks:
        by_step.setdefault(task.step, []).append(task)
    return [_step_row(step, tasks) for step, tasks in by_step.items()]


def plan_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a table of planned steps: wave, name, what runs, after what, cores, memory, notes."""
    return [
        (
            str(step.wave + 1),
            step.name + ("" if step.width == 1 else f" ×{'?' if step.width is None else step.width}"),
            step.runs,
            ", ".join(step.after) or "-",
            f"{step.cores:g}",
            format_bytes(step.memory_bytes) if step.memory_bytes else "-",
            ", ".join(step.notes),
        )
        for step in plan.steps
    ]


def node_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a table of the nodes of a planned graph: name, what runs, whose result it takes, notes."""
    return [
        (step.name, step.runs, ", ".join(step.after) or "the request", ", ".join(step.notes).lower())
        for step in plan.steps
    ]


def seat_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a table of planned instances: name, cores, CPUs, where its memory would be, threads."""
    return [
        (
            one.name,
            f"{one.cores:g}",
            format_cpus(one.cpus),
            f"node {format_cpus(one.memory_nodes)}" if one.memory_nodes else "-",
            str(one.threads),
        )
        for one in plan.instances
    ]


def format_bytes(size: float) -> str:
    """Return an amount of memory with one digit: ``"1.2 GiB"``."""
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def counted(number: int, noun: str) -> str:
    """Return ``"1 step"`` or ``"2 steps"``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ago(when: float) -> str:
    """Return how long ago a moment was."""
    seconds = max(0.0, time.time() - when)
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds // 86400:.0f} d ago"


def _step_row(step: str, tasks: Sequence[TaskRecord]) -> tuple[str, ...]:
    states = Counter(task.state for task in tasks)
    fanned = any("." in task.task for task in tasks)
    name = f"{step} ×{len(tasks)}" if fanned else step
    if len(states) == 1:
        state = tasks[0].state
        shown = f"{MARKS[state]} {state}"
    else:
        state = next(one for one in ("failed", "running", "stopped", "pending", "succeeded") if one in states)
        shown = f"{MARKS[state]} " + ", ".join(f"{count} {one}" for one, count in states.items())
    origins = {task.origin for task in tasks if task.origin}
    if origins:
        shown = f"{MARKS['reused']} reused from {', '.join(sorted(origins))}"
    seconds = [task.seconds for task in tasks if task.seconds is not None and not task.origin]
    cpu = [task.cpu_s for task in tasks if task.cpu_s is not None]
    memory = [task.max_rss_bytes for task in tasks if task.max_rss_bytes]
    return (
        name,
        shown,
        str(max(task.attempts for task in tasks) or "-"),
        format_duration(sum(seconds)) if seconds else "-",
        format_duration(sum(cpu)) if cpu else "-",
        format_bytes(max(memory)) if memory else "-",
    )
