"""The GPUs of one run's steps, as its engine sees them. Most runs have none: what grants them is imported where it is
needed only (``task_devices.py``)."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from scanflow.accelerators.visible import VISIBLE
from scanflow.app.executor import Executor
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.run_records import DeviceUse
from scanflow.names import StepName
from scanflow.text.failures import Failure

if TYPE_CHECKING:
    from scanflow.backends.device_claims import HomeDevices

_T = TypeVar("_T")


class StepDevices(Protocol):
    """Takes, watches and gives back the devices of one run's attempts. Not thread-safe."""

    def find_demand(self, node: Executor) -> Hashable | None:
        """Return what a step asks for; None: no device. Equal ones can be met by the same devices."""
        ...

    def take(self, node: Executor, task: StepName, folder: Path, since: float) -> str:
        """Take the devices of an attempt; return why it has to wait, or nothing.

        Args:
            since: When it came, by ``time.monotonic()``.

        Raises:
            UnsupportedError: the machine has no such devices any more.
        """
        ...

    def stop_waiting(self, folder: Path) -> None:
        """Let those go first who came after an attempt that had to wait."""
        ...

    def adopt(self, task: StepName, folder: Path) -> None:
        """Take over the devices of an attempt that an earlier driver started."""
        ...

    def release(self, folder: Path) -> bool:
        """Give back what an attempt holds; return whether it held any."""
        ...

    def build_variables(self, node: Executor, folder: Path) -> Mapping[str, str]:
        """Return the variables that show an attempt its devices and no others."""
        ...

    def watch(self) -> list[Path]:
        """Read back who uses the devices of running attempts; return those that now use more than their share."""
        ...

    def list_growth(self) -> list[Path]:
        """Return the attempts that were seen to hold more than when this last named them, which it does rarely."""
        ...

    def describe(self, folder: Path) -> tuple[DeviceUse, ...]:
        """Return what an attempt was granted, and what was seen of it."""
        ...

    def is_over_share(self, folder: Path) -> bool:
        """Return whether an attempt is being stopped because it used more memory than its share."""
        ...

    def explain_failure(self, folder: Path, failure: Failure) -> Failure:
        """Return the failure of an attempt, with what its devices say of it."""
        ...


class NoStepDevices:
    """See :class:`StepDevices`: no step asks for one, and there are none to hide."""

    def find_demand(self, node: Executor) -> Hashable | None:  # noqa: ARG002
        return None

    def take(self, node: Executor, task: StepName, folder: Path, since: float) -> str:  # noqa: ARG002
        return ""

    def stop_waiting(self, folder: Path) -> None:
        pass

    def adopt(self, task: StepName, folder: Path) -> None:
        pass

    def release(self, folder: Path) -> bool:  # noqa: ARG002
        return False

    def build_variables(self, node: Executor, folder: Path) -> Mapping[str, str]:  # noqa: ARG002
        return {}

    def watch(self) -> list[Path]:
        return []

    def list_growth(self) -> list[Path]:
        return []

    def describe(self, folder: Path) -> tuple[DeviceUse, ...]:  # noqa: ARG002
        return ()

    def is_over_share(self, folder: Path) -> bool:  # noqa: ARG002
        return False

    def explain_failure(self, folder: Path, failure: Failure) -> Failure:  # noqa: ARG002
        return failure


def names_devices(workflow: Workflow) -> bool:
    """Return whether a step asks for GPUs, or names some itself."""
    return any(node.resources.gpu or VISIBLE in node.env for node in workflow.steps)


def check_devices(workflow: Workflow, get_devices: Callable[[], HomeDevices]) -> None:
    """Check that this machine could grant every step its devices if nothing else ran.

    Raises:
        UnsupportedError: a step asks for more than there is.
        InvalidError: one names devices itself.
    """
    if names_devices(workflow):
        from scanflow.backends.local.batch.task_devices import check_step_devices

        check_step_devices(workflow, get_devices())


def plan_devices(plan: Plan, workflow: Workflow, get_devices: Callable[[], HomeDevices]) -> Plan:
    """Return a plan with the machine's devices, and which steps would wait for some now."""
    if not names_devices(workflow):
        return plan
    from scanflow.backends.local.batch.task_devices import count_whole_devices, explain_waits

    devices = get_devices()
    gpus = count_whole_devices(devices.read_inventory())
    changes = {"machine_gpus": gpus, "peak_gpus": min(gpus, plan.peak_gpus), "notes": explain_waits(workflow, devices)}
    return plan.model_copy(update=changes)


class DeviceQueue(Generic[_T]):
    """The tasks of a run that wait for a device. Those that ask for the same stand in one line, whose first one waits
    in the home's order; tasks that need none go on meanwhile."""

    def __init__(self, devices: StepDevices, clock: Callable[[], float] = time.monotonic) -> None:
        self._devices, self._clock = devices, clock
        self._lines: dict[Hashable, list[_Waiter[_T]]] = {}
        self._open = set[Hashable]()
        """The lines for whose first one there may be a device."""

        self._came = dict[StepName, float]()
        self._known = dict[StepName, Path]()
        """The attempts that wait in the home's order."""

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def take(self, task: _T, node: Executor, name: StepName, folder: Path) -> str:
        """Take the devices of a task's attempt; where none are free, queue it, and return why.

        Raises:
            UnsupportedError: the machine has no such devices any more.
        """
        demand, came = self._devices.find_demand(node), self._came.setdefault(name, self._clock())
        line = self._lines.setdefault(demand, [])
        if line and line[0].came < came:
            why = f"{line[0].name} waits before it"
        else:
            self._known[name] = folder
            why = self._devices.take(node, name, folder, came)
            self._open.discard(demand)
        if why:
            insort(line, _Waiter(came, name, task), key=lambda waiter: waiter.came)
        else:
            del self._came[name], self._known[name]
            self._open.add(demand)  # there may be one for the next as well
        return why

    def retry(self) -> None:
        """Note that a device may have become free."""
        self._open.update(self._lines)

    def find_next(self) -> _T | None:
        """Return the task that is to try again next: of those for which a device may be free, the one that came
        first."""
        line = self._find_line()
        return None if line is None else self._lines[line][0].task

    def pop_next(self) -> None:
        """Take that task out of its line."""
        line = self._find_line()
        assert line is not None
        self._open.discard(line)
        del self._lines[line][0]

    def _find_line(self) -> Hashable | None:
        lines = [demand for demand in self._open if self._lines.get(demand)]
        return min(lines, key=lambda demand: self._lines[demand][0].came, default=None)

    def pause(self, name: StepName) -> None:
        """Let tasks of other runs go first meanwhile: a task cannot start for another reason."""
        if (folder := self._known.pop(name, None)) is not None:
            self._devices.stop_waiting(folder)

    def close(self) -> None:
        for name in list(self._known):
            self.pause(name)


@dataclass(frozen=True, slots=True)
class _Waiter(Generic[_T]):
    came: float
    name: StepName
    task: _T
