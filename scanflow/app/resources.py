"""The resources of a node, and where it may run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from scanflow.app.model import Model, Whole, as_tuple, shorten
from scanflow.app.parameters import FrozenDict, Texts
from scanflow.app.quantities import format_memory, parse_cpu, parse_memory
from scanflow.errors import InvalidError, did_you_mean

AffinityMode = Literal["any", "cpu", "cpumem", "cpumempin"]
"""Thesis 3.4.2 and 4.2.3: any core; own cores; own cores and near memory; each thread on its own core."""


class Resources(Model):
    """The resources of one copy of a node. Unset: unlimited, and one core is counted for planning."""

    cpu: Annotated[float | str, BeforeValidator(parse_cpu)] | None = None
    """Cores, as ``2``, ``0.5`` or ``"500m"``. Thread pools are sized to it, rounded up."""

    memory: Annotated[str | int, BeforeValidator(lambda value: format_memory(parse_memory(value)))] | None = None
    """Bytes, as ``"512Mi"``, ``"4Gi"`` or a number."""

    gpu: Whole = Field(default=0, ge=0)

    @property
    def cores(self) -> float | None:
        return None if self.cpu is None else float(self.cpu)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_memory(self.memory)


class Affinity(Model):
    """Where an instance may run. ``affinity="cpumem"`` is short for ``Affinity(mode="cpumem")``."""

    mode: AffinityMode = "any"
    node_selector: Texts = Field(default_factory=FrozenDict)
    """Labels that a Kubernetes node must carry."""

    near: Annotated[Sequence[str], AfterValidator(as_tuple)] = ()
    """Nodes of the same workflow to be placed on the same machine."""

    apart_from: Annotated[Sequence[str], AfterValidator(as_tuple)] = ()
    """Nodes of the same workflow to be placed on other machines."""

    avoid_services: Annotated[Sequence[str], AfterValidator(as_tuple)] = ()
    """Online workflows of the application: a batch step avoids the cores that their instances use when it starts
    (thesis Fig. 5.14). If they use all cores, it runs on any."""

    @staticmethod
    def coerce(value: Any) -> Any:
        """Read the short spelling, in upper or lower case: ``"CPUMEM"`` becomes ``{"mode": "cpumem"}``."""
        modes = ("any", "cpu", "cpumem", "cpumempin")
        if value is None or isinstance(value, Affinity | Mapping):
            return value
        if not isinstance(value, str):
            raise InvalidError(
                f"affinity cannot be {shorten(value)}. Write one of {', '.join(modes)}, or sf.Affinity(...)."
            )
        if value.lower() not in modes:
            raise InvalidError(f"affinity {value!r} is not known.{did_you_mean(value.lower(), modes)}")
        return {"mode": value.lower()}
