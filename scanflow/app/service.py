"""The node of an online inference graph."""

from __future__ import annotations

from types import FunctionType
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from scanflow.app.cell_classes import explain_file
from scanflow.app.edges import Linkable
from scanflow.app.model import Whole, describe_choices
from scanflow.app.parameters import FrozenDict, Parameters
from scanflow.app.resources import AffinityOrMode, Resources
from scanflow.app.scaling import Scaling
from scanflow.app.serving import Batching
from scanflow.errors import InvalidError, did_you_mean
from scanflow.names import check_locator, check_model_address, check_name

ServiceRole = Literal["MODEL", "TRANSFORMER", "ROUTER", "COMBINER", "OUTPUT_TRANSFORMER"]
_ROLES: tuple[ServiceRole, ...] = get_args(ServiceRole)
_RoleInAnyCase = Annotated[str, WithJsonSchema(describe_choices(_ROLES))]


def _check_implementation(value: Any) -> Any:
    if isinstance(value, FunctionType):
        raise InvalidError(
            f"implementation is the function {value.__name__!r}, and a component is a class. Write one with the method "
            "predict(self, inputs) into a file, and name both: implementation='model.py:Model'."
        )
    if type(value).__module__ == "__main__":  # a component that a notebook has made
        value = type(value)
    if not isinstance(value, type):
        return value
    file, move = explain_file(value, "model.py")
    name = value.__qualname__
    raise InvalidError(
        f"implementation is the class {name!r} itself, and instances, which outlive this process, load it from its "
        f"file. Write implementation='{file}:{name}'.{move}"
    )


def _check_role(role: Any) -> Any:
    if isinstance(role, str) and role.upper() in _ROLES:
        return role.upper()
    raise InvalidError(f"role {role!r} is not known.{did_you_mean(str(role).upper(), _ROLES)}")


class Service(Linkable):
    """One node of an inference graph: a Python class, or a model of the registry."""

    kind: Literal["service"] = "service"
    """What tells nodes apart in files."""

    name: Annotated[str, AfterValidator(lambda name: check_name(name, "service"))]
    """Unique in the workflow; lower-case letters, digits and ``-``."""

    role: Annotated[ServiceRole, BeforeValidator(_check_role, json_schema_input_type=_RoleInAnyCase)] = "MODEL"
    """The node's role in the graph, in Seldon's terms."""

    implementation: Annotated[
        Annotated[str, AfterValidator(lambda value: check_locator(value, "implementation"))] | None,
        BeforeValidator(_check_implementation),
    ] = None
    """A class as ``file.py:Class`` or ``package.module:Class``."""

    model: str | None = None
    """A model of the registry: ``models:/name@alias`` or ``models:/name/3``."""

    parameters: Parameters = Field(default_factory=FrozenDict)
    """Arguments of the class."""

    requirements: str | None = None
    """A requirements file. None: the packages installed where the instance runs."""

    image: str | None = None
    """A container image, for backends that run containers; others report at ``check`` that it is not used."""

    resources: Resources = Resources()
    """The resources of one instance. Those of a graph's nodes are added, since an instance contains all of them."""

    affinity: AffinityOrMode = None
    """Where an instance may run. None: anywhere. The strictest affinity of a graph's nodes applies."""

    instances: Whole = Field(default=1, ge=0)
    """The number of instances, without a scaling."""

    scaling: Scaling | None = None
    """The autoscaling, at one node of a graph at most. None: ``instances``, until the service is resized."""

    batching: Batching | None = None
    """Dynamic batching of requests. Unset: each request is a call."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        who = f"Service {self.name!r}"
        if (self.implementation is None) == (self.model is None):
            raise InvalidError(f"{who} needs either an 'implementation' (a Python class) or a 'model', not both.")
        if self.model is not None:
            check_model_address(self.model, what=f"{who}: the model")
        if self.model is not None and self.role != "MODEL":
            raise InvalidError(f"{who} has a registry model, so its role is MODEL, not {self.role}.")
        if self.batching is not None and self.role in {"ROUTER", "COMBINER"}:
            raise InvalidError(
                f"{who} is a {self.role}, which decides on one request at a time. Move the batching to another node."
            )
        return self
