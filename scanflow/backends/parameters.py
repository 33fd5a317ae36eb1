"""A step's parameters with the values they have at run time: references looked up, the output folder's real place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.errors import InvalidError, NotFoundError

Lookup = Callable[[str, str], Any]
"""``(step, output) -> value``; None where the step was skipped, a list where it was fanned out."""


def resolve_parameters(node: Executor, *, item: Any, lookup: Lookup, output_dir: str, outputs: Path) -> dict[str, Any]:
    return {name: _resolve(value, item, lookup, output_dir, outputs) for name, value in node.parameters.items()}


def items_of(node: Executor, *, lookup: Lookup, output_dir: str, outputs: Path, at_most: int) -> list[Any] | None:
    """Return what a step fans out over, or None if it does not. References inside a list are looked up.

    Raises:
        InvalidError: it turned out not to be a list, or to be wider than allowed.
    """
    if node.for_each is None:
        return None
    if isinstance(node.for_each, Ref):
        found = lookup(node.for_each.step or "", node.for_each.output)
        if isinstance(found, str | bytes | Mapping) or not hasattr(found, "__iter__"):
            raise InvalidError(
                f"The step {node.name!r} runs for each item of {str(node.for_each)!r}, which turned out to be "
                f"{found!r:.60}, not a list."
            )
        items = list(found)
    else:
        items = [_resolve(one, None, lookup, output_dir, outputs) for one in node.for_each]
    if len(items) > at_most:
        raise InvalidError(
            f"The step {node.name!r} would fan out to {len(items):,} tasks, more than the {at_most:,} allowed. "
            f"Raise the limit with SCANFLOW_MAX_FAN_OUT={len(items)}."
        )
    return items


def _resolve(value: Any, item: Any, lookup: Lookup, output_dir: str, outputs: Path) -> Any:
    if isinstance(value, Ref):
        return _item_part(value, item) if value.step is None else lookup(value.step, value.output)
    if isinstance(value, str) and (value == output_dir or value.startswith(f"{output_dir}/")):
        return str(outputs / value[len(output_dir) :].lstrip("/"))
    if isinstance(value, Mapping):
        return {key: _resolve(inner, item, lookup, output_dir, outputs) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_resolve(inner, item, lookup, output_dir, outputs) for inner in value]
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
