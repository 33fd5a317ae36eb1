"""The GPUs that the runs in a report had: which, how full, and who was beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from scanflow.agent.agent_records import Event
from scanflow.backends.device_text import list_uses
from scanflow.backends.run_records import RunRecord
from scanflow.errors import UsageError

MAX_RUNS: Final = 50
"""The newest runs whose records are read."""


class NamedDevices(NamedTuple):
    """What a step of a run had."""

    run: str
    step: str
    devices: str


def list_run_devices(events: Sequence[Event], get_run: Callable[[str], RunRecord]) -> list[NamedDevices]:
    """Return what the steps of the newest runs that events name had of GPUs, the newest run first.

    ``get_run``: returns a run with its tasks; UsageError: there is none, or none can have that name.
    """
    names = dict.fromkeys(str(event.data["run"]) for event in reversed(events) if event.data.get("run"))
    return [step for name in islice(names, MAX_RUNS) for step in _iterate_steps(name, get_run)]


def _iterate_steps(name: str, get_run: Callable[[str], RunRecord]) -> Iterator[NamedDevices]:
    with suppress(UsageError):  # it was deleted, or is no run: anybody may tell the server of events
        tasks = get_run(name).tasks
        yield from (NamedDevices(name, *uses) for uses in list_uses((task.step, task.devices) for task in tasks))
