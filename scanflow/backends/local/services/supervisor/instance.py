"""One instance as its supervisor knows it: a process under a shim, spoken to over its control socket."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scanflow.backends.local.services.control.channel import Channel
from scanflow.backends.local.services.supervisor.attempts import Template, failures_in_a_row, pause_s, started
from scanflow.backends.local.services.supervisor.metrics import Usage, read_usage
from scanflow.backends.local.services.supervisor.reconcile import Phase, Seen
from scanflow.cpu_priority import yield_cpu
from scanflow.processes.identity import birth_of
from scanflow.processes.shims import stop_attempt

_LIVES_KEPT = 10


@dataclass(slots=True, kw_only=True)
class Instance:
    """Everything known of one instance. Times are on the monotonic clock where nothing else is said."""

    name: str
    template: Template
    path: Path  # the folder of its attempt
    phase: Phase = "starting"
    since: float = 0.0
    began: float = 0.0
    pid: int | None = None
    channel: Channel | None = None
    state: dict[str, Any] = field(default_factory=dict)  # what it said last about itself
    looked: float = 0.0
    metered: float = 0.0
    answered: float = 0.0
    serves: int = 0
    was_ready: bool = False
    lives: list[float] = field(default_factory=list)  # seconds that its attempts lived
    due: float = 0.0
    restarts: int = 0
    error: str | None = None
    stuck: bool = False  # whether it was ended because it answered no more
    usage: Usage | None = None
    used_at: float = 0.0
    cpu_share: float | None = None
    behind: bool = False  # whether others come first on the CPUs, since they answer callers and this one only starts
    refused: str | None = None  # why it did not take what it was asked to serve

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
        return int(self.state.get("in_flight") or 0)

    def seen(self, now: float) -> Seen:
        return Seen(
            name=self.name,
            spec_hash=self.template.spec_hash,
            phase=self.phase,
            cores=self.template.cores,
            serves=self.serves,
            applying=self.channel is not None and self.channel.awaits("apply"),
            silent_s=max(0.0, now - self.answered) if self.channel else now - max(self.since, self.answered),
            phase_s=now - self.since,
            due_s=self.due - now,
            failures=self.failures,
            was_ready=self.was_ready,
        )

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

    def kill(self) -> None:
        if self.is_process:
            assert self.pid is not None
            os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        stop_attempt(self.path)

    @property
    def is_process(self) -> bool:
        """Whether the process that was started is there still, and no other has its number."""
        found = started(self.path)
        return (
            self.pid is not None and found is not None and bool(found["birth"]) and found["birth"] == birth_of(self.pid)
        )

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(int(cpu) for cpu in self.state.get("cpus") or self.template.grant.cpus)
