"""Edges between nodes: ``Dependency``, and the notation ``a >> [b, c] >> d`` for several."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scanflow.app.model import Model, shorten
from scanflow.errors import InvalidError


class Dependency(Model):
    """An edge: ``depender`` starts after ``dependee`` (batch), or receives what it sends (online)."""

    dependee: str
    """The name of the node that comes first."""

    depender: str
    """The name of the node that comes after it."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The result of ``a >> b``, for ``Workflow(edges=...)``: the edges so far, and the last nodes for the next
    ``>>``."""

    edges: tuple[Dependency, ...]
    heads: tuple[str, ...]
    tails: tuple[str, ...]
    used: list[bool] = field(default_factory=list, repr=False, compare=False)

    def __del__(self) -> None:
        """Warn of unused edges, as Python warns of a coroutine that was never awaited."""
        if self.edges and not self.used:
            first = self.edges[0]
            warnings.warn(
                f"The edge {first.dependee} >> {first.depender} was created but not used: '>>' changes neither node. "
                "Pass its result to the workflow: sf.Workflow(..., edges=a >> b).",
                stacklevel=2,
            )

    def __rshift__(self, other: Targets) -> Chain:
        return _join(self, _join_nodes(other))

    def __rrshift__(self, other: Targets) -> Chain:
        return _join(_join_nodes(other), self)

    def __iter__(self) -> Iterator[Dependency]:
        self.used.append(True)
        return iter(self.edges)


class Linkable(Model):
    """A named node that ``>>`` links to others. No node is changed: the edges are the value of the expression."""

    name: str

    def __rshift__(self, other: Targets) -> Chain:
        return _join(_join_nodes(self), _join_nodes(other))

    def __rrshift__(self, other: Targets) -> Chain:
        return _join(_join_nodes(other), _join_nodes(self))


Targets = Linkable | Chain | Sequence["Linkable | Chain"]


def _join_nodes(target: Targets) -> Chain:
    if isinstance(target, Chain):
        return target
    if isinstance(target, Linkable):
        return Chain((), (target.name,), (target.name,))
    if not target or not _is_list(target):
        raise InvalidError(_explain_links(target))
    parts = [_join_nodes(part) for part in target]
    return Chain(
        tuple(edge for part in parts for edge in part),
        tuple(name for part in parts for name in part.heads),
        tuple(name for part in parts for name in part.tails),
    )


def _is_list(target: object) -> bool:
    return isinstance(target, Sequence) and not isinstance(target, str)


def _explain_links(target: object) -> str:
    if _is_list(target):
        return "'>>' links nodes, but this list of nodes is empty, so there is no edge. Remove the list."
    if callable(getattr(target, "bind", None)):
        return f"'>>' links nodes, but {target!s} is a function. Make a node of it first: .bind(...)."
    return f"'>>' links nodes, but {shorten(target)} is not a node. Write a >> b, or a >> [b, c]."


def _join(first: Chain, second: Chain) -> Chain:
    between = tuple(Dependency(dependee=tail, depender=head) for tail in first.tails for head in second.heads)
    return Chain((*first, *between, *second), first.heads, second.tails)
