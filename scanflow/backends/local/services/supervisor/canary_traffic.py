"""Canary analysis; the counters at its start are stored on disk."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from scanflow.backends.canary_analysis import RevisionStats, Verdict, analyse, subtract_stats
from scanflow.backends.service_metrics import Totals
from scanflow.backends.service_spec import ServiceSpec
from scanflow.processes.shared_files import write_atomically


class _CanaryBaseline(BaseModel):
    """The counters at the start of a canary analysis."""

    revision: str
    began: float  # seconds since the epoch
    before: dict[str, RevisionStats]


class CanaryAnalysis:
    """The analysis of the current canary, if any."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beginning: _CanaryBaseline | None = None

    def decide(self, definition: ServiceSpec, totals: Totals, wall: float) -> Verdict | None:
        """Return the decision on the canary; None: there is none to analyse. ``wall``: seconds since the epoch.

        Raises:
            UnavailableError: the start of the analysis cannot be stored.
        """
        canary = definition.canary
        if canary is None or definition.policy is None:
            return None
        names = (definition.current.id, canary.id)
        beginning = self._beginning or self._read()
        if beginning is None or beginning.revision != canary.id:
            beginning = _CanaryBaseline(
                revision=canary.id, began=wall, before={name: totals.get_revision(name) for name in names}
            )
            write_atomically(self._path, beginning.model_dump_json().encode())
        self._beginning = beginning
        current, trial = (
            subtract_stats(beginning.before.get(name, RevisionStats()), totals.get_revision(name)) for name in names
        )
        return analyse(definition.policy, current=current, canary=trial, elapsed_s=wall - beginning.began)

    def _read(self) -> _CanaryBaseline | None:
        try:
            return _CanaryBaseline.model_validate_json(self._path.read_bytes())
        except (OSError, ValueError):
            return None
