"""The planner's strategies for a service that is down: a backup is deployed, and ended when it is no longer wanted
(thesis 5.5.3, Fig. 5.15)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.context import Context
from scanflow.agent.records import Action
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.resources import AffinityMode
from scanflow.backends.service_records import ServiceRecord
from scanflow_agents.templates.control_plane import acted_on, control_plane_of
from scanflow_agents.templates.options import Watching


class PlacementOptions(Watching):
    """Parameters of the strategies below, as the planner has them."""

    backup_workflow: str | None = None
    """An online workflow to deploy when the service has no ready instance. None: off."""

    backup_after_s: float = Field(default=0.0, ge=0)
    """For how long that must have been so, in seconds. One look never decides: two of three must find it so."""

    backup_keep_s: float = Field(default=600.0, gt=0)
    """For how long the service must have been ready before the backup is ended again, in seconds; twice as long
    for each time that it was within a day."""

    spread_affinity: AffinityMode | None = None
    """Where its instances move, such as ``cpu``, to cores of their own, when it is measured that another service, or
    one of them another, slows it down; batch workflows that do are kept off its cores. None: off."""


FAILOVER, RETIREMENT = "backup_failover", "backup_retirement"
AGREEING, LOOKS = 2, 3
"""Of the last three looks, two must find a service down."""

DAY_S = 86_400.0


def declare_failover(service: str, backup: str, options: PlacementOptions, *, linked: bool) -> None:
    """Declare ``backup_failover``: deploy another online workflow once a service had no ready instance for
    ``backup_after_s``; and ``backup_retirement``: end it once the service was ready for ``backup_keep_s``. One that the
    service names for its backup (``linked``) cannot be deleted: it has no instance any more, and a request wakes it.

    For how long is counted from the first look that found it so, and told in the sample, so that the rules need no
    memory. An agent that is restarted counts from zero: it is never too early.
    """
    unready = sf.on_event("service.unready", subject=f"service/{service}")
    looks: deque[bool] = deque(maxlen=LOOKS)
    since: dict[str, float] = {}

    @sensor(sf.any_of(unready, sf.every(seconds=options.watch_interval_s)))
    def service_health(context: Context) -> dict[str, Any]:
        """Look how the service and its backup are, and for how long each look has found them so."""
        # Before the services: they show what came of those that have ended.
        deployed, retired = acted_on(context, FAILOVER), acted_on(context, RETIREMENT)
        found, now = {one.name: one for one in control_plane_of(context).services()}, context.clock()
        record, spare = found.get(service), found.get(backup)
        down, ready = record is not None and is_down(record), record is not None and record.state == "ready"
        looks.append(down)
        for what, so in (("down", down), ("ready", ready)):
            since[what] = min(since.get(what, now), now) if so else math.inf
        return {
            "state": None if record is None else record.state,
            "down": down,
            "down_s": max(0.0, now - since["down"]),
            "looks": sum(looks),
            "backup": spare is not None,
            "ready_s": max(0.0, now - since["ready"]),
            "keep_s": None
            if spare is None or not ready
            else keep_s(spare, deployed, retired, options.backup_keep_s, now),
            # To want that again, which is done or will be, would do it twice.
            "changing": any(one.state in {"pending", "running"} for one in (*deployed, *retired)),
        }

    Strategy(
        name=FAILOVER,
        when=service_health,
        if_=lambda found: (
            found["down"]
            and found["looks"] >= AGREEING
            and found["down_s"] >= options.backup_after_s
            and not found["backup"]
            and not found["changing"]
        ),
        then=do.deploy_workflow(backup),
        autonomy=options.autonomy,
        priority=10,
    )
    Strategy(
        name=RETIREMENT,
        when=service_health,
        if_=lambda found: found["keep_s"] is not None and found["ready_s"] >= found["keep_s"] and not found["changing"],
        then=do.update_workflow_replica(backup, instances=0) if linked else do.delete_workflow(backup),
        priority=10,  # that of what deployed it, which owns whether it runs
        cool_down=options.backup_keep_s,
        autonomy=options.autonomy,
        hysteresis=options.backup_keep_s,
    )


def keep_s(
    backup: ServiceRecord, deployed: Sequence[Action], retired: Sequence[Action], least_s: float, now: float
) -> float | None:
    """Return for how long a service has to be ready before its backup is ended; None: it sleeps already, or is not the
    planner's, which deployed none, or somebody deployed it anew since. Pure.

    ``deployed`` and ``retired`` are the planner's own actions. Each retirement within a day doubles it, so that a
    service that comes and goes keeps its backup.
    """
    if backup.state == "idle" or not any(
        one.state == "succeeded"
        and one.began is not None
        and one.ended is not None
        and one.began <= backup.created <= one.ended
        for one in deployed
    ):
        return None
    lately = sum(one.state == "succeeded" and (one.ended or 0.0) > now - DAY_S for one in retired)
    return float(least_s * 2 ** min(lately, 10))


def is_down(record: ServiceRecord) -> bool:
    """Say whether a service that should answer has no instance that could. Pure."""
    if record.state in {"idle", "starting", "unsupervised"} or record.shape.instances == 0:
        return False
    return not any(one.state == "ready" for one in record.instances)
