"""Inputs of the steps of a run: resolved references, expanded fan-outs, output paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.backends.port import RunDefinition
from scanflow.backends.tasks import format_task_name, split_task
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.names import StepName

RESULT = "result"
"""The output with the return value of a step's function."""

ReadOutputs = Callable[[StepName], Mapping[str, Any]]
"""Maps a finished task to its named outputs."""


def pick_output(outputs: Mapping[str, Any], name: str, step: str) -> Any:
    """Return a named output, or the value at that key in a returned mapping.

    Raises:
        NotFoundError: the step left no such output.
    """
    if name in outputs:
        return outputs[name]
    result = outputs.get(RESULT)
    if isinstance(result, Mapping) and name in result:
        return result[name]
    names = [key for key in outputs if key != RESULT] + (list(result) if isinstance(result, Mapping) else [])
    advice = did_you_mean(name, [str(key) for key in names]) or " A script names outputs with sf.output(name, value)."
    raise NotFoundError(f"The step {step!r} has no output {name!r}.{advice}")


class StepInputs:
    """The tasks of each step and their parameters, once the steps before it have ended."""

    def __init__(self, definition: RunDefinition, *, read: ReadOutputs, outputs: Path, max_fan_out: int) -> None:
        """``<output_dir>/...`` in text resolves to the path below ``outputs``."""
        self._output_dir, self._only = definition.workflow.output_dir, definition.step
        self._read, self._outputs, self._max_fan_out = read, outputs, max_fan_out
        self._widths: dict[str, int | None] = {}
        self._skipped: set[str] = set()

    def skip(self, step: str) -> None:
        """Mark a step as skipped, so that references to it resolve to None."""
        self._skipped.add(step)

    def is_condition_met(self, node: Executor) -> bool:
        if node.when is None:
            return True
        if node.when.left.step in self._skipped:
            return node.when.holds_if_skipped()
        return node.when.holds(self._look_up(node.when.left))

    def expand_tasks(self, node: Executor) -> list[tuple[StepName, Any]]:
        """Return a step's tasks, each with its fan-out item.

        Raises:
            InvalidError: the value it fans out over is not a list, or longer than allowed.
        """
        items = self._expand_items(node)
        self._widths[node.name] = None if items is None else len(items)
        if items is None:
            return [(format_task_name(node.name, None), None)]
        tasks = [(format_task_name(node.name, index), item) for index, item in enumerate(items)]
        step, index = split_task(self._only or "")
        if step != node.name or index is None:
            return tasks
        if chosen := [task for task in tasks if task[0] == self._only]:
            return chosen
        raise NotFoundError(
            f"The step {node.name!r} has {len(tasks)} tasks, numbered from {node.name}.0; there is no {self._only!r}."
        )

    def list_tasks(self, step: str) -> list[StepName]:
        """Return the tasks that an earlier step had, whose condition and items are known: none if it was skipped."""
        if step in self._skipped:
            return []
        width = self._widths.get(step)
        if width is None:
            return [format_task_name(step, None)]
        return [format_task_name(step, index) for index in range(width)]

    def resolve_parameters(self, node: Executor, item: Any) -> dict[str, Any]:
        """Return a task's parameters with references resolved."""
        return {name: self._resolve(value, item) for name, value in node.parameters.items()}

    def _expand_items(self, node: Executor) -> list[Any] | None:
        if node.for_each is None:
            return None
        if isinstance(node.for_each, Ref):
            output = self._look_up(node.for_each)
            if isinstance(output, str | bytes | Mapping) or not hasattr(output, "__iter__"):
                raise InvalidError(
                    f"The step {node.name!r} runs for each item of {str(node.for_each)!r}, which is "
                    f"{output!r:.60} in this run, not a list."
                )
            items = _order_items(output, node.name)
        else:
            items = [self._resolve(value, None) for value in node.for_each]
        if len(items) > self._max_fan_out:
            raise InvalidError(
                f"The step {node.name!r} would fan out to {len(items):,} tasks, more than the {self._max_fan_out:,} "
                f"allowed. Raise the limit with SCANFLOW_MAX_FAN_OUT={len(items)}."
            )
        return items

    def _look_up(self, ref: Ref) -> Any:
        """Return an output of an earlier step: None if it was skipped, a list if it was fanned out."""
        step = ref.step or ""
        if step in self._skipped:
            return None
        width = self._widths.get(step)
        if width is None:
            return pick_output(self._read(format_task_name(step, None)), ref.output, step)
        return [pick_output(self._read(format_task_name(step, index)), ref.output, step) for index in range(width)]

    def _resolve(self, value: Any, item: Any) -> Any:
        if isinstance(value, Ref):
            return _get_item_part(value, item) if value.step is None else self._look_up(value)
        if isinstance(value, str) and (value == self._output_dir or value.startswith(f"{self._output_dir}/")):
            return str(self._outputs / value[len(self._output_dir) :].lstrip("/"))
        if isinstance(value, Mapping):
            return {key: self._resolve(inner, item) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._resolve(inner, item) for inner in value]
        return value


def _order_items(output: Any, step: str) -> list[Any]:
    """Return the items of a fan-out, in the same order each time they are read; a set has another in each process.

    Raises:
        InvalidError: a set has items whose text is not the same each time.
    """
    if not isinstance(output, Set):
        return list(output)
    texts = [(type(item).__qualname__, repr(item), item) for item in output]
    if any(_IDENTITY.search(text) for _, text, _ in texts):
        raise InvalidError(
            f"The step {step!r} runs for each item of a set, whose items have no order that stays the same. Return a "
            "list, as in sorted(items)."
        )
    return [item for _, _, item in sorted(texts, key=lambda text: text[:2])]


_IDENTITY = re.compile(r" at 0x[0-9a-fA-F]+>")


def _get_item_part(ref: Ref, item: Any) -> Any:
    if not ref.output:
        return item
    try:
        return item[ref.output]
    except (KeyError, TypeError, IndexError) as error:
        raise NotFoundError(
            f"The item {item!r:.60} has no {ref.output!r}, which sf.item[{ref.output!r}] refers to."
        ) from error
