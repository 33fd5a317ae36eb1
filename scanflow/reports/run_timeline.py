"""A run's tasks over time: when each began, how long it took, and how it ended. Long fan-outs are folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo

from markupsafe import Markup

from scanflow.app.quantities import format_count, format_duration
from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.drawing import svg
from scanflow.drawing.states import StateLook, get_state_look
from scanflow.drawing.time_bars import Density, TimeBar, TimeRow, compute_density, draw_time_bars
from scanflow.graphs import list_ancestors

MOST = 40
"""How many rows are drawn before items are folded."""

LEAST_WAIT = 0.05
"""The share of the time that a run waits before its first task from which on that is drawn."""

URGENT = ("failed", "running", "stopped", "pending")
"""States that stand for a group in which a task has them, the first of them."""

Address = Callable[[str], str]
"""Returns the address of a task's page, by its name; empty: it has none."""

_Group = tuple[str, Sequence[TaskRecord]]


def draw_run_timeline(
    record: RunRecord,
    *,
    now: float | None = None,
    parents: Mapping[str, Sequence[str]] | None = None,
    address: Address | None = None,
    most: int = MOST,
    width: float = svg.WIDTH,
    zone: tzinfo = UTC,
) -> Markup:
    """Draw a bar for each task of a run, sorted by start; those that have not begun are last.

    Args:
        record: The run with its tasks.
        now: Until when running tasks are drawn. None: the last time that is known.
        parents: The steps that each step depends on. With them, the tasks that decided how long the run took are
            emphasised; from times alone they are not known.
        address: Of a task's page.
        most: From how many rows on items are a bar for each step, and then the shortest steps one.
    """
    end = _compute_last_time(record) if now is None else now
    critical = frozenset[str]() if parents is None else list_critical_tasks(record.tasks, parents, end)
    groups = sorted(_group_tasks(record.tasks), key=lambda group: _compute_start(group[1]))
    rows = [
        *_draw_wait(record, end),
        *(
            row
            for group, folded in _fold(groups, most)
            for row in (_draw_folded(group, end, critical) if folded else _draw_group(group, end, critical, address))
        ),
    ]
    running = end if now is not None and record.state == "running" else None
    span = (min([record.created, *(task.began for task in record.tasks if task.began is not None)]), end)
    heading = _format_heading(record, end) + (" Underlined: the critical path." if critical else "")
    return draw_time_bars(
        f"Tasks of {record.name} over time", rows, heading=heading, span=span, now=running, width=width, zone=zone
    )


def _draw_wait(record: RunRecord, end: float) -> Iterator[TimeRow]:
    """Yield the time before the first task, if it can be seen: a run waits for its turn and its processes start."""
    first = min((task.began for task in record.tasks if task.began is not None), default=end)
    if first - record.created > LEAST_WAIT * (end - record.created):
        took = format_duration(first - record.created)
        bar = TimeBar(record.created, first, "soft", outline=True)
        yield TimeRow("before the first task", f"before the first task: {took}", [bar], label=took)


def list_critical_tasks(
    tasks: Iterable[TaskRecord], parents: Mapping[str, Sequence[str]], now: float
) -> frozenset[str]:
    """Return the tasks that decided how long a run took: the one that ended last, and that of the steps it waited for.

    Of a step with several tasks, it is the one that ended last.
    """
    last: dict[str, tuple[float, TaskRecord]] = {}
    for task in tasks:
        if task.began is not None and task.origin is None:
            last[task.step] = max(
                last.get(task.step, (0.0, task)), (_compute_end(task, now), task), key=lambda pair: pair[0]
            )
    names, steps = set[str](), set(last)
    while steps:
        step = max(steps, key=lambda name: last[name][0])
        names.add(last[step][1].task)
        steps = last.keys() & list_ancestors(parents, step) if step in parents else set()
    return frozenset(names)


def _group_tasks(tasks: Sequence[TaskRecord]) -> Iterator[_Group]:
    by_step: dict[str, list[TaskRecord]] = {}
    for task in tasks:
        by_step.setdefault(task.step, []).append(task)
    return iter(by_step.items())


def _compute_start(tasks: Sequence[TaskRecord]) -> float:
    return min((task.began for task in tasks if task.began is not None), default=float("inf"))


def _compute_end(task: TaskRecord, now: float) -> float:
    if task.began is None or (task.seconds is None and task.state == "running"):
        return now
    return task.began + (task.seconds or 0.0)


def _compute_last_time(record: RunRecord) -> float:
    ends = [task.began + (task.seconds or 0.0) for task in record.tasks if task.began is not None]
    return max([record.created + (record.seconds or 0.0), *ends])


def _fold(groups: Sequence[_Group], most: int) -> Iterator[tuple[_Group, bool]]:
    """Yield the groups to draw, and whether each is one row: the largest are folded, then the shortest become one."""
    rows = sum(_count_rows(tasks) for _, tasks in groups)
    folded = set[str]()
    for step, tasks in sorted(groups, key=lambda group: -len(group[1])):
        if rows > most and len(tasks) > 1:
            folded.add(step)
            rows -= _count_rows(tasks) - 1
    if rows <= most:
        yield from ((group, group[0] in folded) for group in groups)
        return
    long = {step for step, _ in sorted(groups, key=_rank_group)[: most - 1]}
    yield from ((group, group[0] in folded) for group in groups if group[0] in long)
    rest = [group for group in groups if group[0] not in long]
    yield (format_count(len(rest), "other step"), [task for _, tasks in rest for task in tasks]), True


def _rank_group(group: _Group) -> tuple[bool, float]:
    """Return what sorts groups that matter first: those that failed or run, then those that took longest."""
    _, tasks = group
    return not {"failed", "running"} & {task.state for task in tasks}, -sum(task.seconds or 0.0 for task in tasks)


def _count_rows(tasks: Sequence[TaskRecord]) -> int:
    return 1 if len(tasks) == 1 else len(tasks) + 1


def _draw_group(group: _Group, now: float, critical: frozenset[str], address: Address | None) -> Iterator[TimeRow]:
    step, tasks = group
    if len(tasks) > 1:
        yield _build_step_row(step, tasks, now, strong=False)
    for task in sorted(tasks, key=lambda task: _compute_start([task])):
        yield _build_task_row(task, now, task.task in critical, address, indent=int(len(tasks) > 1))


def _draw_folded(group: _Group, now: float, critical: frozenset[str]) -> Iterator[TimeRow]:
    step, tasks = group
    row = _build_step_row(step, tasks, now, strong=any(task.task in critical for task in tasks))
    spans = [(task.began, _compute_end(task, now)) for task in tasks if task.began is not None]
    if not row.bars:
        yield row
        return
    failures = [
        TimeBar(_compute_end(task, now), _compute_end(task, now), "red", words=_format_task(task, now))
        for task in tasks
        if task.state == "failed" and task.began is not None
    ]
    usual, _ = Counter(map(_get_look, (task for task in tasks if task.began is not None))).most_common(1)[0]
    density = Density(compute_density(spans, row.bars[0].begin, row.bars[0].end), usual.colour)
    yield row._replace(bars=[*row.bars, *failures[:MOST]], density=density)


def _build_task_row(task: TaskRecord, now: float, strong: bool, address: Address | None, *, indent: int) -> TimeRow:
    look = _get_look(task)
    bars = []
    if task.began is not None:
        bars.append(TimeBar(task.began, _compute_end(task, now), look.colour, outline=task.origin is not None))
    return TimeRow(
        name=task.task,
        words=_format_task(task, now),
        bars=bars,
        label=_format_label(task, now),
        mark=look.mark,
        colour=look.colour,
        address="" if address is None else address(task.task),
        indent=indent,
        strong=strong,
    )


def _build_step_row(step: str, tasks: Sequence[TaskRecord], now: float, *, strong: bool) -> TimeRow:
    counts = Counter("reused" if task.origin else task.state for task in tasks)
    state = next((state for state in URGENT if counts[state]), max(counts, key=lambda name: counts[name]))
    look, began = get_state_look(state), _compute_start(tasks)
    ends = [_compute_end(task, now) for task in tasks if task.began is not None]
    bars = [TimeBar(began, max(ends), look.colour, outline=True)] if ends else []
    listed = ", ".join(f"{counts[name]:,} {name}" for name in sorted(counts, key=lambda name: -counts[name]))
    took = f" in {format_duration(max(ends) - began)}" if ends else ""
    words = f"{step}: {format_count(len(tasks), 'task')}, {listed}{took}"
    label = f"{format_count(len(tasks), 'task')}{took}" + "".join(
        f", {get_state_look(name).mark} {counts[name]:,} {name}" for name in ("failed", "running") if counts[name]
    )
    return TimeRow(step, words, bars, label=label, mark=look.mark, colour=look.colour, strong=strong)


def _get_look(task: TaskRecord) -> StateLook:
    return get_state_look("reused" if task.origin else task.state)


def _format_label(task: TaskRecord, now: float) -> str:
    parts = []
    if task.origin is not None:
        parts.append("reused")
    elif task.began is None:
        parts.append(task.state)
    else:
        parts.append(format_duration(_compute_end(task, now) - task.began))
    return ", ".join([*parts, *([f"attempt {task.attempts}"] if task.attempts > 1 else [])])


def _format_task(task: TaskRecord, now: float) -> str:
    """Format all that is known of a task, for its tooltip."""
    state = f"reused from {task.origin}" if task.origin is not None else task.state
    parts = [f"{task.task}: {state}"]
    if task.began is not None and task.origin is None:
        parts.append(format_duration(_compute_end(task, now) - task.began))
    if task.attempts > 1:
        parts.append(f"attempt {task.attempts}; the earlier ones are not drawn")
    if task.place:
        parts.append(f"on {task.place}")
    if task.failure is not None:
        parts.append(task.failure.cause or task.failure.summary)
    return ", ".join(parts)


def _format_heading(record: RunRecord, now: float) -> str:
    took = record.seconds if record.seconds is not None else now - record.created
    counts = {
        "reused": sum(task.origin is not None for task in record.tasks),
        "retried": sum(task.attempts > 1 for task in record.tasks),
    }
    more = "".join(f", {count:,} {word}" for word, count in counts.items() if count)
    look = get_state_look(record.state)
    return f"{look.mark} {record.state}, {format_duration(took)}, {format_count(len(record.tasks), 'task')}{more}."
