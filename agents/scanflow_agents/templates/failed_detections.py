"""Predictions whose detections fail again and again: so that they do not keep all later ones from being looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scanflow.agent.records import Action
from scanflow.backends.records import RunRecord


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Which detections over some predictions failed."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """How many, by the tracked run with the predictions; only those that were in one."""

    newest: RunRecord | None = None
    """The newest of them."""

    def given_up(self, most: int) -> list[str]:
        """Return the tracked runs that were in ``most`` of them, or more."""
        return [run_id for run_id, count in self.counts.items() if count >= most]


def failures_of(
    actions: Iterable[Action], records: Iterable[RunRecord], run_ids: Sequence[str], *, parameter: str
) -> Failures:
    """Return which detections of these tracked runs failed. Pure.

    Args:
        actions: What the checker had begun.
        records: Runs of the detector's workflow, the newest first. One that was stopped has not failed.
        run_ids: The tracked runs with predictions.
        parameter: The workflow's parameter by which it was given those.
    """
    given = {_run_of(action): _given(action, parameter) for action in actions}
    asked, counts = set(run_ids), Counter[str]()
    newest: RunRecord | None = None
    for record in records:
        mine = asked & given.get(str(record.name), set()) if record.state == "failed" else set()
        counts.update(mine)
        if mine:
            newest = newest or record
    return Failures(counts={run_id: counts[run_id] for run_id in run_ids if run_id in counts}, newest=newest)


def _run_of(action: Action) -> str | None:
    run = action.result.get("run") if isinstance(action.result, Mapping) else None
    return None if run is None else str(run)


def _given(action: Action, parameter: str) -> set[str]:
    parameters = action.intent.arguments.get("parameters")
    ids = parameters.get(parameter) if isinstance(parameters, Mapping) else None
    return {str(one) for one in ids} if isinstance(ids, list) else set()
