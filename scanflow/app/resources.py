"""The resources of a node, and where it may run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from scanflow.app.model import Model, as_tuple, describe_choices, shorten
from scanflow.app.parameters import FrozenDict, Texts
from scanflow.app.quantities import format_memory, parse_cpu, parse_memory
from scanflow.errors import InvalidError, did_you_mean

AffinityMode = Literal["any", "cpu", "cpumem", "cpumempin"]
"""Thesis 3.4.2 and 4.2.3: any core; own cores; own cores and near memory; each thread on its own core."""

MAX_GPUS: Final = 1024
MIN_GPU_SHARE: Final = 0.01
"""NVIDIA's Multi-Process Service divides a device by whole percents."""

_MIG_PROFILE = re.compile(r"[1-7]g\.[0-9]{1,4}gb(\+[a-z.]{1,12})?")


def parse_gpu(value: Any) -> int | float | str:
    """Parse GPUs: a whole number of them, a share of one below 1, or a MIG profile such as ``"1g.10gb"``."""
    if isinstance(value, bool):
        raise InvalidError(f"gpu cannot be {value!r}: it should be a number.")
    if isinstance(value, str):
        text = value.strip().lower()
        if _MIG_PROFILE.fullmatch(text):
            return text
        try:
            value = int(text) if text.isdecimal() else float(text)
        except ValueError:
            raise InvalidError(
                f"gpu {shorten(value)} cannot be read. Write a whole number of GPUs (2), a share of one (0.5) or a MIG "
                "profile ('1g.10gb')."
            ) from None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidError(f"gpu cannot be {shorten(value)}. Write 2, 0.5 or '1g.10gb'.")
    if value < 0 or value > MAX_GPUS:
        raise InvalidError(f"gpu {shorten(value)} is not between 0 and {MAX_GPUS}. Write how many, such as 1 or 0.5.")
    if value == int(value):
        return int(value)
    if value > 1:
        raise InvalidError(
            f"gpu {shorten(value)} is neither whole nor a share of one GPU. Write {math.ceil(value)}, or a share such "
            "as 0.5."
        )
    if value < MIN_GPU_SHARE:
        raise InvalidError(f"gpu {shorten(value)} is too small a share. Write at least {MIN_GPU_SHARE}.")
    return float(value)


GpuAmount: TypeAlias = Annotated[int | float | str, BeforeValidator(parse_gpu)]


class Resources(Model):
    """The resources of one copy of a node. Unset: unlimited, and one core is counted for planning."""

    cpu: Annotated[float | str, BeforeValidator(parse_cpu)] | None = None
    """Cores, as ``2``, ``0.5`` or ``"500m"``. Thread pools are sized to it, rounded up."""

    memory: Annotated[str | int, BeforeValidator(lambda value: format_memory(parse_memory(value)))] | None = None
    """Bytes, as ``"512Mi"``, ``"4Gi"`` or a number."""

    gpu: GpuAmount = 0
    """Whole GPUs, as ``1``; a share of one, as ``0.5``; or a MIG profile, as ``"1g.10gb"``. 0: it sees none."""

    gpu_memory: (
        Annotated[str | int, BeforeValidator(lambda value: format_memory(parse_memory(value, what="gpu_memory")))]
        | None
    ) = None
    """Bytes of a GPU's memory, as ``"8Gi"``: of a share, the most it may use (unset: the same share of the device's);
    else, what each device must have."""

    @model_validator(mode="after")
    def _check_gpu_memory(self) -> Self:
        if self.gpu_memory is not None and self.gpu == 0:
            raise InvalidError(
                f"Resources: gpu_memory={self.gpu_memory!r} is the memory of a GPU, and none is asked for. Write gpu=1 "
                "or a share such as gpu=0.5."
            )
        return self

    @property
    def cores(self) -> float | None:
        """Cores as a number. None: unlimited."""
        return None if self.cpu is None else float(self.cpu)

    @property
    def memory_bytes(self) -> int | None:
        """Memory in bytes. None: unlimited."""
        return None if self.memory is None else parse_memory(self.memory)

    @property
    def gpu_memory_bytes(self) -> int | None:
        """Memory of a GPU in bytes. None: it is not limited."""
        return None if self.gpu_memory is None else parse_memory(self.gpu_memory)

    @property
    def part_of_gpu(self) -> str | None:
        """How a GPU is cut for it, in words; None: it asks for none, or for whole ones of any size."""
        if isinstance(self.gpu, str):
            return f"gpu={self.gpu!r}, a MIG profile"
        if self.gpu % 1:
            return f"gpu={self.gpu}, a share"
        return None if self.gpu_memory is None else f"gpu_memory={self.gpu_memory!r}"


class Affinity(Model):
    """Where an instance may run. ``affinity="cpumem"`` is short for ``Affinity(mode="cpumem")``."""

    mode: AffinityMode = "any"
    """``any``: any core. ``cpu``: cores of its own. ``cpumem``: cores of its own, and memory near them. ``cpumempin``:
    as ``cpumem``, and each thread on one core."""

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
        modes = get_args(AffinityMode)
        if value is None or isinstance(value, Affinity | Mapping):
            return value
        if not isinstance(value, str):
            raise InvalidError(
                f"affinity cannot be {shorten(value)}. Write one of {', '.join(modes)}, or sf.Affinity(...)."
            )
        if value.lower() not in modes:
            raise InvalidError(f"affinity {value!r} is not known.{did_you_mean(value.lower(), modes)}")
        return {"mode": value.lower()}


_ModeInAnyCase = Annotated[str, WithJsonSchema(describe_choices(get_args(AffinityMode)))]
AffinityOrMode: TypeAlias = Annotated[
    Affinity | str | None, BeforeValidator(Affinity.coerce, json_schema_input_type=Affinity | _ModeInAnyCase | None)
]
