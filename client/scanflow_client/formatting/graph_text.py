"""Graphs of runs and plans, for a terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from scanflow.app.plan import Plan
from scanflow.backends.run_drawing import get_shown_state, list_step_parents
from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.drawing.graph_boxes import get_urgency
from scanflow.drawing.states import get_state_look
from scanflow.drawing.text_graph import StyledText, TextGraph
from scanflow.errors import UnsupportedError


def build_run_graph(record: RunRecord) -> TextGraph:
    """Return the graph of the steps of a single run in their states.

    Raises:
        UnsupportedError: the record does not say what its steps depend on.
    """
    if not record.parents:
        raise UnsupportedError(
            f"What the steps of {record.name} depend on is not known: the server is older. Start it again (scanflow "
            "down, scanflow up), or leave out --graph."
        )
    tasks: dict[str, list[TaskRecord]] = defaultdict(list)
    for task in record.tasks:
        tasks[task.step].append(task)
    states = {step: Counter(map(get_shown_state, own)) for step, own in tasks.items()}

    def label(steps: Sequence[str]) -> StyledText:
        total = sum((states[step] for step in steps), Counter[str]())
        look = get_state_look(choose_worst(total))
        width = sum(len(tasks[step]) for step in steps)
        is_fan_out = len(steps) == 1 and any("." in task.task for task in tasks[steps[0]])
        counts = f": {format_counts(total)}" if len(total) > 1 else ""
        return StyledText(f"{look.mark} {_name_steps(steps)}{f' ×{width}' if is_fan_out else ''}{counts}", look.colour)

    shown = sorted({state for counts in states.values() for state in counts}, key=get_urgency)
    looks = [(get_state_look(state), state) for state in shown]
    legend = tuple(StyledText(f"{look.mark} {state}", look.colour) for look, state in looks)
    return TextGraph(
        list_step_parents(record), label, {step: choose_worst(own) for step, own in states.items()}, legend
    )


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
    return min(states, key=get_urgency)


def format_counts(states: Mapping[str, int]) -> str:
    """Return how many tasks are in which state, the most first: ``97 ✓ 2 ✗ 1 ●``."""
    most_first = sorted(states, key=lambda state: (-states[state], get_urgency(state)))
    return " ".join(f"{states[state]} {get_state_look(state).mark}" for state in most_first)


def _name_steps(steps: Sequence[str]) -> str:
    return steps[0] if len(steps) == 1 else f"{steps[0]} +{len(steps) - 1}"
