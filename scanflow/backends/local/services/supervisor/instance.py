"""One instance as its supervisor knows it: a process under a shim, spoken to over its control socket."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scanflow.backends.local.services.control.channel import Channel
from scanflow.backends.local.services.supervisor.attempts import Template, failures_in_a_row, pause_s, started
from scanflow.backends.local.services.supervisor.metrics import Usage, read_usage
from scanflow.cpu_priority import yield_cpu
from scanflow.processes.identity import read_start_time
from scanflow.processes.shims import stop_attempt

Phase = Literal["starting", "ready", "draining", "waiting", "failed"]
"""``waiting`` (to be started again) and ``failed`` have no process."""

_LIVES_KEPT = 10


@dataclass(slots=True, kw_only=True, eq=False)
class Instance:
    """Everything known of one instance. Times are on the monotonic clock where nothing else is said."""

    name: str
    template: Template
    path: Path  # the folder of its attempt
    phase: Phase = "starting"
    since: float = 0.0  # when this phase began
    began: float = 0.0  # when this attempt began
    pid: int | None = None
    channel: Channel | None = None
    state: dict[str, Any] = field(default_factory=dict)  # what it said last about itself
    looked: float = 0.0  # when it was asked last,
    metered: float = 0.0  # when it was asked for its metrics last,
    answered: float = 0.0  # when it answered last
    serves: int = 0  # the generation; 0: none yet
    was_ready: bool = False  # now, or in an earlier attempt
    lives: list[float] = field(default_factory=list)  # seconds that its attempts lived
    due: float = 0.0  # when it is started again
    restarts: int = 0
    error: str | None = None
    stuck: bool = False  # whether it was ended because it answered no more
    usage: Usage | None = None
    used_at: float = 0.0
    cpu_share: float | None = None
    behind: bool = False  # whether others come first on the CPUs, since they answer callers and this one only starts
    refused: str | None = None  # why it did not take what it was asked to serve

    @property
    def spec_hash(self) -> str:
        return self.template.spec_hash

    @property
    def cores(self) -> float:
        return self.template.cores

    @property
    def alive(self) -> bool:
        """Whether there is a process, or will be any moment."""
        return self.phase in {"starting", "ready", "draining"}

    @property
    def failures(self) -> int:
        """Ends in a row that came too early."""
        return failures_in_a_row(self.lives)

    @property
    def in_flight(self) -> int:
        """Requests that it has not answered."""
        return int(self.state.get("in_flight") or 0)

    @property
    def applying(self) -> bool:
        """Whether it was asked to serve another generation, and has not answered."""
        return self.channel is not None and self.channel.awaits("apply")

    def silent_s(self, now: float) -> float:
        """Return for how long it has not answered."""
        return max(0.0, now - self.answered) if self.channel else now - max(self.since, self.answered)

    def enter(self, phase: Phase, now: float) -> None:
        if phase != self.phase:
            self.phase, self.since = phase, now

    def find_process(self) -> None:
        """Learn the process id, once its shim has written it down."""
        if self.pid is None and (found := started(self.path)) is not None:
            self.pid = int(found["pid"])

    def reported(self, state: dict[str, Any], now: float) -> None:
        """Take note of what it said about itself."""
        self.state, self.answered = state, now
        self.serves = int(state.get("generation") or 0)
        if state.get("draining"):  # asked by another process than this
            self.enter("draining", now)
        elif self.phase == "starting" and state.get("ready"):
            self.enter("ready", now)
            self.was_ready = True
        elif self.phase == "ready" and not state.get("ready"):
            self.enter("starting", now)

    def yield_cpu(self, behind: bool) -> None:
        if self.pid is not None and behind != self.behind and yield_cpu(self.pid, behind):
            self.behind = behind

    def measure(self, now: float) -> None:
        usage = None if self.pid is None else read_usage(self.pid)
        if usage is not None and self.usage is not None and now > self.used_at:
            cores = float(self.state.get("cores") or self.template.grant.cores or 1.0)
            spent = max(0.0, usage.cpu_s - self.usage.cpu_s)
            self.cpu_share = spent / ((now - self.used_at) * cores)
        self.usage, self.used_at = usage, now

    def ended(self, now: float, reason: str | None, *, again: bool) -> None:
        self.hang_up()
        self.lives = [*self.lives, now - self.began][-_LIVES_KEPT:]
        self.error, self.pid, self.state, self.usage, self.serves = reason, None, {}, None, 0
        self.due = now + pause_s(self.failures)
        self.phase, self.since = "waiting" if again else "failed", now

    def hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def kill(self) -> bool:
        """End the process at once, if it is there still and no other has its number; say whether it was."""
        found = started(self.path)
        if self.pid is None or found is None or not found["birth"] or found["birth"] != read_start_time(self.pid):
            return False
        os.kill(self.pid, signal.SIGKILL)
        return True

    def stop(self) -> None:
        """Ask it to end; its shim ends it when it does not."""
        stop_attempt(self.path)

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(int(cpu) for cpu in self.state.get("cpus") or self.template.grant.cpus)
