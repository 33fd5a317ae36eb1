"""A graph of nodes: a batch of steps, an online inference graph, or an MPI job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from scanflow.app.edges import Chain, Dependency, Linkable
from scanflow.app.executor import Executor
from scanflow.app.graph import collect_parents, compute_levels
from scanflow.app.inference import check_inference
from scanflow.app.model import Model, as_tuple, find_duplicate, shorten
from scanflow.app.mpi import MPIWorkload
from scanflow.app.parameters import with_article
from scanflow.app.resources import Affinity
from scanflow.app.service import Service
from scanflow.app.serving import Serving
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.names import check_name

WorkflowType = Literal["batch", "online", "mpi"]
Node = Annotated[Executor | Service | MPIWorkload, Field(discriminator="kind")]

_KIND_OF: Mapping[WorkflowType, type[Executor | Service | MPIWorkload]] = {
    "batch": Executor,
    "online": Service,
    "mpi": MPIWorkload,
}


def _flatten(edges: Any) -> list[Dependency]:
    dependencies: list[Dependency] = []
    for edge in edges if isinstance(edges, list | tuple) else [edges]:
        if isinstance(edge, Chain):
            dependencies += edge
        elif isinstance(edge, Dependency):
            dependencies.append(edge)
        elif isinstance(edge, Mapping) and edge is not edges:
            dependencies.append(Dependency(**{str(key): value for key, value in edge.items()}))
        else:
            raise InvalidError(
                f"edges cannot be {shorten(edge)}. Write a >> b, or a list: "
                "[sf.Dependency(dependee='a', depender='b')]."
            )
    return dependencies


def _check_nodes_bound(nodes: Any) -> Any:
    for node in nodes if isinstance(nodes, list | tuple) else ():
        if callable(getattr(node, "bind", None)):
            raise InvalidError(f"{node!s} is a function, not a node. Make a node of it: .bind(...).")
        if not isinstance(node, Linkable | Mapping):
            raise InvalidError(
                f"nodes holds {shorten(node)}, which is not a node. A step that is called runs at once and returns its "
                "value: write a.bind(1) instead of a(1)."
            )
    return nodes


class Workflow(Model):
    """A validated graph: no cycle, no unknown or duplicate name, no node of another kind."""

    name: Annotated[str, AfterValidator(lambda name: check_name(name, "workflow"))]
    nodes: Annotated[Sequence[Node], BeforeValidator(_check_nodes_bound), AfterValidator(as_tuple), Field(min_length=1)]
    edges: Annotated[Sequence[Dependency | Chain] | Chain, BeforeValidator(_flatten), AfterValidator(as_tuple)] = ()
    """Order beyond what references imply: ``load >> [cnn1, cnn2] >> best``, or a list of ``sf.Dependency``."""

    type: WorkflowType = "batch"
    output_dir: str = "/workflow"
    """The path of the run's outputs in steps: ``<output_dir>/<step>/...``. A backend mounts its storage there."""

    serving: Serving | None = None
    """Options of an online workflow. Unset: the defaults of :class:`Serving`."""

    @field_validator("output_dir")
    @classmethod
    def _check_output_dir(cls, path: str) -> str:
        parts = path.rstrip("/").split("/")
        if parts[0] or len(parts) < 2 or any(part in {"", ".", ".."} or "\0" in part for part in parts[1:]):
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
            near = node.affinity if isinstance(node.affinity, Affinity) else Affinity()
            for other in (*near.near, *near.apart_from):
                if other not in names:
                    raise InvalidError(
                        f"{who}: the affinity of {node.name!r} names {other!r}, which is not a node."
                        f"{did_you_mean(other, names)}"
                    )
        try:
            self.levels  # noqa: B018  computed now, so that a cycle is refused now
        except InvalidError as error:
            raise InvalidError(f"{who}: {error}") from None
        if self.type == "online":
            check_inference(who, self.services, self.parents)
        return self

    def _check_nodes(self, who: str) -> None:
        node_type = _KIND_OF[self.type]
        for node in self.nodes:
            if not isinstance(node, node_type):
                raise InvalidError(
                    f"{who} is of type {self.type!r}, whose nodes are {node_type.__name__}s, but {node.name!r} is "
                    f"{with_article(type(node).__name__)}. Give it a workflow of its own."
                )
        if doubled := find_duplicate(node.name for node in self.nodes):
            raise InvalidError(f"{who} has two nodes named {doubled!r}. Rename one of them.")
        if self.type == "mpi" and len(self.nodes) > 1:
            raise InvalidError(f"{who} is of type 'mpi', which has one node, but {len(self.nodes)} are given.")
        if self.serving is not None and self.type != "online":
            raise InvalidError(f"{who} is of type {self.type!r} and has 'serving', which only online workflows have.")
        if self.serving is not None and self.serving.backup == self.name:
            raise InvalidError(f"{who} is named as its own backup. Name another online workflow of the application.")

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        return tuple(edge for edge in self.edges if isinstance(edge, Dependency))

    @cached_property
    def by_name(self) -> Mapping[str, Executor | Service | MPIWorkload]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def parents(self) -> Mapping[str, tuple[str, ...]]:
        """The dependencies of each node: by an edge, or by a use of their outputs."""
        implied = [
            (ref.step, node.name)
            for node in self.nodes
            if isinstance(node, Executor)
            for ref in node.references
            if ref.step is not None
        ]
        return collect_parents(self.by_name, [(edge.dependee, edge.depender) for edge in self.dependencies] + implied)

    @cached_property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        return compute_levels(self.parents)

    @property
    def steps(self) -> tuple[Executor, ...]:
        return tuple(node for node in self.nodes if isinstance(node, Executor))

    @property
    def services(self) -> tuple[Service, ...]:
        return tuple(node for node in self.nodes if isinstance(node, Service))

    def node(self, name: str) -> Executor | Service | MPIWorkload:
        """Return one node; NotFoundError: there is none of that name."""
        if name not in self.by_name:
            raise NotFoundError(f"Workflow {self.name!r} has no node {name!r}.{did_you_mean(name, self.by_name)}")
        return self.by_name[name]

    def with_parameters(self, changes: Mapping[str, Any]) -> Workflow:
        """Return the workflow with parameters set: ``epochs`` for every step that has it, ``train.epochs`` for one."""
        if not changes:
            return self
        nodes = {node.name: node for node in self.nodes}
        for key, value in changes.items():
            hits = [
                (node.name, own)
                for node in nodes.values()
                for own in _list_settable(node)
                if key in {own, f"{node.name}.{own}"}
            ]
            if not hits:
                names = {
                    name for node in self.nodes for own in _list_settable(node) for name in (own, f"{node.name}.{own}")
                }
                raise NotFoundError(f"Workflow {self.name!r} has no parameter {key!r}.{did_you_mean(str(key), names)}")
            for name, own in hits:
                nodes[name] = nodes[name].replace(parameters={**nodes[name].parameters, own: value})
        return self.replace(nodes=tuple(nodes.values()))

    def with_shape(
        self, *, instances: int | None = None, cores: float | None = None, affinity: str | None = None
    ) -> Workflow:
        """Return an online workflow with other instances: number, cores of each, affinity. None: unchanged."""
        if self.type != "online":
            raise InvalidError(f"Workflow {self.name!r} is of type {self.type!r}, which has no instances.")
        changed = []
        for place, node in enumerate(self.services):  # an instance holds all nodes, whose cores add up
            fields: dict[str, Any] = {} if affinity is None else {"affinity": affinity}
            if instances is not None:
                fields |= {"instances": instances, "scaling": None}
            if cores is not None:
                fields["resources"] = node.resources.replace(cpu=None if place else cores)
            changed.append(node.replace(**fields))
        return self.replace(nodes=changed)


def _list_settable(node: Executor | Service | MPIWorkload) -> Sequence[str]:
    return node.settable if isinstance(node, Executor) else tuple(node.parameters)
