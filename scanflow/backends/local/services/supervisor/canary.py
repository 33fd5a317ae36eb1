"""Whether a canary is promoted, taken back, or watched on; where the counters stood when that began is kept on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from scanflow.backends.local.services.spec.service_spec import ServiceSpec
from scanflow.backends.local.services.supervisor.metrics import RevisionStats, Totals, between
from scanflow.backends.service_records import CanaryPolicy, quantile
from scanflow.processes.files import write_atomically


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision, and why, for people."""

    decision: Literal["promote", "take back", "wait"]
    reason: str


def analyse(policy: CanaryPolicy, *, current: RevisionStats, canary: RevisionStats, elapsed_s: float) -> Verdict:
    """Return what becomes of the canary, from what both revisions did since it began. Pure.

    Where the current revision answered nothing meanwhile, there is nothing to compare with: its value counts as 0, so
    that only ``slack`` lets a canary through. A canary that fails nothing always passes on ``errors``.
    """
    if canary.requests < policy.after_requests:
        seen = f"{canary.requests:.0f} of {policy.after_requests} requests"
        if elapsed_s >= policy.within_s:
            return Verdict("take back", f"it answered {seen} within {policy.within_s:g} s")
        return Verdict("wait", f"it has answered {seen}")
    own, other = _value(policy, canary), _value(policy, current)
    limit = policy.ratio * other + policy.slack
    compared = (
        f"{policy.metric} {own:.4g} against at most {policy.ratio:g} x {other:.4g} + {policy.slack:g} = {limit:.4g}"
    )
    return Verdict("promote" if own <= limit else "take back", compared)


def _value(policy: CanaryPolicy, stats: RevisionStats) -> float:
    if policy.metric == "errors":
        return stats.errors / stats.requests if stats.requests else 0.0
    return (quantile(stats.buckets, 0.95) if policy.metric == "p95" else stats.mean_s) or 0.0


class _Beginning(BaseModel):
    """Where the counters stood when the analysis of a canary began."""

    revision: str
    began: float  # seconds since the epoch
    before: dict[str, RevisionStats]


class CanaryAnalysis:
    """The analysis of the canary that there is now, if any."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beginning: _Beginning | None = None

    def verdict(self, definition: ServiceSpec, totals: Totals, wall: float) -> Verdict | None:
        """Return what becomes of the canary; None: none is to be analysed. ``wall``: seconds since the epoch.

        Raises:
            UnavailableError: the beginning of the analysis cannot be written down.
        """
        canary = definition.canary
        if canary is None or definition.policy is None:
            return None
        names = (definition.current.id, canary.id)
        beginning = self._beginning or self._read()
        if beginning is None or beginning.revision != canary.id:
            beginning = _Beginning(revision=canary.id, began=wall, before={name: totals.of(name) for name in names})
            write_atomically(self._path, beginning.model_dump_json().encode())
        self._beginning = beginning
        current, other = (between(beginning.before.get(name, RevisionStats()), totals.of(name)) for name in names)
        return analyse(definition.policy, current=current, canary=other, elapsed_s=wall - beginning.began)

    def _read(self) -> _Beginning | None:
        try:
            return _Beginning.model_validate_json(self._path.read_bytes())
        except (OSError, ValueError):
            return None
