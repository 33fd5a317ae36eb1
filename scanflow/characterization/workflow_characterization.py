"""What was measured of a service or an MPI job at several sizes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scanflow.characterization.analysis import ResourceRecommendation, Saturation


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRun:
    """Measurement of a service under load at one size, or of a run of a job with one number of ranks."""

    seconds: float
    """Duration of a run, or of a request."""

    cores: float
    """Cores used on average."""

    peak_bytes: int
    """Peak memory of an instance, or of all ranks together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCharacterization:
    name: str
    unit: str
    """What ``seconds`` measures: a request or a run."""

    runs: Mapping[str, tuple[SizedRun, ...]]
    """By size: ``1 instance × 2 cores``, ``2 ranks``."""

    saturation: Saturation
    recommendation: ResourceRecommendation
    missing: tuple[str, ...] = ()


def compute_median_seconds(runs: Sequence[SizedRun]) -> float:
    return statistics.median(run.seconds for run in runs)
