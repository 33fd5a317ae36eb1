"""The GPUs of one run's steps, as its engine sees them. Most runs have none: what grants them is imported where it is
needed only (``task_devices.py``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from scanflow.accelerators.visible import VISIBLE
from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.run_records import DeviceUse
from scanflow.names import StepName
from scanflow.text.failures import Failure

_T = TypeVar("_T")


class StepDevices(Protocol):
    """Takes, watches and gives back the devices of one run's attempts. Not thread-safe."""

    def asks(self, node: Executor) -> bool: ...

    def take(self, node: Executor, task: StepName, folder: Path) -> str:
        """Take the devices of an attempt; return why it has to wait, or nothing.

        Raises:
            UnsupportedError: the machine has no such devices any more.
        """
        ...

    def adopt(self, folder: Path) -> None:
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

    def asks(self, node: Executor) -> bool:  # noqa: ARG002
        return False

    def take(self, node: Executor, task: StepName, folder: Path) -> str:  # noqa: ARG002
        return ""

    def adopt(self, folder: Path) -> None:
        pass

    def release(self, folder: Path) -> bool:  # noqa: ARG002
        return False

    def build_variables(self, node: Executor, folder: Path) -> Mapping[str, str]:  # noqa: ARG002
        return {}

    def watch(self) -> list[Path]:
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


class DeviceQueue(Generic[_T]):
    """The tasks that wait for a device: first come, first served. Those that need none go on meanwhile."""

    def __init__(self, devices: StepDevices) -> None:
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
