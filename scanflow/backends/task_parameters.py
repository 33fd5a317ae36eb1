"""Inputs of the steps of a run: resolved references, expanded fan-outs, output paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanflow.app.annotations import Exact
from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.tasks import format_task_name, split_task
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.names import StepName

RESULT = "result"
"""The output with the return value of a step's function."""

ReadOutputs = Callable[[StepName], Mapping[str, Any]]
"""Maps a finished task to its named outputs."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value without references, and which parts of it are as a function returned them."""

    value: Any
    exact: Exact = False

    def pick(self, key: str) -> Resolved:
        """Return a part of a fan-out's item."""
        try:
            value = self.value[key]
        except (KeyError, TypeError, IndexError) as error:
            raise NotFoundError(
                f"The item {self.value!r:.60} has no {key!r}, which sf.item[{key!r}] refers to."
            ) from error
        return Resolved(value, self.exact.get(key, False) if isinstance(self.exact, dict) else self.exact is True)


NO_ITEM = Resolved(None)
"""The item of a step that is not fanned out."""


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
        self._functions = {node.name for node in definition.workflow.steps if node.target is not None}
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
        return node.when.holds(self._look_up(node.when.left).value)

    def expand_tasks(self, node: Executor) -> list[tuple[StepName, Resolved]]:
        """Return a step's tasks, each with its fan-out item.

        Raises:
            InvalidError: the value it fans out over is not a list, or longer than allowed.
        """
        items = self._expand_items(node)
        self._widths[node.name] = None if items is None else len(items)
        if items is None:
            return [(format_task_name(node.name, None), NO_ITEM)]
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

    def resolve_parameters(self, node: Executor, item: Resolved = NO_ITEM) -> Resolved:
        """Return a task's parameters, a mapping, with references resolved."""
        return self._resolve(node.parameters, item)

    def _expand_items(self, node: Executor) -> list[Resolved] | None:
        if node.for_each is None:
            return None
        if isinstance(node.for_each, Ref):
            output = self._look_up(node.for_each)
            if isinstance(output.value, str | bytes | Mapping) or not hasattr(output.value, "__iter__"):
                raise InvalidError(
                    f"The step {node.name!r} runs for each item of {str(node.for_each)!r}, which is "
                    f"{output.value!r:.60} in this run, not a list."
                )
            items = [Resolved(item, output.exact) for item in _order_items(output.value, node.name)]
        else:
            items = [self._resolve(value, NO_ITEM) for value in node.for_each]
        if len(items) > self._max_fan_out:
            raise InvalidError(
                f"The step {node.name!r} would fan out to {len(items):,} tasks, more than the {self._max_fan_out:,} "
                f"allowed. Raise the limit with SCANFLOW_MAX_FAN_OUT={len(items)}."
            )
        return items

    def _look_up(self, ref: Ref) -> Resolved:
        """Return an output of an earlier step: None if it was skipped, a list if it was fanned out."""
        step = ref.step or ""
        if step in self._skipped:
            return Resolved(None, exact=True)
        width = self._widths.get(step)
        if width is None:
            return self._pick(ref, format_task_name(step, None))
        parts = [self._pick(ref, format_task_name(step, index)) for index in range(width)]
        return Resolved([part.value for part in parts], exact=all(part.exact for part in parts))

    def _pick(self, ref: Ref, task: StepName) -> Resolved:
        """Return a task's output. What a script or ``sf.output`` wrote is JSON, which an annotation may convert."""
        outputs, step = self._read(task), ref.step or ""
        is_returned = ref.output == RESULT or ref.output not in outputs
        return Resolved(pick_output(outputs, ref.output, step), exact=is_returned and step in self._functions)

    def _resolve(self, value: Any, item: Resolved) -> Resolved:
        if isinstance(value, Ref):
            if value.step is not None:
                return self._look_up(value)
            return item.pick(value.output) if value.output else item
        if isinstance(value, str) and (value == self._output_dir or value.startswith(f"{self._output_dir}/")):
            return Resolved(str(self._outputs / value[len(self._output_dir) :].lstrip("/")))
        if isinstance(value, Mapping):
            parts = {key: self._resolve(inner, item) for key, inner in value.items()}
            exact: dict[str, Exact] = {key: part.exact for key, part in parts.items() if part.exact}
            return Resolved({key: part.value for key, part in parts.items()}, exact or False)
        if isinstance(value, list | tuple):
            elements = [self._resolve(inner, item) for inner in value]
            marks = [element.exact for element in elements]
            return Resolved([element.value for element in elements], marks if any(marks) else False)
        return Resolved(value)


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
