"""The planner's strategies for the layer below the application: a stand-in, and placement (thesis 5.5.3)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.resources import AffinityMode
from scanflow.backends.service_records import ServiceRecord
from scanflow_agents.templates.control_plane import control_plane_of
from scanflow_agents.templates.options import Watching


class PlacementOptions(Watching):
    """Parameters of the strategies below, as the planner has them."""

    backup_workflow: str | None = None
    """An online workflow to deploy when the service has no ready instance. None: off."""

    backup_after_s: float = Field(default=0.0, ge=0)
    """For how long that must have been so, in seconds."""

    spread_affinity: AffinityMode | None = None
    """Where several instances are to be, such as ``cpu``: each on cores of its own. None: off."""


def declare_failover(service: str, backup: str, options: PlacementOptions) -> None:
    """Declare ``backup_failover``: deploy another online workflow once a service had no ready instance for
    ``backup_after_s``.

    For how long is counted from the first look that found it down, and told in the sample, so that the rule needs no
    memory. An agent that is restarted counts from zero: it is never too early.
    """
    unready = sf.on_event("service.unready", subject=f"service/{service}")
    since: float | None = None

    @sensor(sf.any_of(unready, sf.every(seconds=options.watch_interval_s)))
    def service_health(context: Context) -> dict[str, Any]:
        """Look how the service and its stand-in are, and for how long each look has found it down."""
        nonlocal since
        found = {one.name: one for one in control_plane_of(context).services()}
        record, now = found.get(service), context.clock()
        down = record is not None and is_down(record)
        since = (now if since is None else since) if down else None
        return {
            "state": None if record is None else record.state,
            "down": down,
            "down_s": 0.0 if since is None else max(0.0, now - since),
            "backup": backup in found,
        }

    Strategy(
        name="backup_failover",
        when=service_health,
        if_=lambda found: found["down"] and found["down_s"] >= options.backup_after_s and not found["backup"],
        then=do.deploy_workflow(backup),
        autonomy=options.autonomy,
        priority=10,
    )


def declare_spreading(service: str, affinity: AffinityMode, options: PlacementOptions) -> None:
    """Declare ``spread_instances``: keep several instances from each other's cores."""

    @sensor(sf.every(seconds=options.watch_interval_s))
    def service_placement(context: Context) -> dict[str, Any]:
        """Look where the service's instances may run."""
        shape = control_plane_of(context).service(service).shape
        return {"instances": shape.instances, "affinity": shape.affinity}

    Strategy(
        name="spread_instances",
        when=service_placement,
        if_=lambda found: found["instances"] > 1 and found["affinity"] != affinity,
        then=do.update_workflow_affinity(service, affinity, kind="online"),
        cool_down=options.watch_cool_down_s,
        autonomy=options.autonomy,
    )


def is_down(record: ServiceRecord) -> bool:
    """Say whether a service that should answer has no instance that could. Pure."""
    if record.state in {"idle", "starting", "unsupervised"} or record.shape.instances == 0:
        return False
    return not any(one.state == "ready" for one in record.instances)
