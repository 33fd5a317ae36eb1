"""Draws the graph of a run: its steps with their states, a fan-out as one box with the states of its tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from markupsafe import Markup

from scanflow.app.quantities import format_duration
from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.backends.tasks import split_task
from scanflow.drawing import svg
from scanflow.drawing.graph_boxes import GraphNode
from scanflow.drawing.graph_drawing import draw_graph
from scanflow.drawing.graph_edges import GraphEdge

StepAddress = Callable[[str], str | None]
"""Maps a step to its page; None: it has none."""


def draw_run(run: RunRecord, *, address: StepAddress | None = None, width: float = svg.WIDTH) -> Markup:
    """Draw the graph of a run, from the record of a single run, which has its tasks and what they depend on."""
    tasks: defaultdict[str, list[TaskRecord]] = defaultdict(list)
    for task in run.tasks:
        tasks[task.step].append(task)
    parents = list_step_parents(run)
    nodes = [_build_node(step, own, None if address is None else address(step)) for step, own in tasks.items()]
    edges = [GraphEdge(source=parent, target=step) for step, own in parents.items() for parent in own]
    return draw_graph(nodes, edges, title=f"The steps of the run {run.name}: {run.state}", width=width)


def list_step_parents(run: RunRecord) -> dict[str, tuple[str, ...]]:
    """Return what each step in the record of a single run depends on; the ranks of an MPI job depend on the job."""
    steps = {task.step: split_task(task.task)[0] for task in run.tasks}
    parents = {step: run.parents.get(step, (job,)) for step, job in steps.items()}
    return {step: tuple(name for name in own if name in steps and name != step) for step, own in parents.items()}


def get_shown_state(task: TaskRecord) -> str:
    """Return the state of a task as it is shown: outputs of another run are reused."""
    return "reused" if task.origin is not None and task.state == "succeeded" else task.state


def _build_node(step: str, tasks: Sequence[TaskRecord], address: str | None) -> GraphNode:
    if len(tasks) > 1:
        return GraphNode(name=step, counts=Counter(map(get_shown_state, tasks)), address=address)
    [task] = tasks
    parts = ["" if task.seconds is None else format_duration(task.seconds)]
    parts += [f"attempt {task.attempts}"] if task.attempts > 1 else []
    tooltip = "\n".join(filter(None, _describe(task)))
    return GraphNode(
        name=step, state=get_shown_state(task), detail=", ".join(filter(None, parts)), tooltip=tooltip, address=address
    )


def _describe(task: TaskRecord) -> list[str]:
    failure = task.failure
    return [
        f"outputs of the run {task.origin}" if task.origin else "",
        task.cache_note or "",
        f"waits for {task.waits_for}" if task.waits_for else "",
        task.place or "",
        "" if failure is None else f"{failure.summary}: {failure.cause}" if failure.cause else failure.summary,
    ]
