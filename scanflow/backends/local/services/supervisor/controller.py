"""The controller of one service: observes, decides by pure functions, and acts.

Nothing here blocks. :meth:`ServiceController.tick` is called at every event, and once a second.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from selectors import BaseSelector
from socket import socket

from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.state import observed
from scanflow.backends.local.services.state.desired import read_desired, update_desired
from scanflow.backends.local.services.supervisor.attempts import rotate_log
from scanflow.backends.local.services.supervisor.autoscaler import Autoscaler
from scanflow.backends.local.services.supervisor.canary_traffic import CanaryAnalysis
from scanflow.backends.local.services.supervisor.failover_switch import Backup
from scanflow.backends.local.services.supervisor.instance import Instance
from scanflow.backends.local.services.supervisor.instance_metrics import ServiceMetrics, is_memory_short
from scanflow.backends.local.services.supervisor.listener import (
    GRPC_FD,
    HTTP_FD,
    SharedSocket,
    UnavailableResponder,
    open_listening_socket,
    open_reserving_socket,
)
from scanflow.backends.local.services.supervisor.pool import EAGER_S, InstancePool
from scanflow.backends.local.services.supervisor.readers import Readers
from scanflow.backends.local.services.supervisor.reconcile import InstanceAction, PoolTarget, is_settled, reconcile
from scanflow.backends.local.services.supervisor.recorder_process import RecorderProcess
from scanflow.backends.local.services.supervisor.service_report import build_record
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.backends.service_spec import list_clients
from scanflow.errors import ScanflowError
from scanflow.files.private import create_private_folder
from scanflow.instance_messages import SHORT_IDLE_S, ListenerTls
from scanflow.pki import renew_certificate
from scanflow.placement.sysfs import read_topology
from scanflow.processes.shims import Shims

_log = logging.getLogger(__name__)

HOLD_S = 10.0  # longest wait of a connection for an instance, unless requests have a shorter deadline
WAIT_S = 0.5  # between two looks whether the GPU of an instance that drains is free
RENEWAL_S = 24 * 3600.0  # between two looks at the certificate
RECORDER_S = 30.0  # longest wait of a service that is being deleted for the upload of its predictions


class IntervalGate:
    """Limits actions of a loop to fixed intervals."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def is_due(self, what: str, every_s: float, now: float) -> bool:
        """Return whether the interval has passed, and start the next one if so."""
        if now - self._last.get(what, float("-inf")) < every_s:
            return False
        self._last[what] = now
        return True


class ServiceController:
    def __init__(self, folder: ServiceFolder, desired: DesiredState, shims: Shims, selector: BaseSelector) -> None:
        """``selector`` calls the callbacks registered with it."""
        now = time.monotonic()
        self.folder, self.desired, self.shims = folder, desired, shims
        previous = observed.read_observed(folder)
        self._events = deque(previous.events if previous else (), maxlen=observed.EVENTS_KEPT)
        self.listener = SharedSocket(HTTP_FD, open_listening_socket)
        self._grpc_port = SharedSocket(GRPC_FD, open_reserving_socket)
        self._metrics = ServiceMetrics(folder.counted)
        self._window = MetricsWindow(now)
        self.pool = InstancePool(folder, shims, self._metrics, selector, self._log_event)
        is_unchanged = (
            previous is not None and previous.record.generation == desired.generation and previous.record.settled
        )
        count = previous.record.shape.instances if previous and is_unchanged else None
        self.autoscaler = Autoscaler(desired.definition, now, count)
        self._backup = Backup(folder, selector)
        self._refuser = UnavailableResponder(folder.path.name)
        self._canary = CanaryAnalysis(folder.canary)
        self.recording = RecorderProcess(folder, shims)
        self.readers = Readers()
        self._topology = read_topology()
        self._gate = IntervalGate()
        self._seen_file: tuple[int, int] | None = None
        self._closing_since: float | None = None
        self._unanswered_since: float | None = None
        self._retry_at = 0.0
        self._unstarted: list[str] = []  # the instances that are to be started, and were not yet
        self._last_refusal = ""  # why one could not be started
        self._dirty = True
        self._reported: observed.ObservedState | None = None

    # Beginning and end

    def adopt(self) -> None:
        """Adopt the processes of an earlier supervisor."""
        create_private_folder(self.folder.recorded)
        self.pool.meet_driver(self.desired)
        self.pool.adopt(self.desired, time.monotonic(), time.time())
        self.recording.adopt()
        self._log_event("supervisor restarted" if self.pool.alive else "supervisor started")

    def close(self) -> None:
        """Close all connections; instances run on."""
        self.readers.close()
        self.pool.close()
        self._backup.close()
        self._refuser.close()

    # The one step

    def tick(self) -> bool:
        """Observe and act; return whether the service has ended.

        Raises:
            ScanflowError: an action failed; the next call retries it.
            OSError: the same.
        """
        now = time.monotonic()
        self._load_desired(now)
        for path, exit_ in self.shims.wait(0):
            self._dirty = True
            if not self.pool.record_exit(path, exit_, now, retry=self.desired.in_effect):
                self.recording.record_exit(path, exit_, now)
        serving = self.desired.settled > 0 and (bool(self.pool.ready) or self._backup.is_answering)
        self.pool.poll(now, eager=self._eager, serving=serving, since=self.readers.since)
        self._decide(now)
        target = self._compute_target()
        if self._listen(now):
            self._act(target, now)
        self._wake(now)
        self._refuse(now)
        if not self.desired.in_effect and not self.desired.hopeless and is_settled(target, self.pool.instances, now):
            self._settle()
        if self.readers.has_due(self.pool.counted, now):
            self._count(now)
            self._dirty = True
        self._report(now)
        self.readers.answer(self.pool.counted, now)
        self.recording.start_if_due(self.desired, now)
        return self._is_finished(now)

    @property
    def _stopping(self) -> bool:
        return self.desired.deleted or self.desired.hopeless

    @property
    def _asleep(self) -> bool:
        return self.autoscaler.count == 0 and not self.pool.alive and not self._stopping

    @property
    def _eager(self) -> bool:
        """Whether a change is in progress."""
        return not self.desired.in_effect and not self._stopping

    def pause_s(self) -> float:
        """Return the time until the next check, if there is no event."""
        moving = any(instance.phase in {"starting", "draining"} for instance in self.pool.instances)
        if self._eager or moving or self.pool.has_unsent or self._refuser.busy or self.readers.since is not None:
            return EAGER_S
        now = time.monotonic()
        waiting = [instance for instance in self.pool.instances if instance.phase == "waiting"]
        due = [max(instance.due, self._retry_at) - now for instance in waiting]
        return max(0.0, min(due, default=1.0))

    @property
    def sockets(self) -> list[SharedSocket]:
        """The open sockets."""
        return [shared for shared in (self.listener, self._grpc_port) if shared.sock is not None]

    def find_watched_socket(self) -> socket | None:
        """Return the listening socket if this process has to watch it: while scaled to zero, or refusing."""
        return self.listener.sock if self._asleep or self._is_refusing(time.monotonic()) else None

    def _is_finished(self, now: float) -> bool:
        if not self._stopping or self.pool.alive:
            return False
        self._closing_since = self._closing_since or now
        if self.recording.running or (self.desired.recorder and self.recording.has_files):
            if now - self._closing_since < RECORDER_S:
                return False
            self.recording.stop()
        self._report(now, surely=True)
        return True

    # What is wanted

    def _load_desired(self, now: float) -> None:
        try:
            stat = self.folder.desired.stat()
        except FileNotFoundError:
            self._update_desired(self.desired.model_copy(update={"deleted": True}), now)
            return
        if (stat.st_ino, stat.st_mtime_ns) != self._seen_file:
            desired = read_desired(self.folder)
            self._seen_file = (stat.st_ino, stat.st_mtime_ns)
            if desired is not None:
                self._update_desired(desired, now)

    def _update_desired(self, desired: DesiredState, now: float) -> None:
        previous, self.desired = self.desired, desired
        if desired.deleted and not previous.deleted:
            self._log_event("the service is being deleted")
        if desired.generation == previous.generation:
            return
        self._dirty = True
        old, new = previous.definition, desired.definition
        if (old.shape.instances, old.deployment) != (new.shape.instances, new.deployment):
            self.autoscaler.begin(new, now)
        elif old.scaling != new.scaling:
            self.autoscaler.begin(new, now, count=self.autoscaler.count)

    def _compute_target(self) -> PoolTarget:
        definition = self.desired.definition
        return PoolTarget(
            spec_hash=definition.spec_hash,
            count=0 if self._stopping else self.autoscaler.count,
            serves=definition.serves,
            cores=definition.shape.cores or 1.0,
            deadline_s=definition.limits.deadline_s,
            changing=not self.desired.in_effect and not self.desired.hopeless,
        )

    def _change(self, make: Callable[[DesiredState], DesiredState]) -> None:
        """Change the desired state, unless another process has changed it meanwhile."""
        generation = self.desired.generation

        def change_if_current(desired: DesiredState | None) -> DesiredState | None:
            return None if desired is None or desired.generation != generation or desired.deleted else make(desired)

        after = update_desired(self.folder, change_if_current)
        if after is not None:
            self._update_desired(after, time.monotonic())
        self._dirty = True

    def _settle(self) -> None:
        self._change(DesiredState.settle)
        if self.desired.in_effect:
            self._log_event(f"change {self.desired.generation} is in effect")

    def _revert_change(self, reason: str) -> None:
        generation = self.desired.generation
        self._change(lambda desired: desired.give_up(reason))
        self._log_event(f"rollout {generation} failed and was reverted: {reason}")

    # Looking and deciding

    def _decide(self, now: float) -> None:
        if self._gate.is_due("usage", 2.0, now):
            self._measure(now)
        tls = self.desired.definition.tls
        if tls is not None and self._gate.is_due("certificate", RENEWAL_S, now):
            renew_certificate(self.folder.path.parent.parent, tls)
        if self._gate.is_due("logs", 10.0, now):
            for instance in self.pool.alive:
                rotate_log(instance.path)
        if not self._stopping and self.autoscaler.is_due(now):
            self._measure(now)
            if message := self.autoscaler.update(self._window, self.pool.ready, now, time.time()):
                self._log_event(message)
        if self._gate.is_due("look", 1.0, now):
            self._fail_over(now)
            self._analyse_canary()
        elif self._backup.active or not self.pool.ready:
            self._backup.lend(self.listener.sock, self._listener_tls)
            if not self.pool.ready and not self._backup.active:
                self._fail_over(now)  # no instance answers: fail over at once

    def _measure(self, now: float) -> None:
        for instance in self.pool.alive:
            instance.measure(now)
        self._count(now)

    def _count(self, now: float) -> None:
        self._window.record(
            self._metrics.totals, now, in_flight=sum(instance.in_flight for instance in self.pool.ready)
        )
        if self.autoscaler.count and not self.pool.ready:
            self._window.active = now  # the request that woke the service still waits

    def _fail_over(self, now: float) -> None:
        definition = self.desired.definition
        message = self._backup.poll(
            None if self._stopping else definition.serving.backup,
            ready=len(self.pool.ready),
            wanted=self.autoscaler.count if self.desired.settled and not self._stopping else 0,
            hand_back_after=definition.serving.hand_back_after,
            listener=self.listener.sock,
            tls=self._listener_tls,
            now=now,
        )
        if message is not None:
            self._log_event(message)

    @property
    def _listener_tls(self) -> ListenerTls:
        definition = self.desired.definition
        return ListenerTls(tls=definition.tls, clients=list_clients(definition.serving))

    def _analyse_canary(self) -> None:
        definition = self.desired.definition
        if not self.desired.in_effect or self._stopping or definition.canary is None:
            return
        verdict = self._canary.decide(definition, self._window.totals, time.time())
        if verdict is None or verdict.decision == "wait":
            return
        is_promoted = verdict.decision == "promote"
        revision = definition.canary if is_promoted else definition.current
        self._change(lambda desired: desired.serve_only(revision, replaces=is_promoted))
        self._log_event(
            f"canary {definition.canary.id} is {'promoted' if is_promoted else 'rolled back'}: {verdict.reason}"
        )

    # Acting

    def _act(self, target: PoolTarget, now: float) -> None:
        refusing = next((instance for instance in self.pool.instances if instance.refusal is not None), None)
        if refusing is not None:
            why, refusing.refusal = refusing.refusal, None
            if target.changing:
                self._revert_change(f"instance {refusing.name} cannot serve the new version: {why}")
                return
        actions = reconcile(target, self.pool.instances, now)
        self._unstarted = [action.name for action in actions if action.kind == "start"]
        for action in actions:
            self._perform(action, target, now)

    def _perform(self, action: InstanceAction, target: PoolTarget, now: float) -> None:
        instance = self.pool.by_name.get(action.name)
        self._dirty = True
        if action.kind == "start":
            self._start(action.name, target, now)
        elif action.kind == "give up":
            self._revert_change(self._explain_failure(target))
        elif instance is None:
            return
        elif action.kind == "apply":
            self.pool.apply(instance, self.desired)
        elif action.kind == "drain":
            short = instance.usage is not None and is_memory_short(instance.usage.rss_bytes)
            why = f": free memory is low, so it keeps idle connections for {SHORT_IDLE_S:g} s only" if short else ""
            self._log_event(f"instance {instance.name} is draining{why}")
            # If the service stops, no other instance takes over its connections.
            self.pool.drain(instance, now, idle_s=SHORT_IDLE_S if short or self._stopping else None)
        elif action.kind == "forget":
            self.pool.forget(instance.name)
        elif action.kind == "kill" or instance.phase == "draining":
            self._end(instance)
        else:
            instance.enter("draining", now)
            instance.stop()

    def _end(self, instance: Instance) -> None:
        """Kill an instance that does not answer or does not stop."""
        if not instance.stuck:
            self._log_event(f"instance {instance.name} does not answer: killing it")
        instance.stuck = True  # also if it is requested to stop below, between its death and its shim's report
        instance.find_process()
        if not instance.kill():  # there is no process: it never started, or its shim was killed with it
            instance.stop()
            if instance.phase == "draining":
                self.pool.forget(instance.name)

    def _start(self, name: str, target: PoolTarget, now: float) -> None:
        if now < self._retry_at:
            return
        try:
            waits_for = self.pool.start(self.desired, name, self._topology, count=target.count, now=now)
            if waits_for:
                self._retry_at = now + WAIT_S
                if self._gate.is_due("wait", 10.0, now):
                    self._log_event(f"instance {name} waits for one that drains: {waits_for}")
                return
            self._unstarted.remove(name)
            self._last_refusal = ""
        except ScanflowError as error:
            self._retry_at = now + 5.0
            if target.changing:
                self._revert_change(str(error))
            elif str(error) != self._last_refusal:
                self._last_refusal = str(error)
                self._log_event(f"instance {name} cannot be started: {error}")

    def _explain_failure(self, target: PoolTarget) -> str:
        """Return the reason that a change failed."""
        failing = [
            instance for instance in self.pool.instances if instance.spec_hash == target.spec_hash and instance.error
        ]
        failing.sort(key=lambda instance: instance.phase != "failed")
        return f"instance {failing[0].name}: {failing[0].error}" if failing else "its instances do not become ready"

    # The listening socket

    def _listen(self, now: float) -> bool:
        if self._stopping:
            for shared in self.sockets:
                shared.close()
                self.shims.release(shared.number)
            return True
        try:
            self._share_port(self.listener, self.desired.port)
            if self.desired.grpc_port is not None:
                self._share_port(self._grpc_port, self.desired.grpc_port)
        except ScanflowError as error:
            if self.desired.settled == 0:
                self._revert_change(str(error))
            elif self._gate.is_due("port", 10.0, now):
                self._log_event(str(error))
            return self.desired.hopeless
        return True

    def _share_port(self, shared: SharedSocket, port: int) -> None:
        if shared.open(self.desired.host, port) and shared.sock is not None:
            self.shims.hold(shared.number, shared.sock)

    def _wake(self, now: float) -> None:
        if self._asleep and self.listener.has_waiting:
            self._log_event("a request arrived: starting an instance")
            self.autoscaler.wake(now)

    def _is_refusing(self, now: float) -> bool:
        limit_s = min(self.desired.definition.limits.deadline_s, HOLD_S)
        return self._unanswered_since is not None and now - self._unanswered_since >= limit_s

    def _refuse(self, now: float) -> None:
        """Answer 503 if no instance has been ready for too long."""
        if self.pool.ready or self._backup.is_answering or self._asleep or self._stopping:
            self._unanswered_since = None
        elif self._unanswered_since is None:
            self._unanswered_since = now
        if self.listener.sock is not None and self._is_refusing(now):
            self._refuser.accept(self.listener.sock, now, self.desired.definition.tls)
        self._refuser.serve(now)

    # Reporting

    def _log_event(self, text: str) -> None:
        _log.info("%s", text)
        number = self._events[-1].number + 1 if self._events else 1
        self._events.append(observed.ServiceEvent(number=number, at=time.time(), text=text))
        self._dirty = True

    def _report(self, now: float, *, surely: bool = False) -> None:
        if not (surely or self._dirty or self._gate.is_due("report", 2.0, now)):
            return
        record = build_record(
            self.desired,
            self.folder,
            count=0 if self._stopping else self.autoscaler.count,
            instances=self.pool.instances,
            waits=dict.fromkeys(self._unstarted, self.pool.waits_for) if self.pool.waits_for else {},
            window=self._window,
            backup_active=self._backup.active,
        )
        explanation = self.autoscaler.explain(time.time())
        state = observed.ObservedState(
            record=record, events=tuple(self._events), explanation=explanation, by=os.getpid()
        )
        if not surely and self._reported is not None and observed.is_equal_ignoring_time(state, self._reported):
            self._dirty = False
            return
        try:
            observed.write_observed(self.folder, state)
            self._dirty, self._reported = False, state
        except ScanflowError as error:  # a full disk: instances serve on
            if self._gate.is_due("unwritten", 10.0, now):
                _log.warning("%s", error)
