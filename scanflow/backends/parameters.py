"""What the steps of a run are given: references looked up, fan-outs spread, the output folder's real place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.backends.port import RunDefinition
from scanflow.backends.tasks import split_task, task_name
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.names import StepName

RESULT = "result"
"""The output that holds what a step's function returned."""

ReadOutputs = Callable[[StepName], Mapping[str, Any]]
"""From a task that has finished to its named outputs."""


def pick_output(outputs: Mapping[str, Any], name: str, step: str) -> Any:
    """Return a named output, or the key of that name of a returned mapping.

    Raises:
        NotFoundError: the step left no such output.
    """
    if name in outputs:
        return outputs[name]
    result = outputs.get(RESULT)
    if isinstance(result, Mapping) and name in result:
        return result[name]
    known = [key for key in outputs if key != RESULT] + (list(result) if isinstance(result, Mapping) else [])
    advice = did_you_mean(name, [str(key) for key in known]) or " A script names outputs with sf.output(name, value)."
    raise NotFoundError(f"The step {step!r} left no output {name!r}.{advice}")


class StepInputs:
    """The tasks of each step and what they are given, once the steps before it have ended."""

    def __init__(self, definition: RunDefinition, *, read: ReadOutputs, outputs: Path, max_fan_out: int) -> None:
        """``<output_dir>/...`` in text becomes the real path below ``outputs``."""
        self._output_dir, self._only = definition.workflow.output_dir, definition.step
        self._read, self._outputs, self._max_fan_out = read, outputs, max_fan_out
        self._widths: dict[str, int | None] = {}
        self._skipped: set[str] = set()

    def skip(self, step: str) -> None:
        """Note that a step was skipped, so that references to it give None."""
        self._skipped.add(step)

    def condition_holds(self, node: Executor) -> bool:
        return node.when is None or node.when.holds(self._look_up(node.when.left))

    def tasks_of(self, node: Executor) -> list[tuple[StepName, Any]]:
        """Return a step's tasks, each with its item.

        Raises:
            InvalidError: what it fans out over is not a list, or wider than allowed.
        """
        items = self._items_of(node)
        self._widths[node.name] = None if items is None else len(items)
        if items is None:
            return [(task_name(node.name, None), None)]
        tasks = [(task_name(node.name, index), item) for index, item in enumerate(items)]
        step, index = split_task(self._only or "")
        if step != node.name or index is None:
            return tasks
        if chosen := [task for task in tasks if task[0] == self._only]:
            return chosen
        raise NotFoundError(f"The step {node.name!r} has {len(tasks)} tasks, from {node.name}.0: no {self._only!r}.")

    def parameters(self, node: Executor, item: Any) -> dict[str, Any]:
        """Return a task's parameters with the values they have now."""
        return {name: self._resolve(value, item) for name, value in node.parameters.items()}

    def _items_of(self, node: Executor) -> list[Any] | None:
        if node.for_each is None:
            return None
        if isinstance(node.for_each, Ref):
            found = self._look_up(node.for_each)
            if isinstance(found, str | bytes | Mapping) or not hasattr(found, "__iter__"):
                raise InvalidError(
                    f"The step {node.name!r} runs for each item of {str(node.for_each)!r}, which turned out to be "
                    f"{found!r:.60}, not a list."
                )
            items = list(found)
        else:
            items = [self._resolve(one, None) for one in node.for_each]
        if len(items) > self._max_fan_out:
            raise InvalidError(
                f"The step {node.name!r} would fan out to {len(items):,} tasks, more than the {self._max_fan_out:,} "
                f"allowed. Raise the limit with SCANFLOW_MAX_FAN_OUT={len(items)}."
            )
        return items

    def _look_up(self, ref: Ref) -> Any:
        """Return an output of an earlier step: None where it was skipped, a list where it was fanned out."""
        step = ref.step or ""
        if step in self._skipped:
            return None
        width = self._widths.get(step)
        if width is None:
            return pick_output(self._read(task_name(step, None)), ref.output, step)
        return [pick_output(self._read(task_name(step, index)), ref.output, step) for index in range(width)]

    def _resolve(self, value: Any, item: Any) -> Any:
        if isinstance(value, Ref):
            return _item_part(value, item) if value.step is None else self._look_up(value)
        if isinstance(value, str) and (value == self._output_dir or value.startswith(f"{self._output_dir}/")):
            return str(self._outputs / value[len(self._output_dir) :].lstrip("/"))
        if isinstance(value, Mapping):
            return {key: self._resolve(inner, item) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._resolve(inner, item) for inner in value]
        return value


def _item_part(ref: Ref, item: Any) -> Any:
    if not ref.output:
        return item
    try:
        return item[ref.output]
    except (KeyError, TypeError, IndexError) as error:
        raise NotFoundError(
            f"The item {item!r:.60} has no {ref.output!r}, which sf.item[{ref.output!r}] asks for."
        ) from error
