"""The GPUs of one run's tasks: taken before an attempt starts, read back while it runs, given back when it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from scanflow.accelerators.port import Inventory
from scanflow.accelerators.visible import VISIBLE
from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.device_claims import HomeDevices, measure_use
from scanflow.backends.records import DeviceUse
from scanflow.errors import InvalidError, UnsupportedError
from scanflow.names import RunName, StepName
from scanflow.placement.devices import DeviceGrant, build_demand, check_demand, check_environment, describe_process
from scanflow.processes.shims import read_started
from scanflow.text.failures import Failure

_T = TypeVar("_T")


def check_devices(workflow: Workflow, devices: HomeDevices) -> None:
    """Check that this machine could grant every step its devices if nothing else ran.

    Raises:
        UnsupportedError: a step asks for more than there is.
        InvalidError: one names devices itself.
    """
    inventory: Inventory | None = None
    for node in workflow.steps:
        demand, named = build_demand(node.resources), node.env.get(VISIBLE, "-1")
        if demand is None and named in {"", "-1"}:
            continue
        inventory = inventory or devices.read_inventory()
        who = f"Executor {node.name!r}"
        try:
            if demand is not None:
                check_demand(inventory, demand)
            check_environment(node.env, inventory, asks=demand is not None)
        except (InvalidError, UnsupportedError) as error:
            raise type(error)(f"{who}: {error}") from error


@dataclass(slots=True)
class _AttemptDevices:
    grants: tuple[DeviceGrant, ...]
    peaks: dict[str, int] = field(default_factory=dict)
    """The most memory that its processes were seen to hold, by the grant's UUID."""

    others: dict[str, tuple[str, ...]] = field(default_factory=dict)
    excess: str = ""


class TaskDevices:
    """Takes, watches and gives back the devices of one run's attempts. Not thread-safe."""

    def __init__(self, devices: HomeDevices, run: RunName, workflow: Workflow) -> None:
        self._devices, self._run = devices, run
        self._held: dict[Path, _AttemptDevices] = {}
        self._demands = {node.name: build_demand(node.resources) for node in workflow.steps}
        # Where none can be granted, nothing is hidden: a step uses what it finds, as before.
        self._hides = bool(devices.read_inventory().devices)

    def asks(self, node: Executor) -> bool:
        return self._demands.get(node.name) is not None

    def take(self, node: Executor, task: StepName, folder: Path) -> str:
        """Take the devices of an attempt; return why it has to wait, or nothing.

        Raises:
            UnsupportedError: the machine has no such devices any more.
        """
        demand = self._demands[node.name]
        assert demand is not None
        taken = self._devices.take(folder, f"{self._run}/{task}", demand)
        if isinstance(taken, str):
            check_demand(self._devices.read_inventory(), demand)  # a device may have failed since the run began
            return taken
        self._held[folder] = _AttemptDevices(taken)
        return ""

    def adopt(self, folder: Path) -> None:
        if grants := self._devices.find_grants(folder):
            self._held[folder] = _AttemptDevices(grants)

    def release(self, folder: Path) -> bool:
        """Give back what an attempt holds; return whether it held any."""
        if self._held.pop(folder, None) is None:
            return False
        self._devices.release(folder)
        return True

    def build_variables(self, node: Executor, folder: Path) -> Mapping[str, str]:
        """Return the variables that show an attempt its devices and no others."""
        held = self._held.get(folder)
        if held is None and (not self._hides or VISIBLE in node.env):
            return {}
        return self._devices.build_variables(folder, () if held is None else held.grants)

    def watch(self) -> list[Path]:
        """Read back who uses the devices of running attempts; return those that now use more than their share."""
        if not self._held:
            return []
        inventory = self._devices.read_inventory()
        return [folder for folder, held in self._held.items() if self._watch_attempt(inventory, folder, held)]

    def describe(self, folder: Path) -> tuple[DeviceUse, ...]:
        """Return what an attempt was granted, and what was seen of it."""
        held = self._held.get(folder)
        return () if held is None else tuple(_build_use(grant, held) for grant in held.grants)

    def is_over_share(self, folder: Path) -> bool:
        """Return whether an attempt is being stopped because it used more memory than its share."""
        return folder in self._held and bool(self._held[folder].excess)

    def explain_failure(self, folder: Path, failure: Failure) -> Failure:
        """Return the failure of an attempt, with what its devices say of it."""
        held = self._held.get(folder)
        if held is None:
            return failure
        if held.excess:
            return Failure(summary="stopped: it used more than its share of a GPU", cause=held.excess)
        devices = {device.uuid: device for device in self._devices.read_inventory().devices}
        for grant in held.grants:
            device = devices.get(grant.device)
            fault = "the driver does not list it any more" if device is None else device.fault
            if fault:
                summary = f"{failure.summary}; GPU {grant.number} has failed: {fault}"
                return failure.model_copy(update={"summary": summary})
        return failure

    def _watch_attempt(self, inventory: Inventory, folder: Path, held: _AttemptDevices) -> bool:
        started = read_started(folder)
        if started is None:
            return False
        for grant in held.grants:
            use = measure_use(inventory, grant, int(started["pid"]))
            held.others[grant.uuid] = tuple(map(describe_process, use.others))
            if use.own_bytes is not None:
                held.peaks[grant.uuid] = max(use.own_bytes, held.peaks.get(grant.uuid, 0))
            if use.excess and not held.excess:
                held.excess = use.excess
                return True
        return False


class DeviceQueue(Generic[_T]):
    """The tasks that wait for a device: first come, first served. Those that need none go on meanwhile."""

    def __init__(self, devices: TaskDevices) -> None:
        self._devices = devices
        self._tasks: deque[_T] = deque()
        self._next: _T | None = None
        self._retry = False

    def __len__(self) -> int:
        return len(self._tasks)

    def take(self, task: _T, node: Executor, name: StepName, folder: Path) -> str:
        """Take the devices of a task's attempt; where none are free, queue it, and return why.

        Raises:
            UnsupportedError: the machine has no such devices any more.
        """
        is_next, self._next = task is self._next, None
        first = is_next or not self._tasks
        why = self._devices.take(node, name, folder) if first else "others wait for one before it"
        if not why:
            self._retry = True  # there may be one for the next as well
        elif is_next:
            self._tasks.appendleft(task)
        else:
            self._tasks.append(task)
        return why

    def retry(self) -> None:
        """Note that a device may have become free."""
        self._retry = True

    def pop_next(self) -> _T | None:
        """Return the task that is to try again, if a device may be free."""
        if not self._tasks or not self._retry:
            return None
        self._retry, self._next = False, self._tasks.popleft()
        return self._next


def _build_use(grant: DeviceGrant, held: _AttemptDevices) -> DeviceUse:
    return DeviceUse(
        number=grant.number,
        uuid=grant.uuid,
        name=grant.name,
        sharing=grant.sharing,
        share=grant.share,
        memory_bytes=grant.memory_bytes,
        peak_bytes=held.peaks.get(grant.uuid),
        others=held.others.get(grant.uuid, ()),
    )
