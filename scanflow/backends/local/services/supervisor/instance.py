"""An instance in its supervisor: a process under a shim, with a control socket."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scanflow.app.scaling import ScalingMetric
from scanflow.backends.device_claims import SeenUse
from scanflow.backends.device_faults import end_readings
from scanflow.backends.device_load import compute_mean
from scanflow.backends.local.services.control.channel import Channel
from scanflow.backends.local.services.supervisor.attempts import (
    Template,
    count_failures_in_a_row,
    pause_s,
    read_started,
)
from scanflow.backends.local.services.supervisor.instance_metrics import Usage, read_usage
from scanflow.backends.run_records import DeviceUse
from scanflow.placement.device_grants import DeviceGrant
from scanflow.processes.cpu_priority import yield_cpu
from scanflow.processes.identity import read_start_time
from scanflow.processes.shims import stop_attempt

Phase = Literal["starting", "ready", "draining", "waiting", "failed"]
"""``waiting`` (to be restarted) and ``failed`` have no process."""

_LIVES_KEPT = 10


@dataclass(slots=True, kw_only=True, eq=False)
class Instance:
    """The state of one instance. Times are on the monotonic clock unless stated otherwise."""

    name: str
    template: Template
    path: Path  # the folder of its attempt
    devices: tuple[DeviceGrant, ...] = ()  # the GPUs that it was granted
    seen: SeenUse = field(default_factory=SeenUse)  # ... and what was seen of their use
    faults: dict[str, str] = field(default_factory=dict)  # ... and of those that failed why, by the UUIDs of grants
    phase: Phase = "starting"
    since: float = 0.0  # start of this phase
    began: float = 0.0  # start of this attempt
    pid: int | None = None
    channel: Channel | None = None
    state: dict[str, Any] = field(default_factory=dict)  # its last report
    polled_at: float = 0.0  # time of the last state request
    metered: float = 0.0  # time of the last metrics request
    counted: float = 0.0  # ... and of the last that was answered
    answered: float = 0.0  # time of the last answer
    serves: int = 0  # the generation it serves; 0: none yet
    was_ready: bool = False  # now, or in an earlier attempt
    is_unreported: bool = False  # whether it was adopted, and has not reported its state since
    lives: list[float] = field(default_factory=list)  # lifetimes of its attempts in seconds
    due: float = 0.0  # time of the next restart
    restarts: int = 0
    error: str | None = None
    stuck: bool = False  # whether it was killed because it did not answer
    usage: Usage | None = None
    used_at: float = 0.0
    cpu_share: float | None = None
    is_deprioritised: bool = (
        False  # whether its CPU priority is lowered while it starts, in favour of serving instances
    )
    refusal: str | None = None  # why it did not take what it was asked to serve

    @property
    def spec_hash(self) -> str:
        return self.template.spec_hash

    @property
    def cores(self) -> float:
        return self.template.cores

    @property
    def alive(self) -> bool:
        """Whether it has a process, or is about to start one."""
        return self.phase in {"starting", "ready", "draining"}

    @property
    def failures(self) -> int:
        """The number of failures in a row."""
        return count_failures_in_a_row(self.lives)

    @property
    def in_flight(self) -> int:
        """The number of unanswered requests."""
        return int(self.state.get("in_flight") or 0)

    @property
    def applying(self) -> bool:
        """Whether it is applying another generation."""
        return self.channel is not None and self.channel.is_awaiting("apply")

    def compute_silence_s(self, now: float) -> float:
        """Return the time since its last answer."""
        return max(0.0, now - self.answered) if self.channel else now - max(self.since, self.answered)

    def enter(self, phase: Phase, now: float) -> None:
        if phase != self.phase:
            self.phase, self.since = phase, now

    def find_process(self) -> None:
        """Read the process id, once its shim has recorded it."""
        if self.pid is None and (record := read_started(self.path)) is not None:
            self.pid = int(record["pid"])

    def update_state(self, state: dict[str, Any], now: float) -> None:
        """Update the phase from the instance's report."""
        self.state, self.answered, self.is_unreported = state, now, False
        self.serves = int(state.get("generation") or 0)
        if state.get("draining"):  # requested by another process
            self.enter("draining", now)
        elif self.phase == "starting" and state.get("ready"):
            self.enter("ready", now)
            self.was_ready = True
        elif self.phase == "ready" and not state.get("ready"):
            self.enter("starting", now)

    def yield_cpu(self, deprioritise: bool) -> None:
        if self.pid is not None and deprioritise != self.is_deprioritised and yield_cpu(self.pid, deprioritise):
            self.is_deprioritised = deprioritise

    def measure(self, now: float) -> None:
        usage = None if self.pid is None else read_usage(self.pid)
        if usage is not None and self.usage is not None and now > self.used_at:
            cores = float(self.state.get("cores") or self.template.grant.cores or 1.0)
            spent = max(0.0, usage.cpu_s - self.usage.cpu_s)
            self.cpu_share = spent / ((now - self.used_at) * cores)
        self.usage, self.used_at = usage, now

    def find_share(self, metric: ScalingMetric, window_s: float) -> float | None:
        """Return how much it used lately of its cores, of its GPUs' time or of their memory; None: not known."""
        if metric == "gpu":
            return None if self.faults else self.seen.compute_busy_share(window_s)
        if metric == "gpu_memory":
            return compute_mean(use.memory_share for use in self.describe_devices())
        return self.cpu_share if metric == "cpu" else None

    def describe_devices(self) -> tuple[DeviceUse, ...]:
        """Return the GPUs that it was granted, with what was read of those that it computes on."""
        uses = self.seen.describe(self.devices)
        return tuple(
            use if self.alive and use.uuid not in self.faults else end_readings(use, self.faults) for use in uses
        )

    def record_exit(self, now: float, reason: str | None, *, restart: bool) -> None:
        self.disconnect()
        self.is_unreported = False
        self.lives = [*self.lives, now - self.began][-_LIVES_KEPT:]
        self.error, self.pid, self.state, self.usage, self.serves = reason, None, {}, None, 0
        self.due = now + pause_s(self.failures)
        self.phase, self.since = "waiting" if restart else "failed", now

    def disconnect(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def kill(self) -> bool:
        """Kill the process, if it still runs and its id was not reused; return whether it did."""
        record = read_started(self.path)
        if self.pid is None or record is None or not record["birth"] or record["birth"] != read_start_time(self.pid):
            return False
        os.kill(self.pid, signal.SIGKILL)
        return True

    def stop(self) -> None:
        """Request the process to end; its shim kills it after the grace period."""
        stop_attempt(self.path)

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(int(cpu) for cpu in self.state.get("cpus") or self.template.grant.cpus)
