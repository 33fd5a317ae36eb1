"""The planner's placement strategy: neighbours that measurably slow the service down are kept off its cores, and moves
that did not help are reverted (thesis 5.5.3, Fig. 5.14)."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act
from scanflow.agent.agent_records import Action, Guard
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.model import Model
from scanflow.app.resources import AffinityMode
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_records import InstanceRecord, RevisionRecord, ServiceRecord, compute_quantile
from scanflow.placement.interference import (
    CONFIRMATION,
    MIN_REQUESTS,
    Disturbance,
    InterferenceWatch,
    LoadPoint,
    Window,
    compare_move,
    compute_coverage,
    is_confirmed,
    split,
)
from scanflow_agents.templates.template_client import get_control_plane, list_strategy_actions, report_event
from scanflow_agents.templates.template_options import WatchOptions

STRATEGY_NAME = "spread_instances"
MAX_LISTED_WINDOWS = 40
"""The number of newest windows of each kind in the evidence."""

RETRY_AFTER_S = 7 * 86_400.0
"""The time before a move that did not help, or failed, is retried, and for which a move is watched, in seconds."""

_MAX_LOAD, _HARDLY = 0.8, 0.1
_BUSY, _IDLE = 1.0, 0.1


class ServiceSample(NamedTuple):
    at: float
    services: Mapping[str, ServiceRecord]


class InterferenceEvidence(Model):
    """How a neighbour slows a service down, by pairs of windows with it and without it."""

    neighbour: str
    reason: str
    alone_p95_s: float
    beside_p95_s: float
    ratio: float
    n: int
    """The number of pairs."""

    p: float
    looks: int
    """How many of the last checks agreed."""

    revision: str
    alone: list[tuple[float, float]]
    beside: list[tuple[float, float]]
    """The newest windows, each the load, in requests per second of each instance, and the 95th percentile of the
    latency, in seconds."""


class ServicePlacement(Model):
    """A service beside its neighbours."""

    evidence: InterferenceEvidence | None
    stands: str | None
    """What prevents a move."""

    windows: int
    p95_s: float | None
    load: float | None
    beside: list[str]
    """The neighbours in the newest window."""


def declare_spreading(service: str, affinity: AffinityMode, options: WatchOptions) -> None:
    """Declare ``spread_instances``: keep neighbours that slow a service down off its cores.

    A batch workflow avoids them from its next run on; for another service, or for its own instances, the service moves
    to exclusive cores.
    """
    spreading = Spreading(service, affinity)

    @sensor(sf.every(seconds=options.watch_interval_s))
    def service_placement(context: Context) -> ServicePlacement:
        """Measure the service with and without each neighbour."""
        return spreading.observe(context)

    def is_slowed_down(placement: ServicePlacement) -> bool:
        return placement.evidence is not None and placement.stands is None

    def move(placement: ServicePlacement) -> Act | None:
        return None if placement.evidence is None else build_move(service, affinity, placement.evidence.neighbour)

    Strategy(
        name=STRATEGY_NAME,
        when=service_placement,
        if_=is_slowed_down,
        then=move,
        may={"update_workflow_affinity": [f"service/{service}", "workflow/*"]},
        cool_down=options.watch_cool_down_s,
        autonomy=options.autonomy,
        guard=Guard(metric=spreading.metric, worse="higher", by=0.5, within_s=RETRY_AFTER_S),
    )


def build_move(service: str, affinity: AffinityMode, neighbour: str) -> Act:
    kind, _, name = neighbour.partition("/")
    if kind == "workflow":
        return do.update_workflow_affinity(name, None, avoid_services=[service], kind="batch")
    return do.update_workflow_affinity(service, affinity, kind="online")


class Spreading:
    """Measures a service with and without its neighbours. A restarted agent starts over, which can only delay moves."""

    def __init__(self, service: str, affinity: AffinityMode) -> None:
        self._service, self._affinity = service, affinity
        self._before: ServiceSample | None = None
        self._watch = InterferenceWatch()
        self._verdicts: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=CONFIRMATION))
        self._judged: set[str] = set()

    @property
    def metric(self) -> str:
        """The metric that the guard of a move watches: 0, and 1 once the move was found not to help."""
        return f"placement.{self._service}.no_better"

    def observe(self, context: Context) -> ServicePlacement:
        """Add the window since the last check, and evaluate all windows."""
        control_plane, now = get_control_plane(context), context.clock()
        look = ServiceSample(now, {record.name: record for record in control_plane.services()})
        runs = control_plane.runs(app=context.app, team=context.team)
        actions = list_strategy_actions(context, STRATEGY_NAME)
        moves = {action.intent.target: action for action in reversed(actions)}  # the newest on each target
        window = None
        if self._before is not None:
            avoiding = _list_avoidance_times(context, self._service, moves)
            window = build_window(self._service, self._before, look, runs, avoiding)
        self._before = look

        def get_move_time(neighbour: str) -> float:
            last = moves.get(self._get_target(neighbour))
            return -math.inf if last is None or last.state != "succeeded" else _get_end_time(last)

        worst, evidence, stands = self._watch.observe(window, get_move_time), None, None
        if window is not None:
            for action in moves.values():
                self._verify(context, action, window)
        if worst is not None:
            evidence = build_evidence(
                self._service, worst, self._watch.select_windows_after(get_move_time(worst.neighbour))
            )
            stands = self._find_objection(worst.neighbour, moves, look)
        if evidence is not None and stands is None:
            report_event(context, "metric", self.metric, value=0.0)  # the guard's baseline
            report_event(
                context, "placement.interference", f"service/{self._service}", **evidence.model_dump(mode="json")
            )
            self._watch.forget(evidence.neighbour)
        return ServicePlacement(
            evidence=evidence,
            stands=stands,
            windows=len(self._watch.windows),
            p95_s=None if window is None else window.point.p95_s,
            load=None if window is None else window.point.load,
            beside=[] if window is None else sorted(window.beside),
        )

    def _find_objection(self, neighbour: str, moves: Mapping[str, Action], look: ServiceSample) -> str | None:
        """Return what prevents the move; None: nothing."""
        last = moves.get(self._get_target(neighbour))
        if last is not None and last.state in {"pending", "running"}:
            return "it is being moved"
        if last is not None and last.state != "succeeded" and look.at < _get_end_time(last) + RETRY_AFTER_S:
            return f"the last move was {last.state}"
        record = look.services.get(self._service)
        if record is None:
            return "it is not deployed"
        if neighbour.startswith("service/") and record.shape.affinity == self._affinity:
            return f"its instances have the affinity {self._affinity!r} already"
        return None

    def _verify(self, context: Context, action: Action, window: Window) -> None:
        """Report whether a move helped, once enough checks agree; if it did not, the guard reverts it."""
        value = None if action.intent.sample is None else action.intent.sample.value
        was = value.get("evidence") if isinstance(value, dict) else None
        if action.state != "succeeded" or action.id in self._judged or not isinstance(was, dict):
            return
        earlier = InterferenceEvidence.model_validate(was)
        neighbour = earlier.neighbour
        if neighbour not in window.avoided:
            return
        after = [
            later.point
            for later in self._watch.select_windows_after(_get_end_time(action))
            if neighbour in later.avoided and later.revision == earlier.revision
        ]
        before = [LoadPoint(*point) for point in earlier.beside]
        comparison, better = compare_move(before, after)
        if comparison is None or better is None:
            return
        verdicts = self._verdicts[action.id]
        verdicts.append(better)
        if not is_confirmed([verdict == better for verdict in verdicts]):
            return
        self._judged.add(action.id)
        about: dict[str, Any] = {
            "neighbour": neighbour,
            "action": action.id,
            "better": better,
            "before_p95_s": comparison.disturbed_p95_s,
            "after_p95_s": comparison.quiet_p95_s,
            "ratio": comparison.ratio,
            "n": comparison.pairs,
            "p": comparison.p,
        }
        report_event(context, "placement.verified", f"service/{self._service}", **about)
        if not better:
            report_event(context, "metric", self.metric, value=1.0)

    def _get_target(self, neighbour: str) -> str:
        return neighbour if neighbour.startswith("workflow/") else f"service/{self._service}"


def build_evidence(service: str, disturbance: Disturbance, windows: Sequence[Window]) -> InterferenceEvidence:
    """Build the evidence against a neighbour."""
    neighbour, comparison, agreed = disturbance
    groups = split(windows, neighbour)
    alone, beside = (
        [(point.load, point.p95_s) for group in groups for point in group[kind]][-MAX_LISTED_WINDOWS:]
        for kind in (0, 1)
    )
    return InterferenceEvidence(
        neighbour=neighbour,
        reason=f"beside {neighbour} the 95th percentile of {service} is {comparison.disturbed_p95_s:.3g} s, "
        f"without it {comparison.quiet_p95_s:.3g} s at comparable load: {comparison.ratio:.2f} times as slow "
        f"(n = {comparison.pairs} pairs of windows, p = {comparison.p:.2g}, {agreed} of {CONFIRMATION} checks)",
        alone_p95_s=comparison.quiet_p95_s,
        beside_p95_s=comparison.disturbed_p95_s,
        ratio=comparison.ratio,
        n=comparison.pairs,
        p=comparison.p,
        looks=agreed,
        revision=windows[-1].revision,
        alone=alone,
        beside=beside,
    )


def build_window(
    service: str, before: ServiceSample, after: ServiceSample, runs: Sequence[RunRecord], avoiding: Mapping[str, float]
) -> Window | None:
    """Return the measurements of the service between two checks; None: it changed meanwhile, had too few requests, or a
    neighbour ran for a part of the time only. Pure.

    ``avoiding``: since when runs of a batch workflow avoid the service's cores, by its name; others do not.
    """
    earlier, record = before.services.get(service), after.services.get(service)
    seconds = after.at - before.at
    if earlier is None or record is None or seconds <= 0 or _get_setup(earlier) != _get_setup(record):
        return None
    was, now = earlier.current, record.current
    if was is None or now is None or len(record.revisions) > 1 or record.state != "ready":
        return None
    requests, p95_s = now.requests - was.requests, compute_p95_between(was, now)
    if requests < MIN_REQUESTS or not p95_s:
        return None
    beside, avoided = set[str](), set[str]()
    for name, ran, shares in _list_neighbours(service, before, after, runs, avoiding):
        if ran is None:
            return None
        if ran:
            (beside if shares else avoided).add(name)
    point = LoadPoint(requests / seconds / len(record.instances), p95_s)
    return Window(
        ended=after.at, point=point, revision=now.id, beside=frozenset(beside), avoided=frozenset(avoided - beside)
    )


def compute_p95_between(before: RevisionRecord, after: RevisionRecord) -> float | None:
    """Return the 95th percentile of the latency between two checks, in seconds; None: unknown. Pure."""
    if not before.buckets or len(before.buckets) != len(after.buckets):
        return None
    counts = {limit: float(n - m) for (_, m), (limit, n) in zip(before.buckets, after.buckets, strict=True)}
    return compute_quantile({**counts, math.inf: float(after.requests - before.requests)}, 0.95)


def may_share_cores(service: ServiceRecord, other: ServiceRecord) -> bool:
    """Return whether instances of two services, or two of the same, may run on the same core. Pure."""
    pairs = (
        combinations(service.instances, 2)
        if service.name == other.name
        else product(service.instances, other.instances)
    )
    return any(a.place == b.place and (not a.cpus or not b.cpus or set(a.cpus) & set(b.cpus)) for a, b in pairs)


def _list_neighbours(
    service: str, before: ServiceSample, after: ServiceSample, runs: Sequence[RunRecord], avoiding: Mapping[str, float]
) -> Iterator[tuple[str, bool | None, bool]]:
    """Yield each neighbour, whether it ran (None: for a part of the time), and whether on cores of the service."""
    record, seconds = after.services[service], after.at - before.at
    for name, other in after.services.items():
        if name == service:
            ran: bool | None = len(record.instances) > 1
        else:
            earlier = before.services.get(name)
            rate = (_count_requests(other) - (0 if earlier is None else _count_requests(earlier))) / seconds
            ran = True if rate >= _BUSY else False if rate <= _IDLE else None
        yield f"service/{name}", ran, may_share_cores(record, other)
    for workflow in sorted({run.workflow for run in runs}):
        own = [run for run in runs if run.workflow == workflow]
        share = compute_coverage(before.at, after.at, [_get_time_range(run) for run in own])
        ran = True if share >= _MAX_LOAD else False if share <= _HARDLY else None
        there = [run for run in own if _get_time_range(run)[1] > before.at and run.created < after.at]
        avoids = all(run.created >= avoiding.get(workflow, math.inf) for run in there)
        yield f"workflow/{workflow}", ran, not avoids


def _get_time_range(run: RunRecord) -> tuple[float, float]:
    return run.created, math.inf if run.state == "running" else run.created + (run.seconds or 0.0)


def _count_requests(record: ServiceRecord) -> int:
    return sum(revision.requests for revision in record.revisions)


def _get_setup(record: ServiceRecord) -> object:
    """Return the setup that must be equal at both ends of a window."""
    revision = None if record.current is None else record.current.id

    def describe_instance(instance: InstanceRecord) -> object:
        return (instance.instance, instance.state, instance.restarts, instance.pid, instance.cpus)

    return (
        record.generation,
        record.settled,
        record.state,
        revision,
        [describe_instance(instance) for instance in record.instances],
    )


def _get_end_time(action: Action) -> float:
    return action.decision.at if action.ended is None else action.ended


def _list_avoidance_times(context: Context, service: str, moves: Mapping[str, Action]) -> dict[str, float]:
    """Return since when the runs of each batch workflow avoid the service's cores: by the application, or by a move."""
    times: dict[str, float] = {}
    for workflow in () if context.application is None else context.application.workflows:
        if workflow.steps and all(service in step.avoid_services for step in workflow.steps):
            times[workflow.name] = -math.inf
    for target, action in moves.items():
        kind, _, name = target.partition("/")
        if kind == "workflow" and action.state == "succeeded":
            times[name] = min(_get_end_time(action), times.get(name, math.inf))
    return times
