"""Reading what a primitive is given, and saying which argument is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scanflow.app.resources import AffinityMode
from scanflow.errors import InvalidError, did_you_mean

Count = Annotated[int, Field(strict=True, ge=0)]
Cores = Annotated[float, Field(strict=True, gt=0)]
Placed = AffinityMode | dict[str, Any] | None
"""``"cpumem"``, the fields of an :class:`~scanflow.app.resources.Affinity`, or None for no wish."""


class Arguments(BaseModel):
    """The arguments of one primitive."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class OfWorkflow(Arguments):
    """What is done to a workflow."""

    workflow: str


class OfExecutor(OfWorkflow):
    """What is done to one step of a workflow."""

    executor: str


A = TypeVar("A", bound=Arguments)


def read(kind: type[A], primitive: str, given: Mapping[str, Any]) -> A:
    """Return the arguments of a primitive.

    Raises:
        InvalidError: names the primitive and each argument that is missing, unknown or wrong.
    """
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        lines = []
        for one in error.errors(include_url=False, include_input=True):
            name = ".".join(str(part) for part in one["loc"])
            if one["type"] == "extra_forbidden":
                lines.append(f"{primitive} takes no {name!r}.{did_you_mean(name, kind.model_fields)}")
            elif one["type"] == "missing":
                lines.append(f"{primitive} needs {name!r}.")
            else:
                lines.append(f"{primitive}: {name} cannot be {one['input']!r:.60}: {one['msg']}.")
        raise InvalidError("\n".join(dict.fromkeys(lines))) from None
