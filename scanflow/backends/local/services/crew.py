"""The instances of a service: started, adopted, looked at, and remembered when they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scanflow.backends.local.services import attempts
from scanflow.backends.local.services.channel import Channel
from scanflow.backends.local.services.grants import choose
from scanflow.backends.local.services.instance import Instance
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.orphans import Ending
from scanflow.backends.local.services.reconcile import Seen
from scanflow.backends.local.services.stored import Stored
from scanflow.backends.local.shims import Exit, Shims, stop_attempt
from scanflow.placement.topology import Topology
from scanflow.wire import Exchange, encode

__all__ = ["Crew"]

LOOK_S = 1.0
"""Between two looks at an instance that is ready ..."""

EAGER_S = 0.05
"""... and at one that is expected to change any moment."""

BEHIND_S = 20.0
"""Longest that an instance which starts leaves the CPUs to those that answer callers."""

Say = Callable[[str], None]


class Crew:
    """All instances of one service that have a process, or wait for another."""

    def __init__(
        self,
        folder: ServiceFolder,
        shims: Shims,
        *,
        say: Say,
        joined: Callable[[Instance], None],
        left: Callable[[Instance], None],
    ) -> None:
        """``say`` is told what happens; ``joined``, of each control connection that was made; ``left``,
        of an instance whose process is gone, before what it said last is thrown away with its connection."""
        self._folder, self._shims, self._say, self._joined, self._left = folder, shims, say, joined, left
        self.all: dict[str, Instance] = {}
        self._by_path: dict[Path, Instance] = {}
        self.endings: dict[str, tuple[Ending, float]] = {}
        """How each instance's last process ended, and when."""

    # What is there

    @property
    def ready(self) -> list[Instance]:
        """Those that answer requests."""
        return [one for one in self.all.values() if one.phase == "ready" and one.channel is not None]

    @property
    def alive(self) -> list[Instance]:
        """Those that have a process."""
        return [one for one in self.all.values() if one.alive]

    @property
    def behind(self) -> bool:
        """Whether messages wait to be sent."""
        return any(one.channel is not None and one.channel.behind for one in self.all.values())

    def seen(self, now: float) -> list[Seen]:
        """Return all of them as the decision needs them."""
        return [one.seen(now) for one in self.all.values()]

    # Coming and going

    def adopt(self, stored: Stored, now: float, wall: float) -> None:
        """Take over what an earlier supervisor left; ``wall``: seconds since the epoch."""
        for name, path in attempts.newest(self._folder):
            mold = attempts.read_mold(path)
            ended = self._shims.adopt(path) if (path / "alive").exists() else Exit(exit_code=None, reason="void")
            if mold is None:
                if ended is None:  # nothing can be known of it
                    stop_attempt(path)
                continue
            one = Instance(name=name, mold=mold, path=path, since=now, began=now)
            found = attempts.started(path)
            if ended is None:
                one.began = one.since = now - max(0.0, wall - float(found["began"] if found else wall))
                self._enter(one)
                self._say(f"instance {name} is adopted")
            elif ended.reason != "void":
                self._bury(one, ended, now)
                if mold.mold == stored.definition.mold and attempts.ending_of(ended) != "drained":
                    self.all[name] = one

    def start(self, stored: Stored, name: str, topology: Topology, *, count: int, now: float) -> None:
        """Start an instance, or one that ended anew.

        Raises:
            InvalidError: there are not enough cores.
            UnavailableError: the disk cannot be written.
        """
        before = self.all.get(name)
        mold = stored.definition.mold
        own = [one.mold.grant for one in self.all.values() if one.mold.mold == mold and one.name != name]
        grant = before.mold.grant if before is not None and before.mold.mold == mold else None
        if grant is None:
            grant = choose(self._folder, topology, stored.definition.shape, count, own)
        path = attempts.make_attempt(self._folder, stored, name, grant)
        one = Instance(
            name=name,
            mold=attempts.Mold(mold, stored.definition.shape.cores or 1.0, grant),
            path=path,
            since=now,
            began=now,
        )
        if before is not None and before.mold.mold == mold:
            one.lives, one.restarts = before.lives, before.restarts + 1
            one.was_ready, one.error = before.was_ready, before.error
        self._enter(one)
        self._shims.start(path)
        attempts.prune(path.parent)
        self._say(f"instance {name} is starting" + (" again" if one.restarts else ""))

    def buried(self, now: float) -> list[Instance]:
        """Take note of the processes that ended since the last look, and return their instances."""
        found = []
        for path, exit_ in self._shims.wait(0):
            one = self._by_path.pop(path, None)
            if one is not None and self.all.get(one.name) is one:
                self._bury(one, exit_, now)
                if one.phase == "waiting" and one.error is None:
                    del self.all[one.name]
                found.append(one)
        return found

    def forget(self, name: str) -> None:
        """Think no more of an instance without a process."""
        self.all.pop(name, None)

    def _enter(self, one: Instance) -> None:
        self.all[one.name] = one
        self._by_path[one.path] = one

    def _bury(self, one: Instance, exit_: Exit, now: float) -> None:
        ending = attempts.ending_of(exit_, stuck=one.stuck)
        self.endings[one.name] = (ending, now)
        self._left(one)
        if exit_.seconds is not None:
            one.began = now - exit_.seconds
        if one.phase == "draining" or (exit_.reason in {"void", "stopped"} and not one.stuck):
            one.ended(now, None, again=True)
            self._say(f"instance {one.name} has ended")
            return
        reason = "it answered no more" if one.stuck else attempts.failure_of(one.path, exit_)
        again = exit_.exit_code != attempts.CONFIGURATION
        one.ended(now, reason, again=again)
        pause = f", and starts again in {one.due - now:.2g} s" if one.due > now else ", and starts again"
        self._say(f"instance {one.name} ended: {reason}{pause if again else ''}")

    # Talking

    def look(self, now: float, *, eager: bool, serving: bool) -> None:
        """Ask all of them how they are, where that is due; those that change, and with ``eager`` all, often.

        ``serving``: whether callers are being answered, here or by the backup, before whom none that starts comes.
        """
        for one in self.alive:
            one.find_process()
            one.stay_behind(serving and one.phase == "starting" and now - one.began < BEHIND_S)
            if one.channel is None:
                self._connect(one, now)
            if one.channel is None:
                continue
            one.channel.flush()
            if one.channel.asked("state"):
                continue
            often = eager or one.phase == "starting"
            if now - one.looked >= (EAGER_S if often else LOOK_S) - 0.001:
                one.looked = now
                one.channel.ask("state")

    def _connect(self, one: Instance, now: float) -> None:
        one.channel = Channel.to(one.path / "control")
        if one.channel is not None:
            one.answered = now
            self._joined(one)

    def replied(self, one: Instance, reply: Exchange, now: float) -> None:
        """Take note of an answer that is a plain one."""
        sent = None if one.channel is None else one.channel.answered(reply)
        if sent is None:
            return
        error = reply.body.get("error")
        if sent.kind == "state" and not sent.body and error is None:
            before = one.phase
            one.told(reply.body, now)
            if before == "starting" and one.phase == "ready":
                where = f" on core {', '.join(map(str, one.cpus))}" if one.cpus and one.mold.grant.cpus else ""
                self._say(f"instance {one.name} is ready{where} ({now - one.began:.1f} s)")
        elif sent.kind == "apply":
            one.answered = now
            if error is None:
                one.serves = max(one.serves, int(sent.body.get("generation", 0)))
            else:
                one.refused = str(error)

    def apply(self, one: Instance, stored: Stored) -> None:
        """Ask an instance to serve what is wanted now."""
        if one.channel is not None:
            body: dict[str, Any] = json.loads(encode(stored.definition.desired))
            one.refused = None
            one.channel.ask("apply", body)

    def drain(self, one: Instance, now: float) -> None:
        """Ask an instance to finish what it has begun, and to end."""
        one.enter("draining", now)
        if one.channel is not None:
            one.channel.ask("drain")
        else:
            one.stop()

    def tidy(self) -> None:
        """Keep logs bounded."""
        for one in self.alive:
            attempts.limit_logs(one.path)

    def measure(self, now: float) -> None:
        """Look what each uses."""
        for one in self.alive:
            one.measure(now)

    def pids(self) -> list[int]:
        """Return the processes that live."""
        return [one.pid for one in self.alive if one.pid is not None]

    def close(self) -> None:
        """Let go of all of them; they run on."""
        for one in self.all.values():
            one.hang_up()
