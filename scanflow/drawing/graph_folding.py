"""Folding of large graphs: nodes that a reader need not tell apart become one, until the graph can be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scanflow.graphs import compute_levels

MOST = 40
"""How many nodes a drawing shows."""


@dataclass(frozen=True)
class FoldedGraph:
    """A graph whose nodes are groups of nodes. A group has the name of its first member; those of a chain are in its
    order."""

    members: Mapping[str, tuple[str, ...]]
    parents: Mapping[str, tuple[str, ...]]


def fold(
    parents: Mapping[str, Sequence[str]], kinds: Mapping[str, str] | None = None, *, most: int = MOST
) -> FoldedGraph:
    """Return the graph with at most ``most`` nodes, given what each node depends on and the kind of each.

    Nodes of one kind with the same parents and children are folded first, then chains of one kind, the largest first.
    If that does not do, layers are folded, whatever their kinds are.

    Raises:
        InvalidError: the graph has a cycle.
    """
    graph = FoldedGraph({name: (name,) for name in parents}, {name: tuple(own) for name, own in parents.items()})
    kinds = kinds or {}
    for list_groups in (_list_siblings, _list_chains):
        graph = _fold_largest(graph, list_groups(graph, kinds), most)
    before = len(graph.parents) + 1
    while most < len(graph.parents) < before:
        before = len(graph.parents)
        graph = _fold_largest(graph, compute_levels(graph.parents), most)
        graph = _fold_largest(graph, _list_chains(graph, {}), most)
    return graph if len(graph.parents) <= most else _fold_all(graph, _cut_layers(graph, most))


def _fold_largest(graph: FoldedGraph, groups: Iterable[tuple[str, ...]], most: int) -> FoldedGraph:
    surplus, chosen = len(graph.parents) - most, list[tuple[str, ...]]()
    for group in sorted(groups, key=len, reverse=True):
        if surplus <= 0 or len(group) < 2:
            break
        chosen.append(group)
        surplus -= len(group) - 1
    return _fold_all(graph, chosen)


def _fold_all(graph: FoldedGraph, groups: Iterable[tuple[str, ...]]) -> FoldedGraph:
    """Make one node of each group. The groups have no node in common, and no way leads out of one and back."""
    by_head = {group[0]: group for group in groups}
    head = {name: first for first, group in by_head.items() for name in group}
    members: dict[str, tuple[str, ...]] = {}
    parents: dict[str, dict[str, None]] = {}
    for name, own in graph.parents.items():
        group = head.get(name, name)
        if group not in members:
            members[group] = tuple(member for part in by_head.get(group, (group,)) for member in graph.members[part])
        above = parents.setdefault(group, {})
        above |= dict.fromkeys(head.get(parent, parent) for parent in own if head.get(parent, parent) != group)
    return FoldedGraph(members, {name: tuple(own) for name, own in parents.items()})


def _collect_children(parents: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    children: dict[str, list[str]] = {name: [] for name in parents}
    for name, own in parents.items():
        for parent in own:
            children[parent].append(name)
    return children


def _list_siblings(graph: FoldedGraph, kinds: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the groups of nodes of one kind with the same parents and the same children."""
    children = _collect_children(graph.parents)
    groups: dict[object, list[str]] = defaultdict(list)
    for name, own in graph.parents.items():
        groups[frozenset(own), frozenset(children[name]), kinds.get(name)].append(name)
    return [tuple(group) for group in groups.values()]


def _list_chains(graph: FoldedGraph, kinds: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the longest ways of nodes of one kind, each the only parent of the next and that its only child."""
    children = _collect_children(graph.parents)
    following = {
        name: own[0]
        for name, own in children.items()
        if len(own) == 1 and len(graph.parents[own[0]]) == 1 and kinds.get(name) == kinds.get(own[0])
    }
    chains = []
    for start in graph.parents.keys() - following.values():
        chain = [start]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        chains.append(tuple(chain))
    return sorted(chains)  # the order of a set is another in each process


def _cut_layers(graph: FoldedGraph, most: int) -> list[tuple[str, ...]]:
    """Return the nodes in ``most`` groups of layers that follow each other."""
    levels = compute_levels(graph.parents)
    size = -(-len(levels) // most)
    return [
        tuple(name for level in levels[first : first + size] for name in level) for first in range(0, len(levels), size)
    ]
