"""What a service was asked, what failed and how long it took, told as long as the executor looks at it."""

from __future__ import annotations

from typing import Any

import scanflow as sf
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.backends.service_records import RevisionRecord
from scanflow.errors import NotFoundError
from scanflow_agents.templates.control_plane import control_plane_of, tell


def declare_metrics(service: str, interval_s: float) -> None:
    known: dict[str, RevisionRecord] = {}
    looked: list[float] = []

    @sensor(sf.every(seconds=interval_s))
    def service_measured(context: Context) -> dict[str, Any]:
        """Tell what each revision was asked since the last look; nothing where it was not asked."""
        try:
            record = control_plane_of(context).service(service)
        except NotFoundError:
            looked.clear()
            known.clear()
            return {"requests": 0}
        now, told = context.clock(), 0
        for one in record.revisions:
            # What was asked before the first look of all is not known to belong to a time.
            before = known.get(one.id) or (RevisionRecord(id=one.id) if looked else one)
            again = one.requests < before.requests  # it was started anew, and counts from 0
            requests = one.requests - (0 if again else before.requests)
            errors = max(0, one.errors - (0 if again else before.errors))
            known[one.id], told = one, told + requests
            if requests:
                about: dict[str, Any] = {"requests": requests, "errors": errors, "p95_s": one.p95_s}
                about |= {"since": looked[0], "version": version_name(one)}
                tell(context, "service.measured", f"service/{service}", **about)
        looked[:] = [now]
        return {"requests": told}


def version_name(revision: RevisionRecord) -> str:
    """Return ``V3`` where a registered model is served, all of them with their names where there are several, else the
    revision's id."""
    models = [address.removeprefix("models:/").rpartition("/") for address in revision.models.values()]
    if len(models) == 1:
        return f"V{models[0][2]}"
    return ", ".join(f"{name} V{number}" for name, _, number in models) or revision.id
