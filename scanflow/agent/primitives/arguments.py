"""Argument types shared by several primitives, with their validation and descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from scanflow.agent.primitive_model import BuiltInPrimitive
from scanflow.app.parameters import FrozenDict, to_plain_mapping
from scanflow.app.references import read_reference
from scanflow.app.resources import AffinityMode, GpuAmount, Resources
from scanflow.app.secrets import read_secret
from scanflow.errors import InvalidError
from scanflow.names import check_model_address, check_name
from scanflow.text.masking import SECRET_KEY


def _run_name(value: str) -> str:
    if not value.strip():
        raise InvalidError("The run has no name. Write one, or '@latest' for the newest.")
    return value


SomeMode: TypeAlias = Annotated[AffinityMode | None, Field(description="Where an instance may run.")]
Placed: TypeAlias = AffinityMode | dict[str, Any] | None
"""``"cpumem"``, the fields of an :class:`~scanflow.app.resources.Affinity`, or None for no preference."""


def _write_reference(value: Any) -> dict[str, str] | None:
    if (secret := read_secret(value)) is not None:
        return {SECRET_KEY: secret.source}
    ref = read_reference(value)
    return None if ref is None else ref.model_dump()


def _to_plain_settings(value: Any) -> Any:
    """Copy parameters as JSON values; a reference, to a secret or to what a revert sets an input to, stays one."""
    return to_plain_mapping(value, special=_write_reference)


Settings: TypeAlias = Annotated[
    Annotated[Mapping[str, Any], BeforeValidator(_to_plain_settings), AfterValidator(FrozenDict)] | None,
    Field(description="Parameters to set: 'epochs', or 'train.epochs' for one step."),
]
ModelAddress: TypeAlias = Annotated[
    str,
    AfterValidator(check_model_address),
    Field(description="The version: 'models:/name/3' or 'models:/name@alias'."),
]
Node: TypeAlias = Annotated[
    str | None, Field(description="The node with the model. Unset: the only node with a model.")
]
Count: TypeAlias = Annotated[int, Field(ge=0)]
CoreCount: TypeAlias = Annotated[float, Field(gt=0)]
Copies: TypeAlias = Annotated[Count | None, Field(description="The number of instances.")]
Cores: TypeAlias = Annotated[CoreCount | None, Field(description="Cores of one instance.")]
Gpus: TypeAlias = Annotated[
    GpuAmount | None,
    Field(description="GPUs of one instance: whole ones, as 1; a share of one, as 0.5; a MIG profile."),
]
RunName: TypeAlias = Annotated[str, AfterValidator(_run_name)]
Step: TypeAlias = Annotated[
    str, AfterValidator(lambda name: check_name(name, "executor")), Field(description="The executor's name.")
]


class ExecutorPrimitive(BuiltInPrimitive):
    layer = "infrastructure"
    executor: Step = Field(kw_only=False)

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(field.replace("EXECUTOR", self.executor) for field in self.writes)


class ResourceArguments(BuiltInPrimitive):
    """The resources to set. Omitted ones stay unchanged; a null in an inverse removes a limit."""

    cpu: Annotated[float | str | None, Field(description="Cores, as 2, 0.5 or '500m'.")] = None
    memory: Annotated[str | int | None, Field(description="Bytes, as '512Mi' or a number.")] = None
    gpu: Annotated[
        int | float | str | None, Field(description="Whole GPUs, as 1; a share of one, as 0.5; a MIG profile.")
    ] = None

    @field_validator("cpu", "memory", "gpu", mode="before")
    @classmethod
    def _normalize(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        return None if value is None else getattr(Resources(**{name: value}), name)

    def get_changed_resources(self) -> dict[str, Any]:
        """Return the resources to change, with None for a limit to remove."""
        changes = {name: getattr(self, name) for name in ("cpu", "memory", "gpu") if self.is_given(name)}
        changes = {name: value for name, value in changes.items() if name != "gpu" or value is not None}
        if not changes:
            raise InvalidError(f"{self.name} changes nothing. Set cpu=, memory= or gpu=.")
        return changes


def drop_none(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
