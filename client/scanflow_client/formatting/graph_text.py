"""Graphs of runs and plans, for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scanflow.app.plan import Plan
from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.drawing.states import STATE_LOOKS, get_state_look
from scanflow.drawing.text_graph import StyledText, TextGraph

REUSED = "reused"
_WORST_FIRST = ("failed", "running", "stopped", "pending", "succeeded", REUSED, "empty", "skipped")
"""The state that several tasks are shown in is the first of these that any of them has."""

_COUNTED_FIRST = ("succeeded", REUSED, "failed", "stopped", "running", "pending", "empty", "skipped")


def build_run_graph(record: RunRecord, parents: Mapping[str, Sequence[str]]) -> TextGraph:
    """Return the graph of a run's steps in their states; ``parents``: the steps that each depends on."""
    tasks: dict[str, list[TaskRecord]] = {step: [] for step in parents}
    for task in record.tasks:
        tasks.setdefault(task.step, []).append(task)
    states = {step: Counter(map(_get_state, own)) or Counter(["pending"]) for step, own in tasks.items()}

    def label(steps: Sequence[str]) -> StyledText:
        total = sum((states[step] for step in steps), Counter[str]())
        look = get_state_look(choose_worst(total))
        width = sum(len(tasks[step]) for step in steps)
        is_fan_out = len(steps) == 1 and any("." in task.task for task in tasks[steps[0]])
        counts = f": {format_counts(total)}" if len(total) > 1 else ""
        return StyledText(f"{look.mark} {_name_steps(steps)}{f' ×{width}' if is_fan_out else ''}{counts}", look.colour)

    shown = sorted({state for counts in states.values() for state in counts}, key=_WORST_FIRST.index)
    looks = [(get_state_look(state), state) for state in shown]
    legend = tuple(StyledText(f"{look.mark} {state}", look.colour) for look, state in looks)
    known_parents = {step: tuple(parents.get(step, ())) for step in tasks}
    return TextGraph(known_parents, label, {step: choose_worst(own) for step, own in states.items()}, legend)


def build_plan_graph(plan: Plan) -> TextGraph:
    """Return the graph of the steps of a batch workflow, or of the nodes of an online one."""
    widths = {step.name: "" if step.width == 1 else f" ×{step.width or '?'}" for step in plan.steps}

    def label(steps: Sequence[str]) -> StyledText:
        return StyledText(f"· {_name_steps(steps)}{widths[steps[0]] if len(steps) == 1 else ''}")

    return TextGraph(
        {step.name: step.after for step in plan.steps}, label, {step.name: step.runs for step in plan.steps}
    )


def choose_worst(states: Iterable[str]) -> str:
    """Return the state in which several tasks are shown as one."""
    return min(states, key=_WORST_FIRST.index)


def format_counts(states: Mapping[str, int]) -> str:
    """Return how many tasks are in which state: ``97 ✓ 2 ✗``."""
    return " ".join(f"{states[state]} {STATE_LOOKS[state].mark}" for state in sorted(states, key=_COUNTED_FIRST.index))


def _get_state(task: TaskRecord) -> str:
    return REUSED if task.origin else task.state


def _name_steps(steps: Sequence[str]) -> str:
    return steps[0] if len(steps) == 1 else f"{steps[0]} +{len(steps) - 1}"
