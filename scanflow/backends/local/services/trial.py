"""The judgement of a canary over time: where the counters stood when it began is kept on disk."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from scanflow.backends.local.services.definition import Definition
from scanflow.backends.local.services.figures import Conducted, Totals, between
from scanflow.backends.local.services.judge import Verdict, judge
from scanflow.backends.local.services.pulse import conduct
from scanflow.backends.local.services.stored import write_atomically

__all__ = ["Trial"]


class Trial:
    """What is on trial now, if anything is."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def verdict(self, definition: Definition, totals: Totals, wall: float) -> Verdict | None:
        """Return what becomes of the canary; None: none is to be judged. ``wall``: seconds since the epoch."""
        trial = definition.trial
        if trial is None or definition.judgement is None:
            return None
        names = (definition.current.id, trial.id)
        kept = self._read()
        if kept is None or kept[0] != names[1]:
            kept = (names[1], wall, {name: totals.revisions.get(name, Conducted()) for name in names})
            self._write(*kept)
        _, began, before = kept
        current, canary = (
            conduct(between(before.get(name, Conducted()), totals.revisions.get(name, Conducted()))) for name in names
        )
        return judge(definition.judgement, current=current, canary=canary, elapsed_s=wall - began)

    def _read(self) -> tuple[str, float, dict[str, Conducted]] | None:
        try:
            found = json.loads(self._path.read_bytes())
            conducted = {}
            for name, one in found["before"].items():
                buckets = {float(limit): count for limit, count in one.pop("buckets").items()}
                conducted[name] = Conducted(**one, buckets=buckets)
            return str(found["revision"]), float(found["began"]), conducted
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _write(self, revision: str, began: float, before: dict[str, Conducted]) -> None:
        kept = {"revision": revision, "began": began, "before": {name: asdict(one) for name, one in before.items()}}
        write_atomically(self._path, json.dumps(kept).encode())
