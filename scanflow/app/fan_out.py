"""``sf.zipped`` and ``sf.crossed``: a fan-out over several parameters. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scanflow.app.edges import Linkable
from scanflow.app.model import shorten
from scanflow.app.references import Ref
from scanflow.errors import InvalidError


@dataclass(frozen=True, slots=True)
class FanOut:
    """What a step runs for: parameters by name, for each of its tasks."""

    names: tuple[str, ...]
    items: tuple[Mapping[str, Any], ...]


def zipped(**lists: Sequence[Any]) -> FanOut:
    """Return a fan-out over the first values of all lists, then the second ones, and so on.

    ``train.map(sf.zipped(rate=[0.1, 0.2], depth=[3, 4]))`` trains twice.

    Raises:
        InvalidError: they are not lists of one length.
    """
    values = _check_lists("zipped", lists)
    lengths = {name: len(items) for name, items in values.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InvalidError(
            f"sf.zipped takes lists of one length, but {counts}. Write all combinations with sf.crossed."
        )
    return FanOut(
        tuple(values), tuple(dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))
    )


def crossed(**lists: Sequence[Any]) -> FanOut:
    """Return a fan-out over all combinations of the lists' values; the last list's value changes first.

    ``train.map(sf.crossed(rate=[0.1, 0.2], depth=[3, 4]))`` trains four times.

    Raises:
        InvalidError: one is not a list.
    """
    values = _check_lists("crossed", lists)
    return FanOut(
        tuple(values), tuple(dict(zip(values, row, strict=True)) for row in itertools.product(*values.values()))
    )


def choose_fan_out(arguments: Mapping[str, Any], takes_list: Callable[[str, Any], bool], name: str) -> str:
    """Return the argument of ``name.map(...)`` that it runs for each item of.

    That is the only list for a parameter that is none itself; without a list, the only output of another step.

    Raises:
        InvalidError: there is none, or it is not clear which one.
    """
    lists = [
        key
        for key, value in arguments.items()
        if isinstance(value, list | tuple | range) and not takes_list(key, value)
    ]
    outputs = [
        key
        for key, value in arguments.items()
        if (isinstance(value, Linkable) or (isinstance(value, Ref) and value.step is not None))
        and not takes_list(key, [])
    ]
    choices = lists or outputs
    if len(choices) == 1:
        return choices[0]
    if len(lists) > 1:
        both = ", ".join(f"{key}=..." for key in lists)
        raise InvalidError(
            f"The step {name!r} is mapped over several lists: {', '.join(lists)}. Say how to combine "
            f"them: {name}.map(sf.zipped({both})) runs it for the first value of each, then the second of each, and "
            f"sf.crossed({both}) for all combinations. If a list is one value, annotate its parameter: list[int]."
        )
    which = f"which of {', '.join(outputs)} it runs" if outputs else "what it runs"
    raise InvalidError(
        f"The step {name!r} does not say {which} for each item of. Write that first: {name}.map(items, ...). Its items "
        "go to the first parameter that is not given."
    )


def _check_lists(how: str, lists: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
    if not lists:
        raise InvalidError(f"sf.{how} names no list. Write sf.{how}(rate=[0.1, 0.2], depth=[3, 4]).")
    for name, value in lists.items():
        if isinstance(value, Linkable | Ref):
            raise InvalidError(
                f"sf.{how} knows its lists when the workflow is defined, and {name!r} is the output of a step. Write a "
                "step that returns the list of combinations, map over its output, and give sf.item['...'] to the "
                "parameters."
            )
        if not isinstance(value, list | tuple | range):
            raise InvalidError(f"sf.{how} takes lists, and {name!r} is {shorten(value)}. Write {name}=[...].")
    return lists
