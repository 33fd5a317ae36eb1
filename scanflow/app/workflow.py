"""A graph of nodes: a batch of steps, an online inference graph, or an MPI job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from scanflow.app.edges import Chain, Dependency, Linkable
from scanflow.app.executor import Executor
from scanflow.app.inference import check_inference
from scanflow.app.model import Model, as_tuple, find_duplicate, shorten
from scanflow.app.mpi import MPIWorkload
from scanflow.app.parameter_texts import parse_json, parse_parameter, parse_script_parameter
from scanflow.app.parameters import with_article
from scanflow.app.references import Ref, list_references
from scanflow.app.resources import Affinity
from scanflow.app.service import Service
from scanflow.app.serving import Serving
from scanflow.app.steps import check_set_parameter, get_annotations, get_defaults
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.graphs import collect_parents, compute_levels
from scanflow.names import check_name
from scanflow.text.masking import SECRET_KEY

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
    """Unique in the application; lower-case letters, digits and ``-``. A service has the name of its workflow."""

    nodes: Annotated[Sequence[Node], BeforeValidator(_check_nodes_bound), AfterValidator(as_tuple), Field(min_length=1)]
    """Its steps, services or MPI programs."""

    edges: Annotated[
        Sequence[Dependency | Chain] | Chain,
        BeforeValidator(_flatten, json_schema_input_type=Sequence[Dependency]),
        AfterValidator(as_tuple),
    ] = ()
    """Order beyond what references imply: ``load >> [cnn1, cnn2] >> best``, or a list of ``sf.Dependency``."""

    type: WorkflowType = "batch"
    """``batch``: steps that run to an end. ``online``: a service. ``mpi``: MPI programs."""

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
        """Its edges, without those that references imply."""
        return tuple(edge for edge in self.edges if isinstance(edge, Dependency))

    @cached_property
    def by_name(self) -> Mapping[str, Executor | Service | MPIWorkload]:
        """Its nodes by their names."""
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
        """The names of its nodes in the order of execution: those of one level may run at once."""
        return compute_levels(self.parents)

    @property
    def steps(self) -> tuple[Executor, ...]:
        """Its steps: nodes of a batch workflow."""
        return tuple(node for node in self.nodes if isinstance(node, Executor))

    @property
    def services(self) -> tuple[Service, ...]:
        """Its services: nodes of an online workflow."""
        return tuple(node for node in self.nodes if isinstance(node, Service))

    def node(self, name: str) -> Executor | Service | MPIWorkload:
        """Return one node; NotFoundError: there is none of that name."""
        if name not in self.by_name:
            raise NotFoundError(f"Workflow {self.name!r} has no node {name!r}.{did_you_mean(name, self.by_name)}")
        return self.by_name[name]

    def with_parameters(self, changes: Mapping[str, Any], *, step: str | None = None) -> Workflow:
        """Return the workflow with parameters set: ``epochs`` for every step that has it, ``train.epochs`` for one.

        A short name sets plain values; what another step or the item of a fan-out feeds is set by its full name only.

        Args:
            changes: The values, by names.
            step: Set them in this step only.

        Raises:
            NotFoundError: there is no such parameter.
            InvalidError: a short name matches nothing but what is fed.
        """
        if not changes:
            return self
        nodes = dict(self.by_name)

        def change(match: _Match, value: Any) -> Executor | Service | MPIWorkload:
            node = nodes[match.node]
            changed = node.replace(parameters={**node.parameters, match.name: value})
            if isinstance(changed, Executor):
                check_set_parameter(changed, match.name, value)
            return changed

        matches = {key: self._match_parameter(key, step) for key in changes}
        for is_full_name in (False, True):  # a full name is the more precise one
            for key, value in changes.items():
                for match in matches[key]:
                    if match.is_full_name == is_full_name and match.is_settable:
                        nodes[match.node] = change(match, value)
        for key, value in changes.items():
            if not any(match.is_settable for match in matches[key]) and any(
                change(match, value) != nodes[match.node] for match in matches[key]
            ):
                raise _build_fed_error(self.name, key, matches[key])
        return self.replace(nodes=tuple(nodes.values()))

    def parse_parameters(self, texts: Mapping[str, str], *, step: str | None = None) -> dict[str, Any]:
        """Return parameters given as text, as on a command line, as the values that :meth:`with_parameters` takes.

        Each obeys the annotation of its function's parameter, else the type of its present value or default, else it
        is JSON where it is JSON. A script gets the text as it is. A short name that means different values in several
        steps becomes their full names.
        """
        parameters: dict[str, Any] = {}
        for key, text in texts.items():
            values = {
                f"{match.node}.{match.name}": _parse_text(self.by_name[match.node], match, text)
                for match in self._match_parameter(key, step)
                if match.is_settable
            }
            first = next(iter(values.values()), text)
            is_same = all(type(value) is type(first) and value == first for value in values.values())
            parameters |= {key: first} if is_same else values
        return parameters

    def _match_parameter(self, key: str, step: str | None) -> list[_Match]:
        """Return the parameters that a name means; NotFoundError: there is none."""
        matches, names = [], set[str]()
        for node in self.nodes:
            if step not in {None, node.name}:
                continue
            for name in _list_settable(node):
                full_name = f"{node.name}.{name}"
                if key in {name, full_name}:
                    refs = tuple(list_references(node.parameters.get(name)))
                    matches.append(_Match(node.name, name, key != name, refs))
                names |= {name, full_name}
        if not matches:
            where = f"Workflow {self.name!r}" if step is None else f"The step {step!r}"
            raise NotFoundError(f"{where} has no parameter {key!r}.{did_you_mean(str(key), names)}")
        return matches

    def with_refreshed_cache(self, steps: Collection[str] | None = None) -> Workflow:
        """Return the workflow with cached steps that run although their outputs are in the cache; None: all of them."""
        nodes = tuple(
            node.replace(refresh_cache=True)
            if isinstance(node, Executor) and node.cache and (steps is None or node.name in steps)
            else node
            for node in self.nodes
        )
        return self if nodes == self.nodes else self.replace(nodes=nodes)

    def with_shape(
        self,
        *,
        instances: int | None = None,
        cores: float | None = None,
        gpu: int | float | str | None = None,
        affinity: str | None = None,
    ) -> Workflow:
        """Return an online workflow with other instances: number, cores and GPUs of each, affinity. None: unchanged."""
        if self.type != "online":
            raise InvalidError(f"Workflow {self.name!r} is of type {self.type!r}, which has no instances.")
        changed = []
        for place, node in enumerate(self.services):  # an instance holds all nodes, whose cores add up
            fields: dict[str, Any] = {} if affinity is None else {"affinity": affinity}
            if instances is not None:
                fields |= {"instances": instances, "scaling": None}
            size: dict[str, Any] = {} if cores is None else {"cpu": None if place else cores}
            if gpu is not None:
                own = 0 if place else gpu
                size |= {"gpu": own, **({} if own else {"gpu_memory": None})}
            if size:
                fields["resources"] = node.resources.replace(**size)
            changed.append(node.replace(**fields))
        return self.replace(nodes=changed)


class _Match(NamedTuple):
    """A parameter that a name means."""

    node: str
    name: str
    is_full_name: bool
    fed_by: tuple[Ref, ...]
    """The outputs, or the item of a fan-out, that its present value is made of."""

    @property
    def is_settable(self) -> bool:
        return self.is_full_name or not self.fed_by


def _build_fed_error(workflow: str, key: str, matches: Sequence[_Match]) -> InvalidError:
    feeds = "; ".join(
        f"{match.name!r} of the step {match.node!r} is fed by "
        + ", ".join("the item of its fan-out" if ref.step is None else repr(str(ref)) for ref in match.fed_by)
        for match in matches
    )
    names = " or ".join(f"{match.node}.{match.name}" for match in matches)
    is_item = any(ref.step is None for match in matches for ref in match.fed_by)
    lists = "; other items are written into the workflow" if is_item else ""
    return InvalidError(
        f"Workflow {workflow!r}: the short name {key!r} sets plain values only, and {feeds}. To give it one value "
        f"instead, write the full name: {names}{lists}"
    )


def _parse_text(node: Executor | Service | MPIWorkload, match: _Match, text: str) -> Any:
    if text.startswith(f'{{"{SECRET_KEY}"') and isinstance(value := parse_json(text), dict):
        return value  # a reference, which no annotation is to take for text
    present = None if match.fed_by else node.parameters.get(match.name)
    if isinstance(node, MPIWorkload) or (isinstance(node, Executor) and node.target is None):
        return parse_script_parameter(text, present)
    call = node.target.declared if isinstance(node, Executor) and node.target is not None else None
    if call is None:
        return parse_parameter(text, present=present)
    if present is None:
        present = get_defaults(call).get(match.name)
    return parse_parameter(text, get_annotations(call).get(match.name, Any), present)


def _list_settable(node: Executor | Service | MPIWorkload) -> Sequence[str]:
    return node.settable if isinstance(node, Executor) else tuple(node.parameters)
