"""A primitive declared once: its fields are its arguments, and it says what it writes and how it is carried out.

The author of a strategy, the arbiter and the control plane use this one class. A package of a user's own adds one by an
entry point::

    [project.entry-points."scanflow.primitives"]
    warm_cache = "my_package:WarmCache"
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from scanflow.agent.actions import Act, Kind
from scanflow.agent.catalogue import Layer, Parameter, Primitive, type_name
from scanflow.agent.records import PrimitiveCall
from scanflow.app.model import Model
from scanflow.errors import UsageError
from scanflow.plugins import load_plugin, plugin_names

if TYPE_CHECKING:
    from scanflow.app.workflow import Workflow
    from scanflow.deployer.port import Deployer


@dataclass(frozen=True, slots=True)
class PrimitiveResult:
    """What a primitive did."""

    result: dict[str, Any]
    inverse: PrimitiveCall | None = None
    """What would undo it; None: nothing does."""


class PrimitiveContext(Protocol):
    """What a primitive may use while it is carried out."""

    @property
    def deployer(self) -> Deployer:
        """What runs and serves. Changes of services are queued with those of people."""
        ...

    @property
    def app(self) -> str:
        """The application that it is done for."""
        ...

    @property
    def team(self) -> str:
        """That application's team."""
        ...

    @property
    def key(self) -> str:
        """Idempotency key: the same for each attempt."""
        ...

    def workflow(self, name: str) -> tuple[Any, Workflow]:
        """Return the stored application, and one of its workflows."""
        ...

    def undo(self, primitive: str, arguments: Mapping[str, Any]) -> PrimitiveCall:
        """Record what undoes the change that comes next, and return it; what an earlier attempt recorded stays."""
        ...


class PrimitiveModel(Model):
    """One operation. Subclass it: the fields are the arguments, the docstring's first sentence says what it does."""

    name: ClassVar[str]
    """As strategies write it: ``do.NAME(...)``."""

    layer: ClassVar[Layer] = "application"
    kind: ClassVar[Kind] = "batch"
    writes: ClassVar[tuple[str, ...]]
    """The fields of the target that it writes: two actions that write the same one conflict."""

    reversible: ClassVar[bool] = False
    """Whether it can be undone."""

    workflow: str
    """The name of the workflow, or service, that it is about."""

    @property
    def target(self) -> str:
        """What it changes: ``workflow/NAME``, ``service/NAME`` or ``run/NAME``."""
        return f"{'service' if self.kind == 'online' else 'workflow'}/{self.workflow}"

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Do it, and return what was done. Called again with the same key after a kill, it must be as if done once."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is carried out.")

    def act(self) -> Act:
        """Return it as a value that a strategy wants."""
        dumped = self.model_dump(mode="json")
        given = {name: dumped[name] for name in sorted(self.model_fields_set)}
        return Act(primitive=self.name, kind=self.kind, arguments=given, target=self.target, fields=self.writes)

    @classmethod
    def row(cls) -> Primitive:
        """Return it as it is listed."""
        parameters = [
            Parameter(
                name=name, type=type_name(field.annotation), required=field.is_required(), what=field.description or ""
            )
            for name, field in cls.model_fields.items()
        ]
        return Primitive(
            name=cls.name,
            layer=cls.layer,
            kind=cls.kind,
            what=(inspect.getdoc(cls) or "").partition(".")[0] + ".",
            target="service/WORKFLOW" if cls.kind == "online" else "workflow/WORKFLOW",
            fields=cls.writes,
            inverse=cls.reversible,
            parameters=tuple(parameters),
        )


def installed_primitive(name: str) -> type[PrimitiveModel] | None:
    """Return the primitive that a package adds under that name; None: none does.

    Raises:
        UsageError: what is installed is no primitive, or has another name.
    """
    if name not in plugin_names("primitives"):
        return None
    found = load_plugin("primitives", name)
    if not (isinstance(found, type) and issubclass(found, PrimitiveModel) and found.name == name):
        raise UsageError(f"The entry point {name!r} of 'scanflow.primitives' is no PrimitiveModel of that name.")
    return found


def installed_primitives() -> tuple[Primitive, ...]:
    """Return the rows of all primitives that packages add."""
    found = [installed_primitive(name) for name in plugin_names("primitives")]
    return tuple(one.row() for one in found if one is not None)
