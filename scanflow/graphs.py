"""Directed graphs of names: order, levels, cycles. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from scanflow.errors import InvalidError

_MAX_SHOWN = 20


def collect_parents(names: Iterable[str], edges: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the dependencies of each name, without duplicates, in the order of the edges."""
    parents: dict[str, dict[str, None]] = {name: {} for name in names}
    for before, after in edges:
        parents[after][before] = None
    return {name: tuple(before) for name, before in parents.items()}


def compute_levels(parents: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return the names in waves; those of one wave may run at the same time. InvalidError shows a cycle."""
    sorter = TopologicalSorter(parents)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]  # each comes right before the next; the last is the first again
        shown = (
            cycle
            if len(cycle) <= _MAX_SHOWN
            else [*cycle[: _MAX_SHOWN - 2], f"({len(cycle) - _MAX_SHOWN + 1} more)", cycle[-1]]
        )
        raise InvalidError(
            f"The nodes depend on each other in a cycle: {' >> '.join(shown)}. Remove one of these edges."
        ) from None
    position = {name: index for index, name in enumerate(parents)}
    waves: list[tuple[str, ...]] = []
    while ready := sorter.get_ready():
        waves.append(tuple(sorted(ready, key=position.__getitem__)))
        sorter.done(*ready)
    return tuple(waves)


def list_ancestors(parents: Mapping[str, Sequence[str]], name: str) -> frozenset[str]:
    ancestor_names: set[str] = set()
    remaining = list(parents[name])
    while remaining:
        parent = remaining.pop()
        if parent not in ancestor_names:
            ancestor_names.add(parent)
            remaining.extend(parents[parent])
    return frozenset(ancestor_names)
