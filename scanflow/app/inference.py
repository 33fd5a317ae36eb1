"""Inference graphs: edges carry data, and each request gets one answer.

``a >> b`` means that b takes a's result. A ROUTER's children are alternatives of which it takes one; a COMBINER joins
what its parents give. What has no parents takes the request; what has no children answers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations_with_replacement, product

from scanflow.app.service import Service
from scanflow.errors import InvalidError
from scanflow.graphs import compute_levels

Parents = Mapping[str, Sequence[str]]


def check_inference(who: str, services: Sequence[Service], parents: Parents) -> None:
    """Reject a graph where a node has too many parents, a request gets two answers, or two nodes have a scaling."""
    children = collect_children(parents)
    for service in services:
        _check_node(who, service, parents[service.name], children[service.name])
    routers = {service.name for service in services if service.role == "ROUTER"}
    if (twice := _find_double_answer(parents, children, routers)) is not None:
        first, second = twice
        raise InvalidError(
            f"{who}: {first!r} and {second!r} would both answer the same request, since neither has a successor. Join "
            f"them with a COMBINER, [{first}, {second}] >> join, or let a ROUTER choose between them."
        )
    scaled = [service.name for service in services if service.scaling is not None]
    if len(scaled) > 1:
        raise InvalidError(
            f"{who} has a scaling at {scaled[0]!r} and at {scaled[1]!r}, but an instance contains the whole graph. "
            "Keep one of the two."
        )


def collect_children(parents: Parents) -> dict[str, tuple[str, ...]]:
    children: dict[str, list[str]] = {name: [] for name in parents}
    for name, before in parents.items():
        for parent in before:
            children[parent].append(name)
    return {name: tuple(after) for name, after in children.items()}


def list_outputs_of_graph(parents: Parents) -> tuple[str, ...]:
    """Return the output nodes of the graph: one, except below a ROUTER."""
    return tuple(name for name, after in collect_children(parents).items() if not after)


def _check_node(who: str, service: Service, parents: Sequence[str], children: Sequence[str]) -> None:
    if service.role == "COMBINER" and not parents:
        raise InvalidError(
            f"{who}: the COMBINER {service.name!r} has no inputs to combine. Link them: [a, b] >> {service.name}."
        )
    if service.role == "ROUTER" and not children:
        raise InvalidError(
            f"{who}: the ROUTER {service.name!r} has no branches to choose from. Link them: {service.name} >> [a, b]."
        )
    if len(parents) > 1 and service.role != "COMBINER":
        raise InvalidError(
            f"{who}: {service.name!r} gets the results of {_format_names(parents)}, but a {service.role} accepts one. "
            "Join them with a COMBINER before it, or give it that role."
        )


def _find_double_answer(
    parents: Parents, children: Mapping[str, Sequence[str]], routers: set[str]
) -> tuple[str, str] | None:
    """Return two nodes that may both answer one request, if any.

    Two nodes run for one request if each can be reached along a path such that no ROUTER sends the two paths different
    ways. All pairs of paths are walked at once, the one that is behind in the order of the graph first, so that two
    paths through one node are there at the same time.
    """
    outputs = [name for name, after in children.items() if not after]
    if len(outputs) < 2:
        return None
    rank = {name: place for place, name in enumerate(chain.from_iterable(compute_levels(parents)))}
    remaining = [*combinations_with_replacement([name for name, before in parents.items() if not before], 2)]
    seen = set(remaining)
    while remaining:
        first, second = remaining.pop()
        if not children[first] and not children[second]:
            if first != second:
                return first, second
            continue
        for pair in _advance(first, second, children, rank, routers):
            if pair not in seen:
                seen.add(pair)
                remaining.append(pair)
    return None


def _advance(
    first: str, second: str, children: Mapping[str, Sequence[str]], rank: Mapping[str, int], routers: set[str]
) -> Iterable[tuple[str, str]]:
    if first == second:
        children_of_both = children[first]
        pairs: Iterable[tuple[str, str]] = (
            ((child, child) for child in children_of_both)
            if first in routers
            else product(children_of_both, children_of_both)
        )
    elif not children[second] or (children[first] and rank[first] < rank[second]):
        pairs = ((child, second) for child in children[first])
    else:
        pairs = ((first, child) for child in children[second])
    return ((a, b) if rank[a] <= rank[b] else (b, a) for a, b in pairs)


def _format_names(names: Sequence[str]) -> str:
    return " and ".join([", ".join(map(repr, names[:-1])), repr(names[-1])])
