"""``scanflow doctor``: check this machine, or a backend, and advise on what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from scanflow.accelerators.mps import START as START_MPS
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.device_text import format_machine_devices
from scanflow.backends.findings import Finding
from scanflow.deployer import EmbeddedDeployer
from scanflow.installation import suggest_install
from scanflow.placement.available_cpus import read_this_machine
from scanflow.settings import Settings
from scanflow_client.formatting.text import format_bytes

MIN_DISK_BYTES = 2 * 2**30
_WITHOUT_CUDA: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "torch": (lambda version: "+cpu" in version, ""),
    "tensorflow-cpu": (lambda _: True, "tensorflow[and-cuda]"),
    "onnxruntime": (lambda _: not _is_installed("onnxruntime-gpu"), "onnxruntime-gpu"),
}
"""Packages that cannot use a GPU, or of which a build cannot, and those to install in their place."""

_SERVING = ("grpc", "httptools", "msgspec", "numpy", "prometheus_client", "uvloop")


def examine(settings: Settings, *, thorough: bool = False) -> list[Finding]:
    """Return the findings on this machine, or on the backend that the settings name, in the order to fix them."""
    if settings.backend not in {None, "local"}:
        return [_check_python(), *EmbeddedDeployer(settings).backend.doctor(thorough=thorough)]
    return [
        _check_python(),
        _check_cores(),
        *_check_home(settings.home.expanduser().absolute()),
        _check_uv(),
        _check_serving(),
        *_check_devices(settings.home.expanduser().absolute()),
        _check_package("mlflow", "tracks runs and models", "local"),
        _check_package("tensorflow", "trains in the demo", "tensorflow"),
        *_check_services(settings),
    ]


def _check_python() -> Finding:
    return Finding("✓", "Python", f"{platform.python_version()} at {sys.executable}")


def _check_cores() -> Finding:
    machine = read_this_machine()
    installed = os.cpu_count() or machine.cores
    limited = "" if machine.cores == installed else f" of {installed} (limited by affinity or cgroup)"
    return Finding("✓", "machine", f"{machine.cores} cores{limited}, {format_bytes(machine.memory_bytes)} of memory")


def _check_home(home: Path) -> list[Finding]:
    existing = next(folder for folder in [home, *home.parents] if folder.exists())
    if not os.access(existing, os.W_OK):
        return [Finding("✗", "home folder", f"{home} is not writable", "export SCANFLOW_HOME=a/folder/of/yours")]
    free = shutil.disk_usage(existing).free
    enough = free >= MIN_DISK_BYTES
    return [
        Finding("✓", "home folder", str(home) + ("" if home.exists() else " (created by the first run)")),
        Finding("✓" if enough else "✗", "disk", f"{format_bytes(free)} free", "" if enough else "free at least 2 GiB"),
    ]


def _check_uv() -> Finding:
    path = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
    if path:
        return Finding("✓", "uv", f"creates the environments of steps with requirements ({path})")
    return Finding("–", "uv", "not installed; steps with requirements need it", suggest_install("local"))


def _check_serving() -> Finding:
    missing = [name for name in _SERVING if find_spec(name) is None]
    if missing:
        advice = suggest_install("serving")
        return Finding("–", "serving", f"{', '.join(missing)} not installed; instances of services need it", advice)
    if not hasattr(os, "sched_setaffinity"):
        return Finding("–", "serving", "installed; instances cannot be pinned to cores here", "leave out affinity")
    return Finding("✓", "serving", "installed; instances of services can be pinned to cores")


def _check_devices(home: Path) -> Iterable[Finding]:
    """Yield which GPUs steps can be granted, how one is shared, and which frameworks could not use them."""
    devices = HomeDevices(home)
    inventory = devices.read_inventory()
    if not inventory.devices:
        yield Finding("–", "GPUs", f"none can be granted to steps: {inventory.absence}")
        return
    for line in format_machine_devices(inventory, devices.list_claims()):
        yield Finding("✗" if ": failed: " in line else "✓", "GPU", line.strip())
    yield Finding("✓", "GPU driver", inventory.driver)
    if inventory.mps_directory is not None:
        yield Finding("✓", "GPU shares", "bounded by NVIDIA's Multi-Process Service: processors and memory")
    elif inventory.sees_processes:
        said = "given in turns; a step that takes more memory than its share is stopped, and none is bounded in time"
        yield Finding("–", "GPU shares", said, START_MPS)
    else:
        said = "refused: this container's process ids are not those that the driver reports"
        yield Finding("–", "GPU shares", said, START_MPS)
    yield from _check_frameworks()


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def _check_frameworks() -> Iterable[Finding]:
    for package, (is_without_cuda, other) in _WITHOUT_CUDA.items():
        if _is_installed(package) and is_without_cuda(version := metadata.version(package)):
            advice = suggest_install(package=other) if other else "its build whose version ends in +cu and digits"
            yield Finding("–", package, f"{version} is built without CUDA; steps with a GPU would not use it", advice)


def _check_package(name: str, purpose: str, extra: str) -> Finding:
    if find_spec(name) is None:
        return Finding("–", name, f"not installed; {purpose}", suggest_install(extra))
    return Finding("✓", name, f"installed; {purpose}")


def _check_services(settings: Settings) -> Iterable[Finding]:
    """Yield findings on the deployed services, if there are any."""
    if (settings.home.expanduser() / "services").is_dir():
        records = EmbeddedDeployer(settings).services()
        ill = [record for record in records if record.state in {"failed", "degraded"}]
        yield from (
            Finding("✗", "service", f"{record.name} is {record.state}", f"scanflow logs {record.name}")
            for record in ill
        )
        yield Finding("✓", "services", f"{len(records) - len(ill)} of {len(records)} are healthy")
