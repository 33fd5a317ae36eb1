"""Runs, tasks and plans as lines and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scanflow.app.plan import IMAGE_NOTE, UNBOUNDED, Plan
from scanflow.app.quantities import format_count, format_duration
from scanflow.backends.device_text import format_step_devices
from scanflow.backends.run_records import RunRecord, RunStarted, StepFile, TaskRecord
from scanflow.placement.cpulist import format_cpus
from scanflow_client.formatting.text import (
    MARKS,
    format_age,
    format_bytes,
    format_optional,
    format_seconds,
    format_value,
)
from scanflow_client.formatting.text_table import Screen, Table

MAX_FAILURE_LINES = 12
MAX_SHOWN_FILES = 5
"""The number of files of a step that are named."""
MAX_AGAIN = 8
"""The number of tasks that run again that are named."""
NO_ITEMS = "no items"
_EDITED = "its old output is kept. To run it as it is now, start a new run: scanflow run"
_STEP_COLUMNS = ("step", "state", "attempts", "took", "cpu", "peak memory")
_STATE_WORDS = {"empty": NO_ITEMS}
_CHANGES = {"create": "+", "change": "~", "conflict": "!", "refused": "✗"}


def format_task(record: TaskRecord, *, label: str | None = None) -> str:
    """Return an ended task on one line: mark, name, duration, and a remark."""
    remark = record.failure.summary if record.failure is not None else ""
    if record.origin:
        remark = f"reused from {record.origin}"
    elif record.state == "skipped":
        remark = "skipped"
    elif record.state == "empty":
        remark = NO_ITEMS
    elif not remark:
        remark = record.cache_note or ""
    took = "" if record.seconds is None or record.origin else format_duration(record.seconds)
    mark = MARKS["reused" if record.origin else record.state]
    return f"  {mark} {label or record.task:<28} {took:>9}  {remark}".rstrip()


def list_notes(event: RunStarted) -> list[str]:
    """Return a line on whatever a run does again, keeps although it was changed, or ignores."""
    again = [
        _format_again(tasks, why)
        for tasks, why in (
            (event.gone, "what they left is gone"),
            (event.changed, "their item or condition was changed"),
        )
        if tasks
    ]
    edited = [f"{changed} was changed after it finished; {_EDITED}" for changed in event.edited]
    return [f"  ! {text}" for text in (*again, *edited, *event.ignored)]


def _format_again(tasks: Sequence[str], why: str) -> str:
    more = f" and {len(tasks) - MAX_AGAIN} more" if len(tasks) > MAX_AGAIN else ""
    return f"run again, as {why}: {', '.join(tasks[:MAX_AGAIN])}{more}"


def format_failure(record: RunRecord, *, in_notebook: bool = False) -> list[str]:
    """Return the failure of a run in at most 12 lines: the user's frames, the root cause, the next command.

    ``in_notebook``: the functions of a run without a file are in cells, which a shell does not have.
    """
    failed = [task for task in record.tasks if task.state == "failed" and task.failure is not None]
    if not failed and not record.tasks and record.error is None:  # as in a list of runs, which has no steps
        return [f"See why: scanflow show {record.name}"]
    if not failed:
        return [f"The run {record.name} failed: {record.error or 'no step recorded a reason'}."]
    first = failed[0]
    assert first.failure is not None
    others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    attempts = f" after {first.attempts} attempts" if first.attempts > 1 else ""
    head = f"{MARKS['failed']} {first.task} failed{attempts}: {first.failure.summary}{others}"
    tail = [f"See more: scanflow logs {record.name} {first.task}"] if first.attempts else []
    call, command = f"client.resume({str(record.name)!r}, app=app)", f"scanflow resume {record.name}"
    tail.append(f"Continue from here: {call if in_notebook and record.source is None else command}")
    most = MAX_FAILURE_LINES - 1 - len(tail)
    return [head, *(f"  {line}" for line in first.failure.lines()[-most:]), *tail]


def suggest_command(record: RunRecord) -> str:
    if record.state in {"stopped", "interrupted"}:
        return f"Continue it: scanflow resume {record.name}"
    if record.state == "running":
        return f"Stop it: scanflow stop {record.name}"
    return f"Show it: scanflow show {record.name}"


def format_outcome(record: RunRecord) -> str:
    """Return the final state of a run, its duration, who else stopped it, and the next command."""
    after = "" if record.state == "failed" else _explain_stop(record)
    took = "" if record.seconds is None else f" in {format_duration(record.seconds)}"
    return f"{record.state}{took}. {after}".rstrip()


def _explain_stop(record: RunRecord) -> str:
    """Return why a run was stopped where it says so, which names the next command; else the next command."""
    return record.error if record.state == "stopped" and record.error else suggest_command(record)


def format_output(run: str, step: str, value: Any) -> list[str]:
    """Return the output of a run's step, on as many lines as it takes."""
    first, *rest = format_value(value, whole=f"scanflow output {run} {step} --json")
    return [f"{step} = {first}", *rest]


def format_runs(records: Sequence[RunRecord]) -> Screen:
    if not records:
        return ["There is no run yet. Start one: scanflow run app.py"]
    table = Table(
        ("run", "workflow", "state", "started", "took"),
        [
            (
                record.name,
                f"{record.app}:{record.workflow}",
                f"{MARKS[record.state]} {record.state}",
                format_age(record.created),
                "" if record.seconds is None else format_duration(record.seconds),
            )
            for record in records
        ],
    )
    return [table]


def format_files(files: Sequence[StepFile]) -> list[str]:
    """Return a line for each step: the first of the files that it left, and how many more there are."""
    by_step: dict[str, list[str]] = {}
    for file in files:
        step, _, index = file.task.partition(".")
        by_step.setdefault(step, []).append(
            f"{f'{index}/' if index else ''}{file.name} ({format_bytes(file.size_bytes)})"
        )
    lines = []
    for step, names in by_step.items():
        more = f", and {len(names) - MAX_SHOWN_FILES} more" if len(names) > MAX_SHOWN_FILES else ""
        lines.append(f"Files of {step}: {', '.join(names[:MAX_SHOWN_FILES])}{more}")
    return lines


def format_listed_files(files: Sequence[StepFile]) -> list[str]:
    return format_files(files) or ["The steps left no files in their output folders."]


def format_tasks(tasks: Sequence[TaskRecord]) -> list[Table]:
    """Return a row for each task, those of a fan-out, too."""
    return [Table(_STEP_COLUMNS, [_format_step(task.task, [task]) for task in tasks])]


def format_run(record: RunRecord, files: Sequence[StepFile] = (), *, in_notebook: bool = False) -> Screen:
    """Return a run: its state, its steps (a fan-out is one row), their files and folder, and the next command.

    ``in_notebook``: as for :func:`format_failure`.
    """
    took = "" if record.seconds is None else f" in {format_duration(record.seconds)}"
    workflow = f"{record.app}:{record.workflow}"
    head = f"{MARKS[record.state]} {record.name}  {workflow}  {record.state}{took}, {format_age(record.created)}"
    by_step: dict[str, list[TaskRecord]] = {}
    for task in record.tasks:
        by_step.setdefault(task.step, []).append(task)
    rows = [_format_step(step, tasks) for step, tasks in by_step.items()]
    steps = [Table(_STEP_COLUMNS, rows)] if rows else []
    failure = format_failure(record, in_notebook=in_notebook)
    after = {"failed": failure, "succeeded": []}.get(record.state, [_explain_stop(record)])
    notes = {task.step: f"  ! {task.step}: {task.cache_note}" for task in reversed(record.tasks) if task.cache_note}
    outputs = f"Outputs: {record.folder}/outputs"
    waits = [f"  … {task.task} waits for {task.waits_for}" for task in record.tasks if task.waits_for]
    devices = format_step_devices(record.tasks)
    return [head, *steps, *waits, *devices, *reversed(notes.values()), *format_files(files), outputs, *after]


def format_run_in_notebook(record: RunRecord) -> Screen:
    return format_run(record, in_notebook=True)


def format_check(
    app: str, plans: Sequence[Plan], types: Mapping[str, str], *, file: str, target: str | None
) -> list[str]:
    """Return a line on each checked workflow, and the command that runs or deploys it."""
    lines = []
    for plan in plans:
        size = f"{format_count(len(plan.steps), 'step')} in {format_count(plan.waves, 'wave')}"
        if types[plan.workflow] == "online":
            size = f"{format_count(len(plan.steps), 'node')} in each of {format_count(len(plan.instances), 'instance')}"
        lines.append(f"✓ {app}:{plan.workflow}  {size}")
        unused = [step.name for step in plan.steps if IMAGE_NOTE in step.notes]
        lines += [f"  ! {name}: {IMAGE_NOTE}: no containers are run on this machine" for name in unused]
    batch = [name for name, type in types.items() if type == "batch"]
    if len(batch) > 1:  # which of them can run first only their author knows
        return [*lines, f"{file} is valid. Run one of {', '.join(batch)}: scanflow run {target or file}:WORKFLOW"]
    command = "Run it: scanflow run" if batch or set(types.values()) != {"online"} else "Deploy it: scanflow deploy"
    return [*lines, f"{file} is valid. {command} {target or ''}".rstrip()]


def format_plan(plan: Plan, *, online: bool | None = None) -> Screen:
    """Return the steps that a workflow would run, and the resources it would take.

    ``online``: of an online workflow; None: if it has instances.
    """
    online = bool(plan.instances) if online is None else online
    if online:
        instances = [
            (
                instance.name,
                f"{instance.cores:g}",
                format_cpus(instance.cpus),
                f"node {format_cpus(instance.memory_nodes)}" if instance.memory_nodes else "-",
                str(instance.threads),
            )
            for instance in plan.instances
        ]
        size = f"{format_count(len(instances), 'instance')} on {_format_peak_cores(plan)}"
        return [
            format_planned_steps(plan, online=True),
            Table(("instance", "cores", "cpus", "memory of", "threads"), instances),
            *_format_objects(plan),
            *plan.notes,
            f"{size}. Nothing was started.",
        ]
    unsized = f", not counting {format_count(plan.unsized, 'step')} without a memory request" if plan.unsized else ""
    memory = format_bytes(plan.peak_memory_bytes)
    if plan.machine_memory_bytes < UNBOUNDED:
        memory += f" of {format_bytes(plan.machine_memory_bytes)}"
    most = f"At most {_format_peak_cores(plan)}{_format_peak_gpus(plan)} and {memory} memory at once{unsized}"
    table = format_planned_steps(plan, online=False)
    return [table, *_format_objects(plan), *plan.notes, f"{most}. Nothing was run."]


def format_planned_steps(plan: Plan, *, online: bool) -> Table:
    """Return the steps of a plan in the order of their start, or the nodes of an online workflow."""
    if online:
        nodes = [
            (step.name, step.runs, ", ".join(step.after) or "the request", ", ".join(step.notes).lower())
            for step in plan.steps
        ]
        return Table(("node", "runs", "after", "notes"), nodes)
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
    return Table(("wave", "step", "runs", "after", "cores", "memory", "notes"), steps)


def _format_peak_cores(plan: Plan) -> str:
    if plan.peak_cores >= UNBOUNDED:
        return "as many cores as there are"
    machine = f" of {plan.machine_cores:g}" if plan.machine_cores < UNBOUNDED else ""
    return f"{plan.peak_cores:g}{machine} cores"


def _format_peak_gpus(plan: Plan) -> str:
    if not plan.peak_gpus:
        return ""
    if plan.peak_gpus >= UNBOUNDED:
        return ", as many GPUs as there are"
    machine = f" of {plan.machine_gpus:g}" if plan.machine_gpus < UNBOUNDED else ""
    return f", {plan.peak_gpus:g}{machine} GPU{'' if plan.peak_gpus == 1 and not machine else 's'}"


def _format_objects(plan: Plan) -> Screen:
    """Return the cluster's objects that would be created or changed, and the number of unchanged ones."""
    rows = [
        (
            _CHANGES[change.change],
            change.kind,
            change.name,
            "; ".join([*change.fields, *([change.why] if change.why else [])]),
        )
        for change in plan.objects
        if change.change != "none"
    ]
    same = len(plan.objects) - len(rows)
    if not plan.objects:
        return []
    unchanged = [f"{format_count(same, 'object')} of the environment are unchanged."] if same else []
    return [*([Table(("", "object", "name", "changes"), rows)] if rows else []), *unchanged]


def format_task_record(record: TaskRecord) -> Screen:
    """Return one task, with the cause of its failure."""
    lines = [] if record.failure is None else [f"  {line}" for line in record.failure.lines()]
    return [*format_tasks([record]), *lines]


def _compute_time(tasks: Sequence[TaskRecord]) -> float:
    """Return the time from the start of a step's first task to the end of its last, as the run's page has it."""
    spans = [(task.began or 0.0, task.seconds or 0.0) for task in tasks if not task.origin and task.seconds is not None]
    return max(map(sum, spans)) - min(spans)[0] if spans else 0.0


def _format_step(step: str, tasks: Sequence[TaskRecord]) -> tuple[str, ...]:
    states = Counter(task.state for task in tasks)
    worst = next(
        state
        for state in ("failed", "running", "stopped", "pending", "succeeded", "skipped", "empty")
        if state in states
    )
    shown = f"{MARKS[worst]} " + (
        _STATE_WORDS.get(worst, worst) if len(states) == 1 else ", ".join(f"{n} {state}" for state, n in states.items())
    )
    if origins := {task.origin for task in tasks if task.origin}:
        shown = f"{MARKS['reused']} reused from {', '.join(sorted(origins))}"
    memory = max((task.max_rss_bytes or 0 for task in tasks), default=0)
    return (
        f"{step} ×{len(tasks)}" if any("." in task.task for task in tasks if task.task != step) else step,
        shown,
        format_optional(max(task.attempts for task in tasks) or None),
        format_seconds(_compute_time(tasks)),
        format_seconds(sum(task.cpu_s or 0.0 for task in tasks)),
        format_bytes(memory) if memory else "-",
    )
