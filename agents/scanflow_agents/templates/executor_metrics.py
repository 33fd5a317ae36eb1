"""Report a service's requests, errors and latency while the executor runs."""

from __future__ import annotations

from typing import Any

import scanflow as sf
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.backends.service_records import RevisionRecord
from scanflow.errors import NotFoundError
from scanflow_agents.templates.template_client import get_control_plane, report_event


def declare_metrics(service: str, interval_s: float) -> None:
    previous: dict[str, RevisionRecord] = {}
    looked: list[float] = []

    @sensor(sf.every(seconds=interval_s))
    def service_measured(context: Context) -> dict[str, Any]:
        """Report each revision's requests since the last check, if there were any."""
        try:
            record = get_control_plane(context).service(service)
        except NotFoundError:
            looked.clear()
            previous.clear()
            return {"requests": 0}
        now, total = context.clock(), 0
        for revision in record.revisions:
            # Requests before the first check have no known period.
            before = previous.get(revision.id) or (RevisionRecord(id=revision.id) if looked else revision)
            again = revision.requests < before.requests  # it was restarted, and counts from 0
            requests = revision.requests - (0 if again else before.requests)
            errors = max(0, revision.errors - (0 if again else before.errors))
            previous[revision.id], total = revision, total + requests
            if requests:
                about: dict[str, Any] = {"requests": requests, "errors": errors, "p95_s": revision.p95_s}
                about |= {"since": looked[0], "version": format_version(revision)}
                report_event(context, "service.measured", f"service/{service}", **about)
        looked[:] = [now]
        return {"requests": total}


def format_version(revision: RevisionRecord) -> str:
    """Format the version of a revision: ``V3`` for a registered model, with names for several, else the revision's
    id."""
    models = [address.removeprefix("models:/").rpartition("/") for address in revision.models.values()]
    if len(models) == 1:
        return f"V{models[0][2]}"
    return ", ".join(f"{name} V{number}" for name, _, number in models) or revision.id
