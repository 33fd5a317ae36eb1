"""One service in the hands of its supervisor: what it sees, what it decides by the pure functions beside, what it does.

Nothing here waits. :meth:`Service.tick` is called whenever something happened, and once a second.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from selectors import BaseSelector
from socket import socket

from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.state import observed
from scanflow.backends.local.services.state.desired import change, read_desired
from scanflow.backends.local.services.state.report import record_of
from scanflow.backends.local.services.supervisor.attempts import limit_logs
from scanflow.backends.local.services.supervisor.autoscaler import Autoscaler
from scanflow.backends.local.services.supervisor.backup import Backup
from scanflow.backends.local.services.supervisor.canary import CanaryAnalysis
from scanflow.backends.local.services.supervisor.instance import Instance
from scanflow.backends.local.services.supervisor.listener import (
    GRPC_FD,
    LISTEN_FD,
    Refuser,
    SharedSocket,
    listening_socket,
    reserving_socket,
)
from scanflow.backends.local.services.supervisor.metrics import ServiceMetrics, memory_is_short
from scanflow.backends.local.services.supervisor.pool import EAGER_S, InstancePool
from scanflow.backends.local.services.supervisor.reconcile import InstanceAction, PoolTarget, reconcile, settled
from scanflow.backends.local.services.supervisor.recorder_process import RecorderProcess
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.errors import ScanflowError
from scanflow.placement.sysfs import read_topology
from scanflow.private import private_folder
from scanflow.processes.shims import Shims
from scanflow.wire import SHORT_IDLE_S

_log = logging.getLogger(__name__)

HOLD_S = 10.0  # longest that a connection waits for an instance, where requests have no shorter deadline
RECORDER_S = 30.0  # longest that a service that is being deleted waits for its predictions to be taken to the tracker


class IntervalGate:
    """What is done every so many seconds, in a loop that comes by more often."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def due(self, what: str, every_s: float, now: float) -> bool:
        """Say whether it is time for it again, and take it as done."""
        if now - self._last.get(what, float("-inf")) < every_s:
            return False
        self._last[what] = now
        return True


class ServiceController:
    def __init__(self, folder: ServiceFolder, desired: DesiredState, shims: Shims, selector: BaseSelector) -> None:
        """``selector`` calls what is registered with it whenever there is something to read."""
        now = time.monotonic()
        self.folder, self.desired, self.shims = folder, desired, shims
        before = observed.read_observed(folder)
        self._events = deque(before.events if before else (), maxlen=observed.EVENTS_KEPT)
        self.listener = SharedSocket(LISTEN_FD, listening_socket)
        self._grpc_port = SharedSocket(GRPC_FD, reserving_socket)
        self._metrics = ServiceMetrics(folder.counted)
        self._window = MetricsWindow(now)
        self.pool = InstancePool(folder, shims, self._metrics, selector, self._say)
        same = before is not None and before.record.generation == desired.generation and before.record.settled
        count = before.record.shape.instances if before and same else None
        self.autoscaler = Autoscaler(desired.definition, now, count)
        self._backup = Backup(folder, selector)
        self._refuser = Refuser(folder.path.name)
        self._canary = CanaryAnalysis(folder.canary)
        self.recording = RecorderProcess(folder, shims)
        self._topology = read_topology()
        self._gate = IntervalGate()
        self._seen_file: tuple[int, int] | None = None
        self._closing_since: float | None = None
        self._unanswered_since: float | None = None
        self._retry_at = 0.0
        self._dirty = True
        self._reported: observed.ObservedState | None = None

    # Beginning and end

    def adopt(self) -> None:
        """Take over what an earlier supervisor left."""
        private_folder(self.folder.recorded)
        self.pool.adopt(self.desired, time.monotonic(), time.time())
        self.recording.adopt()
        self._say("supervisor restarted" if self.pool.alive else "supervisor started")

    def close(self) -> None:
        """Let go of everything; instances run on."""
        self.pool.close()
        self._backup.close()
        self._refuser.close()

    # The one step

    def tick(self) -> bool:
        """Look at everything and act; say whether there is nothing left to do, ever.

        Raises:
            ScanflowError: something could not be done now; the next step tries again.
            OSError: the same.
        """
        now = time.monotonic()
        self._reread(now)
        for path, exit_ in self.shims.wait(0):
            self._dirty = True
            if not self.pool.ended(path, exit_, now, retry=self.desired.in_effect):
                self.recording.ended(path, exit_, now)
        serving = self.desired.settled > 0 and (bool(self.pool.ready) or self._backup.answers)
        self.pool.look(now, eager=self._eager, serving=serving)
        self._decide(now)
        wanted = self._wanted()
        if self._listen(now):
            self._act(wanted, now)
        self._wake(now)
        self._refuse(now)
        if not self.desired.in_effect and not self.desired.hopeless and settled(wanted, self.pool.known, now):
            self._settle()
        self._report(now)
        self.recording.look(self.desired, now)
        return self._over(now)

    @property
    def _stopping(self) -> bool:
        return self.desired.deleted or self.desired.hopeless

    @property
    def _asleep(self) -> bool:
        return self.autoscaler.count == 0 and not self.pool.alive and not self._stopping

    @property
    def _eager(self) -> bool:
        """Whether something is expected to change any moment."""
        return not self.desired.in_effect and not self._stopping

    def pause_s(self) -> float:
        """Return how long nothing needs to be looked at, if nothing happens."""
        moving = any(one.phase in {"starting", "draining"} for one in self.pool.known)
        if self._eager or moving or self.pool.behind or self._refuser.busy:
            return EAGER_S
        now = time.monotonic()
        due = [one.due - now for one in self.pool.known if one.phase == "waiting"]
        return max(0.0, min(due, default=1.0))

    @property
    def sockets(self) -> list[SharedSocket]:
        """Those that are open."""
        return [shared for shared in (self.listener, self._grpc_port) if shared.sock is not None]

    def callers(self) -> socket | None:
        """Return the listening socket where this process is to look at it: asleep, or refusing."""
        return self.listener.sock if self._asleep or self._refusing(time.monotonic()) else None

    def _over(self, now: float) -> bool:
        if not self._stopping or self.pool.alive:
            return False
        self._closing_since = self._closing_since or now
        if self.recording.running or (self.desired.recorder and self.recording.waiting):
            if now - self._closing_since < RECORDER_S:
                return False
            self.recording.stop()
        self._report(now, surely=True)
        return True

    # What is wanted

    def _reread(self, now: float) -> None:
        try:
            stat = self.folder.desired.stat()
        except FileNotFoundError:
            self._become(self.desired.model_copy(update={"deleted": True}), now)
            return
        if (stat.st_ino, stat.st_mtime_ns) != self._seen_file:
            desired = read_desired(self.folder)
            self._seen_file = (stat.st_ino, stat.st_mtime_ns)
            if desired is not None:
                self._become(desired, now)

    def _become(self, desired: DesiredState, now: float) -> None:
        before, self.desired = self.desired, desired
        if desired.deleted and not before.deleted:
            self._say("the service is being deleted")
        if desired.generation == before.generation:
            return
        self._dirty = True
        was, is_ = before.definition, desired.definition
        if (was.shape.instances, was.deployment) != (is_.shape.instances, is_.deployment):
            self.autoscaler.begin(is_, now)
        elif was.scaling != is_.scaling:
            self.autoscaler.begin(is_, now, count=self.autoscaler.count)

    def _wanted(self) -> PoolTarget:
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
        """Change what is wanted, unless another process did meanwhile."""
        generation = self.desired.generation

        def changed(found: DesiredState | None) -> DesiredState | None:
            return None if found is None or found.generation != generation or found.deleted else make(found)

        after = change(self.folder, changed)
        if after is not None:
            self._become(after, time.monotonic())
        self._dirty = True

    def _settle(self) -> None:
        self._change(DesiredState.settle)
        if self.desired.in_effect:
            self._say(f"change {self.desired.generation} is in effect")

    def _give_up(self, reason: str) -> None:
        generation = self.desired.generation
        self._change(lambda desired: desired.give_up(reason))
        self._say(f"rollout {generation} failed and was reverted: {reason}")

    # Looking and deciding

    def _decide(self, now: float) -> None:
        if self._gate.due("usage", 2.0, now):
            self._measure(now)
        if self._gate.due("logs", 10.0, now):
            for one in self.pool.alive:
                limit_logs(one.path)
        if not self._stopping and self.autoscaler.due(now):
            self._measure(now)
            if said := self.autoscaler.look(self._window, self.pool.ready, now, time.time()):
                self._say(said)
        if self._gate.due("look", 1.0, now):
            self._fail_over(now)
            self._analyse_canary()
        elif self._backup.active or not self.pool.ready:
            self._backup.lend(self.listener.sock)
            if not self.pool.ready and not self._backup.active:
                self._fail_over(now)  # nobody answers: not a second longer

    def _measure(self, now: float) -> None:
        for one in self.pool.alive:
            one.measure(now)
        self._window.look(self._metrics.totals, now, in_flight=sum(one.in_flight for one in self.pool.ready))
        if self.autoscaler.count and not self.pool.ready:
            self._window.active = now  # whoever woke the service still waits

    def _fail_over(self, now: float) -> None:
        definition = self.desired.definition
        said = self._backup.look(
            None if self._stopping else definition.serving.backup,
            ready=len(self.pool.ready),
            wanted=self.autoscaler.count if self.desired.settled and not self._stopping else 0,
            hand_back_after=definition.serving.hand_back_after,
            listener=self.listener.sock,
            now=now,
        )
        if said is not None:
            self._say(said)

    def _analyse_canary(self) -> None:
        definition = self.desired.definition
        if not self.desired.in_effect or self._stopping or definition.canary is None:
            return
        verdict = self._canary.verdict(definition, self._window.totals, time.time())
        if verdict is None or verdict.decision == "wait":
            return
        promoted = verdict.decision == "promote"
        chosen = definition.canary if promoted else definition.current
        self._change(lambda desired: desired.serve_only(chosen, replaces=promoted))
        self._say(f"canary {definition.canary.id} is {'promoted' if promoted else 'taken back'}: {verdict.reason}")

    # Acting

    def _act(self, wanted: PoolTarget, now: float) -> None:
        refused = next((one for one in self.pool.known if one.refused is not None), None)
        if refused is not None:
            why, refused.refused = refused.refused, None
            if wanted.changing:
                self._give_up(f"instance {refused.name} cannot serve it: {why}")
                return
        for action in reconcile(wanted, self.pool.known, now):
            self._do(action, wanted, now)

    def _do(self, action: InstanceAction, wanted: PoolTarget, now: float) -> None:
        one = self.pool.all.get(action.name)
        self._dirty = True
        if action.kind == "start":
            self._start(action.name, wanted, now)
        elif action.kind == "give up":
            self._give_up(self._blame(wanted))
        elif one is None:
            return
        elif action.kind == "apply":
            self.pool.apply(one, self.desired)
        elif action.kind == "drain":
            short = one.usage is not None and memory_is_short(one.usage.rss_bytes)
            why = f": memory is short, so it keeps idle connections for {SHORT_IDLE_S:g} s only" if short else ""
            self._say(f"instance {one.name} is draining{why}")
            # With the service goes whoever would take a request in its place.
            self.pool.drain(one, now, idle_s=SHORT_IDLE_S if short or self._stopping else None)
        elif action.kind == "forget":
            self.pool.forget(one.name)
        elif action.kind == "kill" or one.phase == "draining":
            self._end(one)
        else:
            one.enter("draining", now)
            one.stop()

    def _end(self, one: Instance) -> None:
        """End a process that does not answer, or does not go."""
        if not one.stuck:
            self._say(f"instance {one.name} does not answer: it is ended")
        one.stuck = True  # also where it is asked to stop below, between its death and its shim's report
        one.find_process()
        if not one.kill():  # no process is known: it never began, or its shim was killed with it
            one.stop()
            if one.phase == "draining":
                self.pool.forget(one.name)

    def _start(self, name: str, wanted: PoolTarget, now: float) -> None:
        if now < self._retry_at:
            return
        try:
            self.pool.start(self.desired, name, self._topology, count=wanted.count, now=now)
        except ScanflowError as error:
            self._retry_at = now + 5.0
            if wanted.changing:
                self._give_up(str(error))
            else:
                self._say(f"instance {name} cannot be started: {error}")

    def _blame(self, wanted: PoolTarget) -> str:
        """Return why a change cannot come into effect."""
        bad = [one for one in self.pool.known if one.spec_hash == wanted.spec_hash and one.error]
        bad.sort(key=lambda one: one.phase != "failed")
        return f"instance {bad[0].name}: {bad[0].error}" if bad else "its instances do not become ready"

    # The listening socket

    def _listen(self, now: float) -> bool:
        if self._stopping:
            for shared in self.sockets:
                shared.close()
                self.shims.release(shared.number)
            return True
        try:
            self._share(self.listener, self.desired.port)
            if self.desired.grpc_port is not None:
                self._share(self._grpc_port, self.desired.grpc_port)
        except ScanflowError as error:
            if self.desired.settled == 0:
                self._give_up(str(error))
            elif self._gate.due("port", 10.0, now):
                self._say(str(error))
            return self.desired.hopeless
        return True

    def _share(self, shared: SharedSocket, port: int) -> None:
        if shared.open(self.desired.host, port) and shared.sock is not None:
            self.shims.hold(shared.number, shared.sock)

    def _wake(self, now: float) -> None:
        if self._asleep and self.listener.waiting:
            self._say("a request came: starting an instance")
            self.autoscaler.wake(now)

    def _refusing(self, now: float) -> bool:
        limit_s = min(self.desired.definition.limits.deadline_s, HOLD_S)
        return self._unanswered_since is not None and now - self._unanswered_since >= limit_s

    def _refuse(self, now: float) -> None:
        """Answer in place of the instances where none has been ready for too long."""
        if self.pool.ready or self._backup.answers or self._asleep or self._stopping:
            self._unanswered_since = None
        elif self._unanswered_since is None:
            self._unanswered_since = now
        if self.listener.sock is not None and self._refusing(now):
            self._refuser.accept(self.listener.sock, now)
        self._refuser.serve(now)

    # Reporting

    def _say(self, text: str) -> None:
        _log.info("%s", text)
        number = self._events[-1].number + 1 if self._events else 1
        self._events.append(observed.ServiceEvent(number=number, at=time.time(), text=text))
        self._dirty = True

    def _report(self, now: float, *, surely: bool = False) -> None:
        if not (surely or self._dirty or self._gate.due("report", 2.0, now)):
            return
        record = record_of(
            self.desired,
            self.folder,
            count=0 if self._stopping else self.autoscaler.count,
            instances=self.pool.known,
            window=self._window,
            backup_active=self._backup.active,
        )
        explanation = self.autoscaler.explanation(time.time())
        state = observed.ObservedState(
            record=record, events=tuple(self._events), explanation=explanation, by=os.getpid()
        )
        if not surely and self._reported is not None and observed.tell_the_same(state, self._reported):
            self._dirty = False
            return
        try:
            observed.write_observed(self.folder, state)
            self._dirty, self._reported = False, state
        except ScanflowError as error:  # a full disk: what serves goes on serving
            if self._gate.due("unwritten", 10.0, now):
                _log.warning("%s", error)
