"""The scaling of a service: its number of instances, and the metric that decides it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from scanflow.app.model import Model, Number, Whole
from scanflow.app.quantities import Seconds, Wait
from scanflow.errors import InvalidError

ScalingMetric = Literal["rps", "p95", "cpu", "queue", "gpu", "gpu_memory"]
"""Requests a second per instance; 95th percentile of latency in seconds; share of its cores; waiting requests; share of
the time in which its GPUs compute; share of their memory that it holds."""


class Scaling(Model):
    """Keep ``metric`` near ``target`` by changing the number of instances between ``min`` and ``max``."""

    metric: ScalingMetric
    """``rps`` (requests per second), ``p95`` (latency in seconds), ``cpu`` (share of the cores, 0 to 1), ``queue``
    (waiting requests), ``gpu`` or ``gpu_memory`` (share, 0 to 1), each of one instance."""

    target: Number = Field(gt=0)
    """The value of the metric that each instance should see."""

    min: Whole = Field(default=1, ge=0)
    """The minimum number of instances. 0: none while idle; the first request starts one."""

    max: Whole = Field(default=1, ge=1)
    """The maximum number of instances."""

    up: Number | None = Field(default=None, gt=0)
    """Above this value, instances are added. Unset: the target and its tolerance."""

    down: Number | None = Field(default=None, gt=0)
    """Below this value, instances are removed. Unset: the target minus its tolerance."""

    tolerance: Number = Field(default=0.1, gt=0, lt=1)
    """The relative deviation from the target that causes no change, as in Kubernetes."""

    polling: Seconds = 15.0
    """The interval between two looks at the metric, in seconds."""

    stabilization_window_s: Wait = 300.0
    """Seconds for which fewer instances must have been enough before any are removed. Instances are added at once."""

    cool_down: Seconds = 60.0
    """With ``min=0``: seconds without a request before the last instance is removed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise InvalidError(f"Scaling has min={self.min} above max={self.max}. Swap them, or raise max.")
        if self.down_threshold >= self.up_threshold:
            raise InvalidError(
                f"Scaling goes down below {self.down_threshold:g} and up above {self.up_threshold:g}: the number of "
                f"instances would oscillate. Write down={self.up_threshold * 0.8:g} or less."
            )
        if self.reads_gpus and self.up_threshold >= 1:
            raise InvalidError(
                f"Scaling adds instances above {self.up_threshold:g}, and {self.metric!r} is a share, which is never "
                "above 1. Write target=0.7."
            )
        return self

    @property
    def reads_gpus(self) -> bool:
        """Whether its metric is one of GPUs."""
        return self.metric in {"gpu", "gpu_memory"}

    @property
    def up_threshold(self) -> float:
        """The value of the metric above which instances are added."""
        return self.target * (1 + self.tolerance) if self.up is None else self.up

    @property
    def down_threshold(self) -> float:
        """The value of the metric below which instances are removed."""
        return self.target * (1 - self.tolerance) if self.down is None else self.down
