"""``scanflow doctor``: check this machine, or a backend, and advise on what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from scanflow.backends.findings import Finding
from scanflow.deployer import EmbeddedDeployer
from scanflow.installation import suggest_install
from scanflow.placement.available_cpus import read_this_machine
from scanflow.settings import Settings
from scanflow_client.formatting.text import format_bytes

MIN_DISK_BYTES = 2 * 2**30
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
