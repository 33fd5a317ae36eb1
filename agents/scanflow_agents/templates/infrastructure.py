"""The planner's failover strategies: a backup is deployed for a service that is down, and removed after its recovery
(thesis 5.5.3, Fig. 5.15)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.agent_records import Action
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.model import Model
from scanflow.app.resources import AffinityMode
from scanflow.backends.service_records import ServiceRecord
from scanflow_agents.templates.template_client import get_control_plane, list_strategy_actions
from scanflow_agents.templates.template_options import DAY_S, WatchOptions


class PlacementOptions(WatchOptions):
    """Parameters of the strategies below, as the planner has them."""

    backup_workflow: str | None = None
    """An online workflow to deploy when the service has no ready instance. None: off."""

    backup_after_s: float = Field(default=0.0, ge=0)
    """How long that must last, in seconds; and two of three checks must find it, never a single one."""

    backup_keep_s: float = Field(default=600.0, gt=0)
    """How long the service must be ready before the backup is removed, in seconds; doubled for each removal within a
    day."""

    spread_affinity: AffinityMode | None = None
    """The affinity, such as ``cpu`` for exclusive cores, to which its instances move when another service, or one of
    its own instances, measurably slows it down; batch workflows that slow it down avoid its cores. None: off."""


FAILOVER, RETIREMENT = "backup_failover", "backup_retirement"
AGREEING, CONFIRMATION = 2, 3
"""Two of the last three checks must find a service down, or another load."""


class ServiceHealth(Model):
    """The state of a service and its backup."""

    state: str | None
    """None: the service is not deployed."""

    down: bool
    down_s: float
    """How long each check has found it down, in seconds."""

    looks: int
    """How many of the last three checks found it down."""

    backup: bool
    """Whether the backup is deployed."""

    ready_s: float
    keep_s: float | None
    """How long it must be ready before the backup is removed, in seconds. None: the backup stays."""

    changing: bool
    """Whether an action on the backup is pending."""


def declare_failover(service: str, backup: str, options: PlacementOptions, *, linked: bool) -> None:
    """Declare ``backup_failover``: deploy another online workflow once a service had no ready instance for
    ``backup_after_s``; and ``backup_retirement``: delete it once the service was ready for ``backup_keep_s``. A backup
    that the service itself names (``linked``) cannot be deleted: it is scaled to 0, and a request wakes it.

    Durations count from the first check with that state and are part of the sample, so that the rules are stateless. A
    restarted agent counts from zero: it is never too early.
    """
    unready = sf.on_event("service.unready", subject=f"service/{service}")
    looks: deque[bool] = deque(maxlen=CONFIRMATION)
    since: dict[str, float] = {}

    @sensor(sf.any_of(unready, sf.every(seconds=options.watch_interval_s)))
    def service_health(context: Context) -> ServiceHealth:
        """Check the state of the service and its backup, and since when each check has found it."""
        # Read before the services, which show the effect of ended actions.
        deployed, retired = list_strategy_actions(context, FAILOVER), list_strategy_actions(context, RETIREMENT)
        services, now = {record.name: record for record in get_control_plane(context).services()}, context.clock()
        record, spare = services.get(service), services.get(backup)
        down, ready = record is not None and is_down(record), record is not None and record.state == "ready"
        looks.append(down)
        for what, so in (("down", down), ("ready", ready)):
            since[what] = min(since.get(what, now), now) if so else math.inf
        return ServiceHealth(
            state=None if record is None else record.state,
            down=down,
            down_s=max(0.0, now - since["down"]),
            looks=sum(looks),
            backup=spare is not None,
            ready_s=max(0.0, now - since["ready"]),
            keep_s=None
            if spare is None or not ready
            else compute_keep_s(spare, deployed, retired, options.backup_keep_s, now),
            # A repeated request for a done or pending action would do it twice.
            changing=any(action.state in {"pending", "running"} for action in (*deployed, *retired)),
        )

    def is_backup_needed(health: ServiceHealth) -> bool:
        return (
            health.down
            and health.looks >= AGREEING
            and health.down_s >= options.backup_after_s
            and not health.backup
            and not health.changing
        )

    def is_backup_spare(health: ServiceHealth) -> bool:
        return health.keep_s is not None and health.ready_s >= health.keep_s and not health.changing

    Strategy(
        name=FAILOVER,
        when=service_health,
        if_=is_backup_needed,
        then=do.deploy_workflow(backup),
        autonomy=options.autonomy,
        priority=10,
    )
    Strategy(
        name=RETIREMENT,
        when=service_health,
        if_=is_backup_spare,
        then=do.update_workflow_replica(backup, instances=0) if linked else do.delete_workflow(backup),
        priority=10,  # the same as of the failover, which owns the field
        cool_down=options.backup_keep_s,
        autonomy=options.autonomy,
        hysteresis=options.backup_keep_s,
    )


def compute_keep_s(
    backup: ServiceRecord, deployed: Sequence[Action], retired: Sequence[Action], least_s: float, now: float
) -> float | None:
    """Return how long a service has to be ready before its backup is removed; None: it is idle already, or was not
    deployed by the planner, or was deployed again since by another client. Pure.

    ``deployed`` and ``retired`` are the planner's own actions. Each retirement within a day doubles it, so that an
    unstable service keeps its backup.
    """
    if backup.state == "idle" or not any(
        action.state == "succeeded"
        and action.began is not None
        and action.ended is not None
        and action.began <= backup.created <= action.ended
        for action in deployed
    ):
        return None
    lately = sum(action.state == "succeeded" and (action.ended or 0.0) > now - DAY_S for action in retired)
    return float(least_s * 2 ** min(lately, 10))


def is_down(record: ServiceRecord) -> bool:
    """Return whether a service that should respond has no ready instance. Pure."""
    if record.state in {"idle", "starting", "unsupervised"} or record.shape.instances == 0:
        return False
    return not any(instance.state == "ready" for instance in record.instances)
