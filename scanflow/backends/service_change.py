"""Requests to deploy and change a service: from the command line, REST, the SDK, operations and primitives."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from scanflow.app.application import Application
from scanflow.app.model import Model, Number, Whole
from scanflow.app.quantities import MAX_CORES, MAX_MEMORY, MIN_MEMORY, parse_memory
from scanflow.app.resources import AffinityMode, parse_gpu
from scanflow.app.scaling import Scaling
from scanflow.app.workflow import Workflow
from scanflow.backends.service_records import CanaryPolicy
from scanflow.errors import UsageError

__all__ = ["CanaryPolicy", "Deployment", "ServiceChange", "Sizing"]

MAX_INSTANCES = 100_000
_SIZE = ("instances", "cores", "memory_bytes", "gpu", "gpu_memory_bytes", "affinity", "threads", "scaling", "backup")

_Bytes: TypeAlias = Annotated[Whole, Field(ge=MIN_MEMORY, le=MAX_MEMORY)]


def _parse_bytes(value: object) -> object:
    return parse_memory(value) if isinstance(value, str) else value


def _parse_gpu(value: object) -> object:
    return None if value is None else parse_gpu(value)


class Sizing(Model):
    """The number, size and placement of a service's instances. A field that is None stays as it is."""

    instances: Annotated[Whole | None, Field(ge=0, le=MAX_INSTANCES)] = None
    cores: Annotated[Number | None, Field(gt=0, le=MAX_CORES)] = None
    """Cores of one instance."""

    memory_bytes: Annotated[_Bytes | None, BeforeValidator(_parse_bytes)] = None
    """Memory of one instance, in bytes or as ``"2Gi"``."""

    gpu: Annotated[int | float | str | None, BeforeValidator(_parse_gpu)] = None
    """GPUs of one instance: whole ones, a share of one, or a MIG profile; 0: none."""

    gpu_memory_bytes: Annotated[_Bytes | None, BeforeValidator(_parse_bytes)] = None
    """Of a share, the most of a GPU's memory that an instance may use; else what each of its GPUs must have."""

    affinity: AffinityMode | None = None
    threads: Annotated[Whole | None, Field(ge=1, le=MAX_CORES)] = None
    """Threads in each of an instance's pools. None: one for each core."""

    @property
    def given(self) -> frozenset[str]:
        return frozenset(name for name in type(self).model_fields if getattr(self, name) is not None)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A request to serve an online workflow. Omitted fields take the workflow's values."""

    app: Application
    workflow: str | None = None
    """The workflow's name. None: the only online one."""

    _: KW_ONLY
    sizing: Sizing | None = None
    port: int | None = None
    """The HTTP port. None: the workflow's, else the next free one."""

    source: Path | None = None
    """The application's file."""

    is_copy: bool = False
    """Whether it serves a copy for a while, as for a search: a server does not store the copy's application."""

    @property
    def online(self) -> Workflow:
        """The workflow.

        Raises:
            NotFoundError: there is none of that name, or none was named and there is not exactly one.
            UsageError: it is run, not served.
        """
        served = [workflow for workflow in self.app.workflows if workflow.type == "online"]
        chosen = served[0] if self.workflow is None and len(served) == 1 else self.app.workflow(self.workflow)
        if chosen.type != "online":
            raise UsageError(
                f"The workflow {chosen.name!r} is of type {chosen.type!r}: it runs to completion and is not served. "
                "Run it: scanflow run"
            )
        return chosen


class ServiceChange(Sizing):
    """A change of a service. It is one of four kinds; fields of different kinds exclude each other.

    * size: ``instances``, ``cores``, ``memory_bytes``, ``gpu``, ``gpu_memory_bytes``, ``affinity``, ``threads``,
      ``scaling``, ``backup``
    * a model version: ``model`` alone replaces the served version; with ``weight`` or ``shadow`` it is a canary
    * ``promote``: the canary becomes the served version
    * ``rollback``: the canary is removed; without one, what was served before is served again, sized as it was
    """

    scaling: Scaling | Literal["off"] | None = None
    """The autoscaling rule; ``"off"``: no autoscaling from now on."""

    backup: str | None = None
    """The online workflow that answers while this one cannot; ``""``: no backup from now on."""

    model: Annotated[str | None, Field(max_length=4096)] = None
    """A version in the registry: ``models:/name/3`` or ``models:/name@alias``."""

    node: Annotated[str | None, Field(max_length=4096)] = None
    """The node whose model it is. None: the only one with a model."""

    weight: Annotated[Number | None, Field(ge=0, le=1)] = None
    """The canary's share of the requests, from 0 to 1; 0 removes it."""

    shadow: bool | None = None
    """Send the canary a copy of each request, and only count its answers."""

    policy: CanaryPolicy | None = None
    """When the canary is promoted or removed automatically. None: a person or an agent decides."""

    promote: bool | None = None
    rollback: bool | None = None

    reason: Annotated[str | None, Field(max_length=1000)] = None
    """Why a person requests it: kept with the request, and shown by ``scanflow why``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        fields = {name for name in self.given - {"reason"} if getattr(self, name) is not False}
        if not fields:
            raise UsageError(
                "The request changes nothing. Give instances, cores or affinity; or a model, promote or rollback."
            )
        kinds = {"size" if name in _SIZE else name if name in {"promote", "rollback"} else "model" for name in fields}
        if len(kinds) > 1:
            raise UsageError(
                f"A change has one kind, but {', '.join(sorted(fields))} are of {len(kinds)} kinds. Request them "
                "separately."
            )
        if kinds == {"model"} and self.model is None:
            raise UsageError(
                f"{', '.join(sorted(fields))} applies to a model version. Name it: model='models:/name/3'."
            )
        if self.policy is not None and not self.is_canary:
            raise UsageError("A canary policy needs a canary. Give it a weight, or shadow.")
        return self

    @property
    def is_canary(self) -> bool:
        """Whether it starts, changes or removes a canary of ``model``."""
        return self.model is not None and (self.weight is not None or bool(self.shadow))

    @property
    def removes_canary(self) -> bool:
        return self.is_canary and not self.weight and not self.shadow

    @property
    def sizing(self) -> Sizing | None:
        """The sizing fields; None: there are none."""
        fields = {name: getattr(self, name) for name in Sizing.model_fields if getattr(self, name) is not None}
        return Sizing(**fields) if fields else None
