"""One service in the hands of its supervisor: what it sees, what it decides by the pure functions beside, what it does.

Nothing here waits. :meth:`Service.tick` is called whenever something happened, and once a second.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable
from functools import partial
from socket import socket

from scanflow.backends.local.services.balance import surplus
from scanflow.backends.local.services.channel import Channel
from scanflow.backends.local.services.crew import Crew
from scanflow.backends.local.services.doors import Doors
from scanflow.backends.local.services.figures import tidy
from scanflow.backends.local.services.front import Front
from scanflow.backends.local.services.held import Held
from scanflow.backends.local.services.instance import Instance
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.pulse import Pulse
from scanflow.backends.local.services.reconcile import Action, Wanted, reconcile, settled
from scanflow.backends.local.services.recording import Recording
from scanflow.backends.local.services.report import record_of
from scanflow.backends.local.services.rhythm import Rhythm
from scanflow.backends.local.services.scaler import Scaler
from scanflow.backends.local.services.standby import Standby
from scanflow.backends.local.services.state import News, State, read_state, write_state
from scanflow.backends.local.services.stored import Stored, change, read_stored
from scanflow.backends.local.services.trial import Trial
from scanflow.backends.local.shims import Shims
from scanflow.errors import ScanflowError
from scanflow.placement.sysfs import read_topology
from scanflow.wire import Exchange

__all__ = ["Service"]

_log = logging.getLogger(__name__)

EAGER_S = 0.05
HOLD_S = 10.0
"""Longest that a connection waits for an instance, where requests have no shorter deadline."""

RECOVER_S = 3.0
"""Longest that a new supervisor waits for the sockets of an earlier one."""

RECORDER_S = 30.0
"""Longest that a service that is being deleted waits for its predictions to be taken to the tracker."""


class Service:
    """A service, its instances, its sockets, and everything that is decided about them."""

    def __init__(
        self,
        folder: ServiceFolder,
        stored: Stored,
        *,
        watch: Callable[[Channel, Callable[[], object]], None],
        unwatch: Callable[[Channel], None],
    ) -> None:
        """``watch`` has a function called whenever a channel has something to read."""
        now = time.monotonic()
        self.folder, self.stored = folder, stored
        self._watch, self._unwatch = watch, unwatch
        self.shims, self._recorder_shims = Shims(), Shims()
        before = read_state(folder)
        self._news = News(before)
        self.crew = Crew(folder, self.shims, say=self._say, joined=self._joined, left=self._left)
        self.doors = Doors()
        self.scaler = Scaler(now)
        same = before is not None and before.record.generation == stored.generation and before.record.settled
        self.scaler.begin(stored.definition, now, count=before.record.shape.instances if before and same else None)
        self.front = Front(folder, self.crew, self.doors)
        self.standby = Standby(folder, watch=watch, unwatch=unwatch, heard=self.front.heard_of_backup)
        folder.metrics.mkdir(parents=True, exist_ok=True)
        folder.recorded.mkdir(parents=True, exist_ok=True)
        self.pulse = Pulse(folder.metrics, now)
        self._trial = Trial(folder.judging)
        self.recording = Recording(folder, self._recorder_shims)
        self._topology = read_topology()
        self._rhythm = Rhythm()
        self._seen_file: tuple[int, int] | None = None
        self._recovering: set[str] = set()
        self._recover_until = now + RECOVER_S
        self._closing_since: float | None = None
        self._retry_at = 0.0
        self._dirty = True

    # Beginning and end

    def adopt(self) -> None:
        """Take over what an earlier supervisor left."""
        now = time.monotonic()
        self.crew.adopt(self.stored, now, time.time())
        self.recording.adopt()
        self._recovering = {one.name for one in self.crew.alive}
        self._say("a supervisor has begun" if not self._recovering else "a new supervisor has taken over")

    def close(self) -> None:
        """Let go of everything; instances run on."""
        self.crew.close()
        self.front.holding.close()
        self.standby.close()
        self.doors.close()
        self.shims.close()
        self._recorder_shims.close()

    # The one step

    def tick(self) -> bool:
        """Look at everything and act; say whether there is nothing left to do, ever."""
        now = time.monotonic()
        self._reread(now)
        for one in self.crew.buried(now):
            self.doors.forget(one.name)
            self.front.holding.ended(one.name)
            self._dirty = True
        serving = self.stored.settled > 0 and (bool(self.crew.ready) or self.standby.active)
        self.crew.look(now, eager=self._eager, serving=serving)
        if self._recovers(now):
            return False
        self._measure(now)
        self._decide(now)
        wanted = self._wanted()
        if self._open_doors(now):
            self._act(wanted, now)
        self._hand_out()
        self._hold(wanted)
        if not self.stored.in_effect and not self.stored.hopeless and settled(wanted, self.crew.seen(now)):
            self._settle()
        self.recording.look(self.stored, now)
        self._report(now)
        return self._over(now)

    @property
    def _ending(self) -> bool:
        return self.stored.deleted or self.stored.hopeless

    @property
    def _asleep(self) -> bool:
        return self.scaler.count == 0 and not self.crew.alive and not self._ending

    @property
    def _eager(self) -> bool:
        """Whether something is expected to change any moment."""
        return not self.stored.in_effect and not self._ending

    def pause_s(self) -> float:
        """Return how long nothing needs to be looked at, if nothing happens."""
        moving = any(one.phase in {"starting", "draining"} for one in self.crew.all.values())
        if self._eager or moving or self._recovering or self.front.holding.busy or self.crew.behind:
            return EAGER_S
        now = time.monotonic()
        due = [one.due - now for one in self.crew.all.values() if one.phase == "waiting"]
        return max(0.0, min(due, default=1.0))

    def _over(self, now: float) -> bool:
        if not self._ending or self.crew.alive:
            return False
        self._closing_since = self._closing_since or now
        if self.recording.running or (self.stored.recorder and self.recording.waiting):
            if now - self._closing_since < RECORDER_S:
                return False
            self.recording.stop()
        self._report(now, surely=True)
        return True

    # What is wanted

    def _reread(self, now: float) -> None:
        try:
            stat = self.folder.stored.stat()
        except FileNotFoundError:
            self._become(self.stored.model_copy(update={"deleted": True}), now)
            return
        if (stat.st_ino, stat.st_mtime_ns) != self._seen_file:
            self._seen_file = (stat.st_ino, stat.st_mtime_ns)
            stored = read_stored(self.folder)
            if stored is not None:
                self._become(stored, now)

    def _become(self, stored: Stored, now: float) -> None:
        before, self.stored = self.stored, stored
        if stored.deleted and not before.deleted:
            self._say("it is being deleted")
        if stored.generation == before.generation:
            return
        self._dirty = True
        was, is_ = before.definition, stored.definition
        if (was.shape.instances, was.deployment, was.scaling) != (is_.shape.instances, is_.deployment, is_.scaling):
            self.scaler.begin(is_, now)

    def _wanted(self) -> Wanted:
        definition = self.stored.definition
        return Wanted(
            mold=definition.mold,
            count=0 if self._ending else self.scaler.count,
            serves=definition.serves,
            cores=definition.shape.cores or 1.0,
            deadline_s=definition.limits.deadline_s,
            changing=not self.stored.in_effect and not self.stored.hopeless,
        )

    def _change(self, make: Callable[[Stored], Stored]) -> None:
        """Change what is wanted, unless somebody else did meanwhile."""
        generation = self.stored.generation

        def changed(found: Stored | None) -> Stored | None:
            return None if found is None or found.generation != generation or found.deleted else make(found)

        after = change(self.folder, changed)
        if after is not None:
            self._become(after, time.monotonic())
            self.stored = after
        self._dirty = True

    def _settle(self) -> None:
        self._change(Stored.settle)
        if self.stored.in_effect:
            self._say(f"change {self.stored.generation} is in effect")

    def _give_up(self, reason: str) -> None:
        self._say(f"change {self.stored.generation} is given up: {reason}")
        self._change(lambda stored: stored.give_up(reason))

    # Looking and deciding

    def _measure(self, now: float) -> None:
        if self._rhythm.due("usage", 2.0, now):
            self.crew.measure(now)
            in_flight = sum(int(one.state.get("in_flight") or 0) for one in self.crew.ready)
            self.pulse.look(now, in_flight=in_flight)
        if self._rhythm.due("tidy", 10.0, now):
            self.crew.tidy()
            tidy(self.folder.metrics, self.crew.pids())

    def _decide(self, now: float) -> None:
        definition = self.stored.definition
        if not self._ending and self.scaler.due(definition, now):
            self.crew.measure(now)
            self.pulse.look(now, in_flight=sum(int(one.state.get("in_flight") or 0) for one in self.crew.ready))
            if said := self.scaler.look(definition, self.pulse, self.crew.ready, now, time.time()):
                self._say(said)
        if self._rhythm.due("look", 1.0, now):
            self._fail_over(now)
            self._judge()
            self._share()
        elif not self.crew.ready and not self.standby.active:
            self._fail_over(now)  # nobody answers: not a second longer

    def _fail_over(self, now: float) -> None:
        definition = self.stored.definition
        said = self.standby.look(
            None if self._ending else definition.backup,
            ready=len(self.crew.ready),
            wanted=self.scaler.count if self.stored.settled and not self._ending else 0,
            hand_back_after=definition.hand_back_after,
            now=now,
        )
        if said is not None:
            self._say(said)

    def _share(self) -> None:
        """Have connections moved from who has many to who has few."""
        able = [one for one in self.crew.ready if one.state.get("shares")]
        if len(able) < len(self.crew.ready):
            return
        for name, count in surplus({one.name: int(one.state.get("connections") or 0) for one in able}).items():
            one = self.crew.all[name]
            if one.channel is not None and not one.channel.asked("share"):
                one.channel.ask("share", {"connections": count})
                one.state["connections"] = int(one.state["connections"]) - count  # until it tells itself

    def _judge(self) -> None:
        if not self.stored.in_effect or self._ending:
            return
        definition = self.stored.definition
        verdict = self._trial.verdict(definition, self.pulse.totals, time.time())
        if verdict is None or verdict.decision == "wait" or definition.trial is None:
            return
        promoted = verdict.decision == "promote"
        chosen = definition.trial if promoted else definition.current
        self._say(f"{definition.trial.id} is {'promoted' if promoted else 'taken back'}: {verdict.reason}")
        self._change(
            lambda stored: stored.asked(definition.settled_on(chosen, stored.generation + 1), replaces=promoted)
        )

    # Acting

    def _act(self, wanted: Wanted, now: float) -> None:
        refused = next((one for one in self.crew.all.values() if one.refused is not None), None)
        if refused is not None:
            reason, refused.refused = refused.refused, None
            if wanted.changing:
                self._give_up(f"instance {refused.name} cannot serve it: {reason}")
                return
        for action in reconcile(wanted, self.crew.seen(now)):
            self._do(action, wanted, now)

    def _do(self, action: Action, wanted: Wanted, now: float) -> None:
        one = self.crew.all.get(action.name)
        self._dirty = True
        if action.kind == "start":
            self._start(action.name, wanted, now)
        elif action.kind == "give up":
            self._give_up(self._blame(wanted))
        elif one is None:
            return
        elif action.kind == "apply":
            self.crew.apply(one, self.stored)
        elif action.kind == "drain":
            self._say(f"instance {one.name} is draining")
            self.crew.drain(one, now)
        elif action.kind == "forget":
            self.crew.forget(one.name)
        elif action.kind == "kill" or one.phase == "draining":
            self._end(one)
        else:
            one.enter("draining", now)
            one.stop()

    def _end(self, one: Instance) -> None:
        """End a process that does not answer, or does not go."""
        if not one.stuck:
            self._say(f"instance {one.name} does not answer: it is ended")
        one.stuck = True  # also where it is asked to stop below, between its death and its shim's word of that
        one.find_process()
        if one.is_process:
            one.kill()
        else:  # nobody knows of a process: it never began, or its shim was killed with it
            one.stop()
            if one.phase == "draining":
                self.crew.forget(one.name)

    def _start(self, name: str, wanted: Wanted, now: float) -> None:
        if now < self._retry_at:
            return
        try:
            self.crew.start(self.stored, name, self._topology, count=wanted.count, now=now)
        except ScanflowError as error:
            self._retry_at = now + 5.0
            if wanted.changing:
                self._give_up(str(error))
            else:
                self._say(f"instance {name} cannot be started: {error}")

    def _blame(self, wanted: Wanted) -> str:
        """Return why a change cannot be."""
        bad = [one for one in self.crew.all.values() if one.mold.mold == wanted.mold and one.error]
        bad.sort(key=lambda one: one.phase != "failed")
        return f"instance {bad[0].name}: {bad[0].error}" if bad else "its instances do not become ready"

    def _open_doors(self, now: float) -> bool:
        """Listen; say whether that works. A service that is being deleted listens no more."""
        if self._ending:
            self.doors.close()
            return True
        try:
            alone = not self.crew.alive and self.stored.definition.backup is None
            self.doors.open(self.stored.host, self.stored.port, max(self.scaler.count, 1), alone=alone)
        except ScanflowError as error:
            if self.stored.settled == 0:
                self._give_up(str(error))
            elif self._rhythm.due("port", 10.0, now):
                self._say(str(error))
            return self.stored.hopeless
        return True

    def _hand_out(self) -> None:
        ready, everyone = self.crew.ready, self.crew.all
        if self.standby.active:
            self.standby.lend(self.doors.own)
            self.doors.take_back(self.doors.own, everyone)
            self.doors.hand_out(ready, everyone, own=False)
            return
        if self.doors.hand_out(ready, everyone, own=True):
            self._dirty = True
        if not ready:
            self.doors.take_back(list(self.doors.holders), everyone)
        if self.standby.lent and (ready or self.scaler.count == 0):
            self.standby.take_back()

    def _hold(self, wanted: Wanted) -> None:
        holding = self.front.holding
        if self._ending:
            holding.close()
            return
        if self._asleep and any(held.phase != "idle" for held in holding.all):
            self.scaler.wake(time.monotonic())
        self.front.note_endings()
        backup = self.standby.ready
        starting = any(one.phase in {"starting", "waiting"} for one in self.crew.all.values())
        holding.settle(
            limit_s=min(self.stored.definition.limits.deadline_s, HOLD_S),
            ready=bool(self.crew.ready) or backup,
            hope=starting or wanted.count > len(self.crew.ready),
            asleep=self._asleep,
            fresh=lambda since: any(one.began >= since for one in self.crew.ready) or (backup and not starting),
            take=self._take,
        )

    def _take(self, held: Held, after: float | None) -> bool:
        """Hand a connection to the instance with the least to do, or to the backup."""
        able = [one for one in self.crew.ready if after is None or one.began >= after]
        body: dict[str, object] = {"replays": held.replays, "phase": held.phase, "whole": held.whole}
        fds = [held.sock.fileno()] + ([] if held.memory is None else [held.memory])
        if able:
            self.front.give_to(min(able, key=lambda one: (one.load, one.name)), held, body, fds)
            return True
        if not self.standby.take(body, fds):
            return False
        held.close()
        return True

    # Sleeping and waking

    def sleepers(self) -> list[socket]:
        """Return the sockets whose first caller wakes the service; none while it is awake."""
        if not self._asleep:
            return []
        idle = [held.sock for held in self.front.holding.all]
        return [*self.doors.own.values(), *self.doors.guests.values(), *idle]

    def wake(self) -> None:
        """Have an instance, if somebody has called."""
        poller = select.poll()
        for one in (*self.doors.own.values(), *self.doors.guests.values()):
            poller.register(one, select.POLLIN)
        if self.front.holding.wakers() or poller.poll(0):
            if self.scaler.count == 0:
                self._say("somebody calls: it wakes")
            self.scaler.wake(time.monotonic())

    # Hearing

    def told(self, peer: Channel, message: Exchange, fds: list[int]) -> None:
        """Take note of what a keeper, a command or another supervisor says."""
        self.front.told(peer, message, fds, ready=bool(self.crew.ready) or self._asleep)

    def _joined(self, one: Instance) -> None:
        channel = one.channel
        if channel is not None:
            self._watch(channel, partial(self._hear, one, channel))

    def _left(self, one: Instance) -> None:
        while one.channel is not None and self._hear(one, one.channel):
            pass  # the last that it said may be connections it gave
        if one.channel is not None:
            self._unwatch(one.channel)

    def _hear(self, one: Instance, channel: Channel) -> bool:
        messages, there = channel.read()
        now = time.monotonic()
        for message, fds in messages:
            self.front.heard(one, message, fds, now)
            if one.name in self._recovering and message.kind == "reply":
                self.front.recover(one, message)
                if not channel.asked("state"):
                    self._recovering.discard(one.name)
        if not there and one.channel is channel:
            self._unwatch(channel)
            one.hang_up()
        return bool(messages)

    def _recovers(self, now: float) -> bool:
        """Say whether sockets of an earlier supervisor are still awaited."""
        self._recovering &= {one.name for one in self.crew.alive}
        if self._recovering and now < self._recover_until:
            return True
        self._recovering = set()
        return False

    # Telling

    def _say(self, text: str) -> None:
        _log.info("%s", text)
        self._news.add(text, time.time())
        self._dirty = True

    def _report(self, now: float, *, surely: bool = False) -> None:
        if not (surely or self._dirty or self._rhythm.due("report", 2.0, now)):
            return
        self._dirty = False
        record = record_of(
            self.stored,
            self.folder,
            count=0 if self._ending else self.scaler.count,
            instances=self.crew.all.values(),
            pulse=self.pulse,
            backup_active=self.standby.active,
        )
        explanation = self.scaler.still(self.stored.definition, time.time())
        events = tuple(self._news.events)
        try:
            write_state(self.folder, State(record=record, events=events, explanation=explanation, by=os.getpid()))
        except ScanflowError as error:  # a full disk: what serves goes on serving
            _log.warning("%s", error)
