"""The GPUs of one run's tasks: taken before an attempt starts, read back while it runs, given back when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from scanflow.accelerators.accelerator_port import Inventory
from scanflow.accelerators.visible import VISIBLE
from scanflow.app.executor import Executor
from scanflow.app.quantities import format_count
from scanflow.app.workflow import Workflow
from scanflow.backends.device_claims import HomeDevices, SeenUse
from scanflow.backends.device_faults import end_readings, find_fault
from scanflow.backends.local.mpi.job_step import count_ranks
from scanflow.backends.local.services.grants import list_cpus_avoiding
from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.backends.run_records import DeviceUse
from scanflow.errors import InvalidError, UnsupportedError
from scanflow.names import RunName, StepName
from scanflow.placement.device_grants import (
    DeviceDemand,
    DeviceGrant,
    build_demand,
    check_demand,
    check_environment,
    describe_wait,
    merge_grants,
)
from scanflow.placement.sysfs import read_topology
from scanflow.placement.topology import Topology
from scanflow.processes.shims import read_started
from scanflow.text.failures import Failure

GROWTH_S: Final = 5.0
"""How often at most it is said of an attempt that it holds more, which is written down and read by pages."""
MISSING_S: Final = 60.0
"""How long a task that waits for a GPU waits for one that was there when its run began, and is gone: a reset, or a
driver that is loaded again, takes some seconds."""


MAX_NAMES: Final = 4
"""More steps are counted."""


def check_step_devices(workflow: Workflow, devices: HomeDevices) -> None:
    """See :func:`~scanflow.backends.local.batch.step_devices.check_devices`."""
    inventory: Inventory | None = None
    for node in workflow.steps:
        demand, named = _build_step_demand(node), node.env.get(VISIBLE, "-1")
        if demand is None and named in {"", "-1"}:
            continue
        inventory = inventory or devices.read_inventory()
        who = f"{'Executor' if count_ranks(node) is None else 'MPIWorkload'} {node.name!r}"
        try:
            if demand is not None:
                check_demand(inventory, demand)
            check_environment(node.env, inventory, asks=demand is not None)
        except (InvalidError, UnsupportedError) as error:
            raise type(error)(f"{who}: {error}") from error


def count_whole_devices(inventory: Inventory) -> int:
    """Return how many devices can be granted whole or in shares."""
    return sum(not device.fault and not device.mig_enabled for device in inventory.devices)


def explain_waits(workflow: Workflow, devices: HomeDevices) -> tuple[str, ...]:
    """Return for a plan which devices are not free now, and the steps that would wait for them."""
    waits: dict[str, list[str]] = {}
    for node in workflow.steps:
        if (demand := _build_step_demand(node)) is not None and (why := devices.explain_wait(demand)):
            waits.setdefault(describe_wait(demand, why), []).append(node.name)
    return tuple(
        f"{what} {', '.join(names) if len(names) <= MAX_NAMES else format_count(len(names), 'step')} would wait."
        for what, names in waits.items()
    )


def _build_step_demand(node: Executor) -> DeviceDemand | None:
    demand = build_demand(node.resources)
    return None if demand is None else replace(demand, copies=count_ranks(node) or 1)


@dataclass(slots=True)
class _AttemptDevices:
    task: StepName
    grants: tuple[DeviceGrant, ...]
    seen: SeenUse = field(default_factory=SeenUse)
    named_bytes: int = 0
    """What it held when it was last said that it holds more."""

    named_at: float = -math.inf
    faults: dict[str, str] = field(default_factory=dict)
    """Of its devices that had failed when they were read last, by the UUIDs of its grants."""

    @property
    def merged(self) -> tuple[DeviceGrant, ...]:
        """Those that are watched: of one device, all that its ranks hold together."""
        return merge_grants(self.grants)

    def watch(self, inventory: Inventory, session: int, now: float) -> bool:
        """Add what is seen of it; return whether it is over its share, for the first time."""
        self.faults = {grant.uuid: fault for grant in self.grants if (fault := find_fault(inventory, grant))}
        return self.seen.add(inventory, self.merged, session, now)

    def describe(self) -> tuple[DeviceUse, ...]:
        uses = self.seen.describe(self.merged)
        return tuple(end_readings(use, self.faults) if use.uuid in self.faults else use for use in uses)


class TaskDevices:
    """See :class:`~scanflow.backends.local.batch.step_devices.StepDevices`."""

    def __init__(
        self,
        devices: HomeDevices,
        run: RunName,
        workflow: Workflow,
        read_machine: Callable[[], Topology] = read_topology,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._devices, self._run, self._read_machine, self._clock = devices, run, read_machine, clock
        self._missing = dict[DeviceDemand, float]()
        self._failed_on = dict[StepName, set[str]]()
        self._held: dict[Path, _AttemptDevices] = {}
        self._demands = {node.name: _build_step_demand(node) for node in workflow.steps}
        # Where none can be granted, nothing is hidden: a step uses what it finds, as before.
        self._hides = bool(devices.read_inventory().devices)

    def find_demand(self, node: Executor) -> DeviceDemand | None:
        return self._demands.get(node.name)

    def take(self, node: Executor, task: StepName, folder: Path, since: float) -> str:
        demand = self._demands[node.name]
        assert demand is not None
        taken = self._devices.take(
            folder,
            f"{self._run}/{task}",
            demand,
            near=self._list_near(node),
            avoid=self._failed_on.get(task, ()),
            since=since,
        )
        if isinstance(taken, str):
            return self._explain_missing(demand) or taken
        self._held[folder] = _AttemptDevices(task, taken)
        self._missing.pop(demand, None)
        return ""

    def _explain_missing(self, demand: DeviceDemand) -> str:
        """Return what is missing of what there was when the run began; empty: nothing.

        Raises:
            UnsupportedError: it does not come back.
        """
        try:
            check_demand(self._devices.read_inventory(), demand)
        except UnsupportedError as error:
            if self._clock() - self._missing.setdefault(demand, self._clock()) > MISSING_S:
                raise
            return str(error).rstrip(".")
        self._missing.pop(demand, None)
        return ""

    def stop_waiting(self, folder: Path) -> None:
        self._devices.stop_waiting(folder)

    def _list_near(self, node: Executor) -> tuple[int, ...]:
        """Return the NUMA nodes of the cores that a step may use; none: those of all."""
        topology = self._read_machine()
        cpus = topology.effective_cpus
        if node.avoid_services:
            cpus = list_cpus_avoiding(ServicesHome(self._devices.home / "services"), node.avoid_services, topology)
        return topology.list_nearest_memory(cpus)

    def adopt(self, task: StepName, folder: Path) -> None:
        if grants := self._devices.list_grants(folder):
            self._held[folder] = _AttemptDevices(task, grants)

    def release(self, folder: Path) -> bool:
        if self._held.pop(folder, None) is None:
            return False
        self._devices.release(folder)
        return True

    def build_variables(self, node: Executor, folder: Path) -> Mapping[str, str]:
        held = self._held.get(folder)
        if held is None and (not self._hides or VISIBLE in node.env):
            return {}
        return self._devices.build_variables(folder, () if held is None else held.grants)

    def watch(self) -> list[Path]:
        if not self._held:
            return []
        inventory, now, over = self._devices.read_inventory(), self._clock(), []
        for folder, held in self._held.items():
            started = read_started(folder)
            if started is not None and held.watch(inventory, int(started["pid"]), now):
                over.append(folder)
        return over

    def list_growth(self) -> list[Path]:
        now, grown = self._clock(), []
        for folder, held in self._held.items():
            peak = sum(held.seen.peaks.values())
            if peak > held.named_bytes and now >= held.named_at + GROWTH_S:
                held.named_bytes, held.named_at = peak, now
                grown.append(folder)
        return grown

    def describe(self, folder: Path) -> tuple[DeviceUse, ...]:
        held = self._held.get(folder)
        return () if held is None else held.describe()

    def is_over_share(self, folder: Path) -> bool:
        return folder in self._held and bool(self._held[folder].seen.excess)

    def explain_failure(self, folder: Path, failure: Failure) -> Failure:
        held = self._held.get(folder)
        if held is None:
            return failure
        self._failed_on.setdefault(held.task, set()).update(grant.device for grant in held.grants)
        if held.seen.excess:
            return Failure(summary="stopped: it used more than its share of a GPU", cause=held.seen.excess)
        inventory = self._devices.read_inventory()
        for grant in held.grants:
            if fault := find_fault(inventory, grant):
                summary = f"{failure.summary}; GPU {grant.number} has failed: {fault}"
                return failure.model_copy(update={"summary": summary})
        return failure
