"""Runs, tasks and plans as lines and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scanflow.app.plan import IMAGE_NOTE, Plan
from scanflow.app.quantities import counted, format_duration
from scanflow.backends.records import RunRecord, TaskRecord
from scanflow.placement.cpulist import format_cpus
from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import MARKS, ago, duration, format_bytes, optional, value_lines

MAX_FAILURE_LINES = 12
_CHANGES = {"create": "+", "change": "~", "conflict": "!", "refused": "✗"}


def task_line(record: TaskRecord, *, label: str | None = None) -> str:
    """Return one line on an ended task: mark, name, duration, and a remark."""
    remark = record.failure.summary if record.failure is not None else ""
    if record.origin:
        remark = f"reused from {record.origin}"
    elif record.state == "skipped":
        remark = "skipped"
    took = "" if record.seconds is None or record.origin else format_duration(record.seconds)
    mark = MARKS["reused" if record.origin else record.state]
    return f"  {mark} {label or record.task:<28} {took:>9}  {remark}".rstrip()


def failure_lines(record: RunRecord) -> list[str]:
    """Return why a run failed, in at most 12 lines: the user's frames, the root cause, the next command."""
    failed = [task for task in record.tasks if task.state == "failed" and task.failure is not None]
    if not failed:
        return [f"The run {record.name} failed: {record.error or 'no step recorded a reason'}."]
    first = failed[0]
    assert first.failure is not None
    others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    attempts = f" after {first.attempts} attempts" if first.attempts > 1 else ""
    head = f"{MARKS['failed']} {first.task} failed{attempts}: {first.failure.summary}{others}"
    tail = [f"See more: scanflow logs {record.name} {first.task}"] if first.attempts else []
    tail.append(f"Continue from here: scanflow resume {record.name}")
    most = MAX_FAILURE_LINES - 1 - len(tail)
    return [head, *(f"  {line}" for line in first.failure.lines()[-most:]), *tail]


def next_command(record: RunRecord) -> str:
    if record.state in {"stopped", "interrupted"}:
        return f"Continue it: scanflow resume {record.name}"
    if record.state == "running":
        return f"Stop it: scanflow stop {record.name}"
    return f"Show it: scanflow show {record.name}"


def outcome_line(record: RunRecord) -> str:
    """Return how a run ended, how long it took and what to do next."""
    after = "" if record.state == "failed" else next_command(record)
    return f"{record.state} in {format_duration(record.seconds or 0.0)}. {after}".rstrip()


def output_lines(step: str, value: Any) -> list[str]:
    first, *rest = value_lines(value)
    return [f"{step} = {first}", *rest]


def runs_table(records: Sequence[RunRecord]) -> Table:
    return Table(
        ("run", "workflow", "state", "started", "took"),
        [
            (
                one.name,
                f"{one.app}:{one.workflow}",
                f"{MARKS[one.state]} {one.state}",
                ago(one.created),
                "" if one.seconds is None else format_duration(one.seconds),
            )
            for one in records
        ],
    )


def run_screen(record: RunRecord) -> Screen:
    """Return a run: its state, its steps (a fan-out is one row), where its outputs are, and what to do next."""
    took = "" if record.seconds is None else f" in {format_duration(record.seconds)}"
    where = f"{record.app}:{record.workflow}"
    head = f"{MARKS[record.state]} {record.name}  {where}  {record.state}{took}, {ago(record.created)}"
    by_step: dict[str, list[TaskRecord]] = {}
    for task in record.tasks:
        by_step.setdefault(task.step, []).append(task)
    steps = Table(
        ("step", "state", "attempts", "took", "cpu", "peak memory"),
        [_step_row(step, tasks) for step, tasks in by_step.items()],
    )
    after = {"failed": failure_lines(record), "succeeded": []}.get(record.state, [next_command(record)])
    return [head, steps, f"Outputs: {record.folder}/outputs", *after]


def check_lines(
    app: str, plans: Sequence[Plan], types: Mapping[str, str], *, file: str, target: str | None
) -> list[str]:
    """Return a line on each workflow that was checked, and the command that runs or deploys it."""
    lines = []
    for plan in plans:
        size = f"{counted(len(plan.steps), 'step')} in {counted(plan.waves, 'wave')}"
        if types[plan.workflow] == "online":
            size = f"{counted(len(plan.steps), 'node')} in each of {counted(len(plan.instances), 'instance')}"
        lines.append(f"✓ {app}:{plan.workflow}  {size}")
        unused = [step.name for step in plan.steps if IMAGE_NOTE in step.notes]
        lines += [f"  ! {name}: {IMAGE_NOTE}: no containers are run on this machine" for name in unused]
    batch = [name for name, type in types.items() if type == "batch"]
    command = "Run it: scanflow run" if batch or set(types.values()) != {"online"} else "Deploy it: scanflow deploy"
    named = f"{target or file}:{batch[0]}" if len(batch) > 1 else target or ""
    return [*lines, f"{file} is valid. {command} {named}".rstrip()]


def plan_screen(plan: Plan, *, online: bool) -> Screen:
    """Return what a workflow would run, and the resources that it would take."""
    if online:
        nodes = [
            (step.name, step.runs, ", ".join(step.after) or "the request", ", ".join(step.notes).lower())
            for step in plan.steps
        ]
        instances = [
            (
                one.name,
                f"{one.cores:g}",
                format_cpus(one.cpus),
                f"node {format_cpus(one.memory_nodes)}" if one.memory_nodes else "-",
                str(one.threads),
            )
            for one in plan.instances
        ]
        size = f"{counted(len(instances), 'instance')} on {plan.peak_cores:g} of {plan.machine_cores:g} cores"
        return [
            Table(("node", "runs", "after", "notes"), nodes),
            Table(("instance", "cores", "cpus", "memory of", "threads"), instances),
            *_objects(plan),
            f"{size}. Nothing was started.",
        ]
    steps = [
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
    unsized = f", besides {counted(plan.unsized, 'step')} that state none" if plan.unsized else ""
    memory = f"{format_bytes(plan.peak_memory_bytes)} of {format_bytes(plan.machine_memory_bytes)} memory"
    most = f"At most {plan.peak_cores:g} of {plan.machine_cores:g} cores and {memory} at once{unsized}"
    table = Table(("wave", "step", "runs", "after", "cores", "memory", "notes"), steps)
    return [table, *_objects(plan), f"{most}. Nothing was run."]


def _objects(plan: Plan) -> Screen:
    """Return what of a cluster's objects would be made and changed; those that stay as they are by their number."""
    rows = [
        (_CHANGES[one.change], one.kind, one.name, "; ".join([*one.fields, *([one.why] if one.why else [])]))
        for one in plan.objects
        if one.change != "none"
    ]
    same = len(plan.objects) - len(rows)
    if not plan.objects:
        return []
    unchanged = [f"{counted(same, 'object')} of the environment stay as they are."] if same else []
    return [*([Table(("", "object", "name", "changes"), rows)] if rows else []), *unchanged]


def _step_row(step: str, tasks: Sequence[TaskRecord]) -> tuple[str, ...]:
    states = Counter(task.state for task in tasks)
    worst = next(one for one in ("failed", "running", "stopped", "pending", "succeeded", "skipped") if one in states)
    shown = f"{MARKS[worst]} " + (worst if len(states) == 1 else ", ".join(f"{n} {one}" for one, n in states.items()))
    if origins := {task.origin for task in tasks if task.origin}:
        shown = f"{MARKS['reused']} reused from {', '.join(sorted(origins))}"
    memory = max((task.max_rss_bytes or 0 for task in tasks), default=0)
    return (
        f"{step} ×{len(tasks)}" if any("." in task.task for task in tasks) else step,
        shown,
        optional(max(task.attempts for task in tasks) or None),
        duration(sum(task.seconds or 0.0 for task in tasks if not task.origin)),
        duration(sum(task.cpu_s or 0.0 for task in tasks)),
        format_bytes(memory) if memory else "-",
    )
