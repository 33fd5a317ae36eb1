"""A graph of nodes: a batch of steps, an online inference graph, or an MPI job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from scanflow.app.edges import Chain, Dependency
from scanflow.app.executor import Executor
from scanflow.app.graph import levels, parents_of
from scanflow.app.model import Model, as_tuple
from scanflow.app.mpi import MPIWorkload
from scanflow.app.service import Service
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.names import check_name

__all__ = ["Node", "Workflow", "WorkflowType"]

WorkflowType = Literal["batch", "online", "mpi"]
Node = Annotated[Executor | Service | MPIWorkload, Field(discriminator="kind")]

_KIND_OF: Mapping[WorkflowType, type[Executor | Service | MPIWorkload]] = {
    "batch": Executor,
    "online": Service,
    "mpi": MPIWorkload,
}


def _flatten(edges: Any) -> Any:
    """Accept ``a >> b`` beside ``Dependency``, alone or in a list."""
    if isinstance(edges, Chain):
        return list(edges)
    if isinstance(edges, Iterable) and not isinstance(edges, str | Mapping):
        return [inner for edge in edges for inner in (edge if isinstance(edge, Chain) else [edge])]
    return edges


class Workflow(Model):
    """A graph that cannot be wrong once made: no cycle, no unknown or doubled name, no node of another kind."""

    name: str
    nodes: Annotated[Sequence[Node], AfterValidator(as_tuple), Field(min_length=1)]
    edges: Annotated[Sequence[Dependency | Chain] | Chain, BeforeValidator(_flatten), AfterValidator(as_tuple)] = ()
    """Order beyond what references imply: ``load >> [cnn1, cnn2] >> best``, or a list of ``sf.Dependency``."""

    type: WorkflowType = "batch"
    output_dir: str = "/workflow"
    """Where steps see the run's outputs: ``<output_dir>/<step>/...``. A backend puts its own storage there."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return check_name(name, "workflow")

    @field_validator("output_dir")
    @classmethod
    def _check_output_dir(cls, path: str) -> str:
        if not path.startswith("/") or path == "/" or ".." in path.split("/"):
            raise InvalidError(f"output_dir {path!r} is not a folder's absolute path. Write one such as '/workflow'.")
        return path.rstrip("/")

    @model_validator(mode="after")
    def _check(self) -> Self:
        who = f"Workflow {self.name!r}"
        self._check_nodes(who)
        names = self.by_name
        for edge in self.dependencies:
            for role, end in (("dependee", edge.dependee), ("depender", edge.depender)):
                if end not in names:
                    raise InvalidError(f"{who} has an edge with the unknown {role} {end!r}.{did_you_mean(end, names)}")
        for node in self.nodes:
            for ref in node.references if isinstance(node, Executor) else ():
                if ref.step is not None and ref.step not in names:
                    raise InvalidError(
                        f"{who}: the step {node.name!r} uses {str(ref)!r}, but there is no step {ref.step!r}."
                        f"{did_you_mean(ref.step, names)}"
                    )
        try:
            self.levels  # noqa: B018  computed now, so that a cycle is refused now
        except InvalidError as error:
            raise InvalidError(f"{who}: {error}") from None
        return self

    def _check_nodes(self, who: str) -> None:
        wanted = _KIND_OF[self.type]
        for node in self.nodes:
            if not isinstance(node, wanted):
                raise InvalidError(
                    f"{who} is of type {self.type!r}, whose nodes are {wanted.__name__}s, but {node.name!r} is a "
                    f"{type(node).__name__}. Give it a workflow of its own."
                )
        doubled = [name for name, count in Counter(node.name for node in self.nodes).items() if count > 1]
        if doubled:
            raise InvalidError(f"{who} has two nodes named {doubled[0]!r}. Rename one of them.")
        if self.type == "mpi" and len(self.nodes) > 1:
            raise InvalidError(f"{who} is of type 'mpi', which has one node, but {len(self.nodes)} are given.")

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """The edges as given, flattened."""
        return tuple(edge for edge in self.edges if isinstance(edge, Dependency))

    @cached_property
    def by_name(self) -> Mapping[str, Executor | Service | MPIWorkload]:
        """The nodes by their names."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def parents(self) -> Mapping[str, tuple[str, ...]]:
        """For each node, those it waits for: by an edge, or because it uses what they produce."""
        implied = [
            (ref.step, node.name)
            for node in self.nodes
            if isinstance(node, Executor)
            for ref in node.references
            if ref.step is not None
        ]
        return parents_of(self.by_name, [(edge.dependee, edge.depender) for edge in self.dependencies] + implied)

    @cached_property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """The nodes in waves that may run at the same time."""
        return levels(self.parents)

    @property
    def steps(self) -> tuple[Executor, ...]:
        """The nodes of a batch workflow."""
        return tuple(node for node in self.nodes if isinstance(node, Executor))

    def node(self, name: str) -> Executor | Service | MPIWorkload:
        """Return one node.

        Raises:
            NotFoundError: there is none of that name.
        """
        if name not in self.by_name:
            raise NotFoundError(f"Workflow {self.name!r} has no node {name!r}.{did_you_mean(name, self.by_name)}")
        return self.by_name[name]

    def with_parameters(self, changes: Mapping[str, Any]) -> Workflow:
        """Return the workflow with parameters set: ``{"epochs": 3}`` for every step that has it, or ``{"train.epochs": 3}``.

        Raises:
            NotFoundError: no step has such a parameter.
        """
        if not changes:
            return self
        nodes = {node.name: node for node in self.nodes}
        for key, value in changes.items():
            step, _, parameter = key.rpartition(".")
            hits = [
                node for node in nodes.values() if parameter in _settable(node) and (not step or node.name == step)
            ]
            if not hits:
                known = {name for node in self.nodes for own in _settable(node) for name in (own, f"{node.name}.{own}")}
                raise NotFoundError(f"Workflow {self.name!r} has no parameter {key!r}.{did_you_mean(key, known)}")
            for node in hits:
                nodes[node.name] = node.replace(parameters={**node.parameters, parameter: value})
        return self.replace(nodes=tuple(nodes.values()))


def _settable(node: Executor | Service | MPIWorkload) -> Sequence[str]:
    return node.settable if isinstance(node, Executor) else tuple(node.parameters)
