"""The instances of a service: started, adopted, asked how they are, and remembered when they end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from selectors import BaseSelector
from typing import Any

from scanflow.backends.local.services.control.channel import Channel
from scanflow.backends.local.services.grants import choose
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.supervisor import attempts
from scanflow.backends.local.services.supervisor.instance import Instance
from scanflow.backends.local.services.supervisor.metrics import ServiceMetrics
from scanflow.backends.service_desired import DesiredState
from scanflow.disk import disk_error
from scanflow.placement.place import Grant
from scanflow.placement.topology import Topology
from scanflow.processes.shims import Exit, Shims, stop_attempt
from scanflow.wire import ControlMessage, encode

LOOK_S = 1.0  # between two looks at an instance that is ready ...
EAGER_S = 0.05  # ... and at one that is expected to change any moment.
METRICS_S = 0.25  # least time between two readings of an instance's metrics
BEHIND_S = 20.0  # longest that an instance which starts leaves the CPUs to those that answer callers
Say = Callable[[str], None]


class InstancePool:
    """All instances of one service that have a process, or wait for another."""

    def __init__(
        self, folder: ServiceFolder, shims: Shims, metrics: ServiceMetrics, selector: BaseSelector, say: Say
    ) -> None:
        self._folder, self._shims, self._metrics, self._selector, self._say = folder, shims, metrics, selector, say
        self.all: dict[str, Instance] = {}
        self._by_path: dict[Path, Instance] = {}

    # What is there

    @property
    def known(self) -> list[Instance]:
        return list(self.all.values())

    @property
    def ready(self) -> list[Instance]:
        """Those that answer requests."""
        return [one for one in self.known if one.phase == "ready" and one.channel is not None]

    @property
    def alive(self) -> list[Instance]:
        return [one for one in self.known if one.alive]

    @property
    def behind(self) -> bool:
        return any(one.channel is not None and one.channel.behind for one in self.known)

    # Coming and going

    def adopt(self, desired: DesiredState, now: float, wall: float) -> None:
        """Take over what an earlier supervisor left; ``wall``: seconds since the epoch."""
        spec_hash = desired.definition.spec_hash
        for name, path in attempts.newest(self._folder):
            template = attempts.read_template(path)
            ended = self._shims.adopt(path) if (path / "alive").exists() else Exit(exit_code=None, reason="void")
            if template is None:
                if ended is None:  # nothing can be known of it
                    stop_attempt(path)
                continue
            one = Instance(name=name, template=template, path=path, since=now, began=now)
            found = attempts.started(path)
            if ended is None:
                one.began = one.since = now - max(0.0, wall - float(found["began"] if found else wall))
                self._enter(one)
                self._say(f"instance {name} is adopted")
            elif template.spec_hash == spec_hash and ended.exit_code != 0 and ended.reason not in {"void", "stopped"}:
                self.all[name] = one
                self._ended(one, ended, now, retry=desired.in_effect)

    def start(self, desired: DesiredState, name: str, topology: Topology, *, count: int, now: float) -> None:
        """Start an instance, or again one that ended.

        Raises:
            InvalidError: there are not enough cores.
            UnavailableError: the disk cannot be written.
        """
        spec_hash, shape = desired.definition.spec_hash, desired.definition.shape
        before = self.all.get(name)
        if before is not None and before.spec_hash == spec_hash:
            template = before.template
        else:
            before, others = None, [one for one in self.known if one.name != name]
            own, leaving = grants_beside(others, spec_hash)
            grant = choose(self._folder, topology, shape, count, own, leaving)
            template = attempts.Template(spec_hash, shape.cores or 1.0, grant)
        try:
            path = attempts.make_attempt(self._folder, desired, name, template)
        except OSError as error:
            raise disk_error(error, self._folder.attempts(name)) from error
        one = Instance(name=name, template=template, path=path, since=now, began=now)
        if before is not None:
            one.lives, one.restarts = before.lives, before.restarts + 1
            one.was_ready, one.error = before.was_ready, before.error
        self._enter(one)
        self._shims.start(path)
        attempts.prune(path.parent)
        self._say(f"instance {name} is starting" + (" again" if one.restarts else ""))

    def ended(self, path: Path, exit_: Exit, now: float, *, retry: bool) -> bool:
        """Take note that a process ended; say whether it was an instance's.

        ``retry``: start it again also where its configuration seems to be wrong, since it has served before.
        """
        one = self._by_path.pop(path, None)
        if one is None:
            return False
        if self.all.get(one.name) is one:
            self._ended(one, exit_, now, retry=retry)
            if one.phase == "waiting" and one.error is None:
                del self.all[one.name]
        return True

    def forget(self, name: str) -> None:
        self.all.pop(name, None)

    def _enter(self, one: Instance) -> None:
        self.all[one.name] = one
        self._by_path[one.path] = one

    def _ended(self, one: Instance, exit_: Exit, now: float, *, retry: bool) -> None:
        if one.channel is not None:
            self._receive(one, one.channel)  # it may have reported its last figures
        self._metrics.ended(str(one.path))
        if exit_.seconds is not None:
            one.began = now - exit_.seconds
        if one.phase == "draining" or (exit_.reason in {"void", "stopped"} and not one.stuck):
            one.ended(now, None, again=True)
            self._say(f"instance {one.name} has ended")
            return
        reason = "it did not answer any more" if one.stuck else attempts.failure_of(one.path, exit_)
        again = retry or one.was_ready or exit_.exit_code != attempts.CONFIGURATION
        one.ended(now, reason, again=again)
        pause = f", and starts again in {one.due - now:.2g} s" if one.due > now else ", and starts again"
        self._say(f"instance {one.name} ended: {reason}{pause if again else ''}")

    # Talking

    def look(self, now: float, *, eager: bool, serving: bool) -> None:
        """Ask all of them how they are, where that is due; those that change, and with ``eager`` all, often.

        ``serving``: whether requests are being answered, here or by the backup, before which no instance that starts
        comes on the CPUs.
        """
        for one in self.alive:
            one.find_process()
            one.yield_cpu(serving and one.phase == "starting" and now - one.began < BEHIND_S)
            if one.channel is None:
                self._connect(one, now)
            if one.channel is None:
                continue
            one.channel.flush()
            if one.channel.awaits("state"):
                continue
            often = eager or one.phase in {"starting", "draining"}
            if now - one.looked >= (EAGER_S if often else LOOK_S) - 0.001:
                one.looked = now
                one.channel.ask("state", self._metrics_request(one, now) | self._fair_share(one))

    def _fair_share(self, instance: Instance) -> dict[str, Any]:
        """Return how many busy connections a ready instance has when all ready ones have as many."""
        if instance.phase != "ready":
            return {}
        busy = [int(ready.state.get("busy_connections") or 0) for ready in self.ready]
        return {"fair_share": ceil(sum(busy) / len(busy)) if len(busy) > 1 else None}

    def _metrics_request(self, one: Instance, now: float) -> dict[str, Any]:
        if one.phase == "starting" or now - one.metered < METRICS_S:
            return {}
        one.metered = now
        return {"metrics": True, "others": self._metrics.others(str(one.path))}

    def _connect(self, one: Instance, now: float) -> None:
        channel = one.channel = Channel.to(one.path / "control")
        if channel is not None:
            one.answered = now
            channel.watch(self._selector, partial(self._receive, one, channel))

    def _receive(self, one: Instance, channel: Channel) -> None:
        answers, there = channel.answers()
        now = time.monotonic()
        for asked, body in answers:
            self._answered(one, asked, body, now)
        if not there and one.channel is channel:
            one.hang_up()

    def _answered(self, one: Instance, asked: ControlMessage, body: dict[str, Any], now: float) -> None:
        error = body.get("error")
        if asked.kind == "state" and error is None:
            before = one.phase
            if "metrics" in body:
                self._metrics.report(str(one.path), body.pop("metrics"))
            one.reported(body, now)
            if before == "starting" and one.phase == "ready":
                where = f" on core {', '.join(map(str, one.cpus))}" if one.cpus and one.template.grant.cpus else ""
                self._say(f"instance {one.name} is ready{where} ({now - one.began:.1f} s)")
        elif asked.kind == "apply":
            one.answered = now
            if error is None:
                one.serves = max(one.serves, int(asked.body.get("generation", 0)))
            else:
                one.refused = str(error)

    def apply(self, one: Instance, desired: DesiredState) -> None:
        if one.channel is not None:
            body: dict[str, Any] = json.loads(encode(desired.definition.desired))
            one.refused = None
            one.channel.ask("apply", body)

    def drain(self, one: Instance, now: float, *, idle_s: float | None) -> None:
        """Have an instance finish; ``idle_s``: how long it keeps connections that are not used, if not as long as it
        was started with."""
        one.enter("draining", now)
        if one.channel is not None:
            one.channel.ask("drain", {} if idle_s is None else {"idle_s": idle_s})
        else:
            one.stop()

    def close(self) -> None:
        """Let go of all of them; they run on."""
        for one in self.known:
            one.hang_up()


def grants_beside(others: Sequence[Instance], spec_hash: str) -> tuple[list[Grant], list[Grant]]:
    """Return the grants beside which an instance of a specification is placed: of those that stay, and of those that
    leave. One that drains leaves, also where it is of that specification: as when a service is cut back."""
    staying = [one for one in others if one.spec_hash == spec_hash and one.phase != "draining"]
    leaving = [one for one in others if one not in staying and one.alive]
    return [one.template.grant for one in staying], [one.template.grant for one in leaving]
