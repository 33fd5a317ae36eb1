"""Metrics of a service's instances; those of ended ones are stored in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanflow.backends.run_records import DeviceUse
from scanflow.backends.service_metrics import (
    Samples,
    Totals,
    compute_totals,
    format_samples,
    parse_samples,
    sum_samples,
)
from scanflow.errors import ScanflowError
from scanflow.processes.proc_stat import compute_cpu_seconds, read_stat_fields
from scanflow.processes.shared_files import write_atomically

_GPUS = "gpus"
"""Reports what no instance knows: the samples of all GPUs of the service."""

_COUNTERS = ("_total", "_bucket", "_sum", "_count")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_s: float
    rss_bytes: int
    threads: int


class ServiceMetrics:
    """The samples of all instances; counters of ended ones are stored in a file, also for later supervisors."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._live: dict[str, Samples] = {}
        self._gone: Samples = {}
        try:
            self._gone = parse_samples(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            pass

    def report(self, instance: str, samples: Any) -> None:
        try:
            self._live[instance] = parse_samples(samples)
        except (ValueError, TypeError, AttributeError):
            return

    def report_devices(self, service: str, uses: Iterable[DeviceUse]) -> None:
        """Take the samples of the GPUs that the instances have."""
        self._live[_GPUS] = build_device_samples(service, uses)

    def retire(self, instance: str) -> None:
        """Store the counters of an instance that has ended."""
        for key, value in self._live.pop(instance, {}).items():
            if key[0].endswith(_COUNTERS):
                self._gone[key] = self._gone.get(key, 0.0) + value
        try:
            write_atomically(self._path, json.dumps(format_samples(self._gone)).encode())
        except ScanflowError:
            pass  # a full disk: a later supervisor counts less

    def sum_others(self, instance: str) -> list[list[Any]]:
        """Return the sums of all other instances, ended ones included, for an instance's ``/metrics``."""
        return format_samples(sum_samples([self._gone, *(own for name, own in self._live.items() if name != instance)]))

    @property
    def totals(self) -> Totals:
        return compute_totals(sum_samples([self._gone, *self._live.values()]))


def build_device_samples(service: str, uses: Iterable[DeviceUse]) -> Samples:
    """Return the samples of a service's GPUs, by UUID: how busy each is, and its power, once, whoever has it."""
    samples: Samples = {}
    for use in uses:
        labels = (("service", service), ("uuid", use.uuid))
        if use.busy_share is not None:
            samples["scanflow_gpu_busy_share", labels] = use.busy_share
        if use.power_w is not None:
            samples["scanflow_gpu_power_watts", labels] = use.power_w
        if use.used_bytes is not None:
            key = "scanflow_gpu_memory_bytes", labels
            samples[key] = samples.get(key, 0.0) + use.used_bytes
    return samples


def read_usage(pid: int) -> Usage | None:
    try:
        stat = read_stat_fields(pid)
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return Usage(compute_cpu_seconds(stat), pages * _PAGE, int(stat[17]))


def is_memory_short(rss_bytes: int) -> bool:
    """Return whether the available memory is less than the size of one more such process."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, LookupError, StopIteration):  # not available on this system
        return False
    return available < rss_bytes
