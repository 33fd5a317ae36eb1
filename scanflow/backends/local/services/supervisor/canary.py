"""Whether a canary is promoted, taken back, or watched on; where the counters stood when that began is kept on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from scanflow.backends.local.services.spec.service_spec import ServiceSpec
from scanflow.backends.local.services.supervisor.metrics import RevisionStats, Totals, between, quantile
from scanflow.backends.service_records import CanaryPolicy
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


class CanaryAnalysis:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._began: tuple[str, float, dict[str, RevisionStats]] | None = None

    def verdict(self, definition: ServiceSpec, totals: Totals, wall: float) -> Verdict | None:
        """Return what becomes of the canary; None: none is to be analysed. ``wall``: seconds since the epoch.

        Raises:
            UnavailableError: the beginning of the analysis cannot be written down.
        """
        canary = definition.canary
        if canary is None or definition.policy is None:
            return None
        names = (definition.current.id, canary.id)
        self._began = self._began or self._read()
        if self._began is None or self._began[0] != canary.id:
            self._began = (canary.id, wall, {name: totals.of(name) for name in names})
            self._write(*self._began)
        _, began, before = self._began
        current, other = (between(before.get(name, RevisionStats()), totals.of(name)) for name in names)
        return analyse(definition.policy, current=current, canary=other, elapsed_s=wall - began)

    def _read(self) -> tuple[str, float, dict[str, RevisionStats]] | None:
        try:
            found = json.loads(self._path.read_bytes())
            stats = {}
            for name, one in found["before"].items():
                buckets = {float(limit): count for limit, count in one.pop("buckets").items()}
                stats[name] = RevisionStats(**one, buckets=buckets)
            return str(found["revision"]), float(found["began"]), stats
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, revision: str, began: float, before: dict[str, RevisionStats]) -> None:
        kept = {"revision": revision, "began": began, "before": {name: asdict(one) for name, one in before.items()}}
        write_atomically(self._path, json.dumps(kept).encode())
