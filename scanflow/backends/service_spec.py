"""Service specs: what the instances of a service serve, built from an application. For backends whose instances are
those of ``scanflow_serving``. Pure, but for looking up the user's files.

All nodes of a workflow live in one instance, as the containers of a pod do: their cores and memory together are the
instance's, and it has at most one scaling and one set of requirements.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from scanflow.app.application import Application
from scanflow.app.scaling import Scaling
from scanflow.app.secrets import Secret
from scanflow.app.service import Service
from scanflow.app.serving import Serving
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.backends.service_records import CanaryPolicy, Shape
from scanflow.errors import NotFoundError, UnsupportedError, UsageError, did_you_mean
from scanflow.http.tls_files import TlsFiles
from scanflow.instance_messages import (
    BatchingOptions,
    DesiredInstanceState,
    FoundModel,
    Limits,
    ModelFiles,
    Node,
    Revision,
)

Fetch = Callable[[str], ModelFiles]

_UNSEEN = ("source", "scaling", "inherited")
_UNSEEN_SERVING = ("backup", "hand_back_after", "keep_shape")
"""Fields that instances do not see, in addition to the number of instances."""

_MAX_FILES = 10_000


def list_clients(serving: Serving) -> tuple[str, ...] | None:
    """Return the clients that instances let in; None: they ask for no certificate."""
    return None if serving.clients is None else tuple(serving.clients)


def refuse_clients(workflow: Workflow, backend: str) -> None:
    """Refuse client certificates, for a backend whose services do not ask for them.

    Raises:
        UnsupportedError: ``Serving.clients`` is set.
    """
    if workflow.serving is not None and workflow.serving.clients is not None:
        raise UnsupportedError(
            f"Workflow {workflow.name!r}: the backend {backend!r} does not support serving.clients: its services ask "
            "for no client certificate, so that anyone could send requests. Remove it."
        )


class ServiceSpec(BaseModel):
    """One service's definition. Equal specs mean the same processes serving the same graph."""

    model_config = ConfigDict(frozen=True)

    app: str
    team: str
    workflow: str
    source: str | None = None
    app_dir: str
    code: str = ""  # the state of the files below app_dir: see :func:`compute_fingerprint`
    deployment: int
    """The generation in which it was deployed last; each deployment has processes of its own, since code may differ."""

    serves: int  # the generation in which the revisions changed last
    shape: Shape
    revisions: tuple[Revision, ...]  # the current one first; then, if there is one, the canary or shadow
    policy: CanaryPolicy | None = None  # when the canary is promoted or removed
    scaling: Scaling | None = None
    serving: Serving = Serving()
    tls: TlsFiles | None = None
    """What instances serve TLS with; None: they serve without."""

    tracker_uri: str | None = None
    python: str = ""  # the interpreter of the instances, where they are processes of this machine
    image: str | None = None  # of the instances, where they are containers
    place: dict[str, str] = Field(default_factory=dict)  # labels of the nodes that instances may run on
    details: dict[str, Any] = Field(default_factory=dict)  # what else its backend starts instances with
    inherited: tuple[str, ...] = ()  # references of its application to secrets in variables
    aliases: tuple[str, ...] = ()  # services that have it for their backup

    @property
    def spec_hash(self) -> str:
        """A short hash of what an instance is started with: instances of another hash are replaced."""
        shape = self.shape
        parts: tuple[object, ...] = (
            self.deployment,
            shape.cores,
            shape.memory_bytes,
            shape.affinity,
            sorted(shape.threads.items()),
        )
        if shape.gpu:  # left out elsewhere, as instances of earlier versions were started without
            parts = (*parts, shape.gpu, shape.gpu_memory_bytes)
        return f"{self.deployment}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:10]}"

    @property
    def limits(self) -> Limits:
        """The limits of each instance: what :class:`~scanflow.instance_messages.Limits` has of ``serving``'s fields."""
        names = {field.name: field.name for field in fields(Limits)}
        names |= {name: name.removesuffix("_s") for name in names if not hasattr(self.serving, name)}
        return Limits(**{name: getattr(self.serving, own) for name, own in names.items()})

    @property
    def desired(self) -> DesiredInstanceState:
        return DesiredInstanceState(generation=self.serves, revisions=self.revisions)

    @property
    def current(self) -> Revision:
        """The stable revision, which stays if the canary is removed."""
        return self.revisions[0]

    @property
    def canary(self) -> Revision | None:
        return self.revisions[1] if len(self.revisions) > 1 else None

    def with_changes(self, **changes: Any) -> Self:
        return type(self).model_validate({**{name: getattr(self, name) for name in type(self).model_fields}, **changes})

    def with_generation(self, generation: int) -> Self:
        """Return the spec as that generation's deployment, its revision named after it."""
        revision = replace(self.current, id=f"r{generation}")
        return self.with_changes(deployment=generation, serves=generation, revisions=(revision,))

    def merge_unseen_fields(self, other: ServiceSpec) -> Self | None:
        """Return this spec with the fields of ``other`` that instances do not see; None: they would see a change, or
        nothing differs."""
        shape = self.shape.model_copy(update={"instances": other.shape.instances})
        serving = self.serving.model_copy(update={name: getattr(other.serving, name) for name in _UNSEEN_SERVING})
        merged = self.with_changes(shape=shape, serving=serving, **{name: getattr(other, name) for name in _UNSEEN})
        own = {name: getattr(self, name) for name in ("deployment", "serves", "revisions", "policy")}
        unchanged = other.current.nodes == self.current.nodes and other.with_changes(**own) == merged
        return merged if unchanged and merged != self else None

    def keep_only_revision(self, revision: Revision, generation: int) -> Self:
        """Return the spec with only this revision."""
        only = replace(revision, weight=1.0, shadow=False)
        return self.with_changes(revisions=(only,), policy=None, serves=generation)


def compute_fingerprint(folder: Path) -> str:
    """Return a short text that changes with the names, sizes and times of the files below a folder.

    Hidden folders, byte code and virtual environments are left out; of very many files the first are looked at.
    """
    seen = hashlib.sha256()
    count = 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name[0] not in "._" and not Path(place, name, "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            try:
                stat = Path(place, name).stat()
            except OSError:
                continue
            seen.update(repr((place, name, stat.st_size, stat.st_mtime_ns)).encode())
            count += 1
            if count >= _MAX_FILES:
                return seen.hexdigest()[:16]
    return seen.hexdigest()[:16]


def build_nodes(app: Application, workflow: Workflow, fetch: Fetch) -> tuple[Node, ...]:
    """Return the graph's nodes for an instance, with models fetched and files resolved."""
    places = AppFiles(app, workflow)
    positions = {service.name: place for place, service in enumerate(workflow.services)}
    return tuple(
        Node(
            name=service.name,
            role=service.role,
            parents=tuple(sorted(workflow.parents[service.name], key=positions.__getitem__)),
            implementation=service.implementation,
            file=None if (file := places.find_component_file(service)) is None else str(file.resolve()),
            model=None if service.model is None else _fetch_model(app, service.model, fetch),
            parameters=_to_json(service.parameters),
            batching=_describe_batching(service),
        )
        for service in workflow.services
    )


def _fetch_model(app: Application, uri: str, fetch: Fetch) -> ModelFiles:
    try:
        found = fetch(uri)
        return found.files if isinstance(found, FoundModel) else found
    except NotFoundError as error:
        if app.tracker is not None:
            raise
        raise NotFoundError(
            f"{error} The application {app.name!r} has no tracker, so that what its steps log goes where MLflow's own "
            "settings say, and not to the registry that services use. Write sf.Application(..., tracker=sf.Tracker()), "
            "and run the training again."
        ) from None


def with_model(definition: ServiceSpec, files: ModelFiles, node: str | None) -> tuple[Node, ...]:
    """Return the current revision's nodes, one of them with another version of its model."""
    nodes = definition.current.nodes
    models = [graph_node.name for graph_node in nodes if graph_node.model is not None]
    if node is None:
        candidates = [
            graph_node.name
            for graph_node in nodes
            if graph_node.model is not None and graph_node.model.name == files.name
        ] or models
        if len(candidates) != 1:
            hint = (
                f"Name one: --node {candidates[0]}" if candidates else "It has none: deploy it again with the change."
            )
            raise UsageError(
                f"It is not clear which node of {definition.workflow!r} should get a version of {files.name!r}: "
                f"{', '.join(candidates) or 'none'} could. {hint}"
            )
        node = candidates[0]
    if all(graph_node.name != node for graph_node in nodes):
        raise NotFoundError(f"{definition.workflow!r} has no node {node!r}.{did_you_mean(node, models)}")
    if node not in models:
        raise UsageError(
            f"The node {node!r} of {definition.workflow!r} is a class, not a registered model. Change its code and "
            "deploy again."
        )
    return tuple(
        replace(graph_node, model=files, implementation=None, file=None) if graph_node.name == node else graph_node
        for graph_node in nodes
    )


def find_scaling(workflow: Workflow) -> Scaling | None:
    """Return the scaling of a workflow, which is set at one of its nodes."""
    return next((service.scaling for service in workflow.services if service.scaling is not None), None)


def _describe_batching(service: Service) -> BatchingOptions | None:
    batching = service.batching
    if batching is None:
        return None
    return BatchingOptions(max_size=batching.max_size, max_delay_s=float(batching.max_delay))  # type: ignore[arg-type]


def _to_json(value: Any) -> Any:
    """Return parameters as plain JSON values; references to secrets stay references."""
    if isinstance(value, Mapping):
        return {str(name): _to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(inner) for inner in value]
    return value.model_dump(mode="json") if isinstance(value, Secret) else value
