"""``scanflow doctor``: what this machine offers, and what to do about what it does not."""

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
from scanflow.placement.available_cpus import this_machine
from scanflow.settings import Settings
from scanflow_client.formatting.text import format_bytes

LEAST_DISK_BYTES = 2 * 2**30
_SERVING = ("grpc", "httptools", "msgspec", "numpy", "prometheus_client", "uvloop")


def examine(settings: Settings, *, thorough: bool = False) -> list[Finding]:
    """Return what was found on this machine, or at the backend that the settings name, in the order a person would fix
    it."""
    if settings.backend not in {None, "local"}:
        return [_python(), *EmbeddedDeployer(settings).backend.doctor(thorough=thorough)]
    return [
        _python(),
        _cores(),
        *_home(settings.home.expanduser().absolute()),
        _uv(),
        _serving(),
        _optional("mlflow", "tracks runs and models", "local"),
        _optional("tensorflow", "trains in the demo", "tensorflow"),
        *_services(settings),
    ]


def _python() -> Finding:
    return Finding("✓", "Python", f"{platform.python_version()} at {sys.executable}")


def _cores() -> Finding:
    machine = this_machine()
    installed = os.cpu_count() or machine.cores
    limited = "" if machine.cores == installed else f" of {installed} (limited by affinity or cgroup)"
    return Finding("✓", "machine", f"{machine.cores} cores{limited}, {format_bytes(machine.memory_bytes)} of memory")


def _home(home: Path) -> list[Finding]:
    existing = next(folder for folder in [home, *home.parents] if folder.exists())
    if not os.access(existing, os.W_OK):
        return [Finding("✗", "home folder", f"{home} cannot be written", "export SCANFLOW_HOME=a/folder/of/yours")]
    free = shutil.disk_usage(existing).free
    enough = free >= LEAST_DISK_BYTES
    return [
        Finding("✓", "home folder", str(home) + ("" if home.exists() else " (made by the first run)")),
        Finding("✓" if enough else "✗", "disk", f"{format_bytes(free)} free", "" if enough else "free at least 2 GiB"),
    ]


def _uv() -> Finding:
    found = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
    if found:
        return Finding("✓", "uv", f"makes the environments of steps with requirements ({found})")
    return Finding("–", "uv", "not installed; steps with requirements need it", "pip install 'scanflow[local]'")


def _serving() -> Finding:
    missing = [name for name in _SERVING if find_spec(name) is None]
    if missing:
        advice = "pip install 'scanflow[serving]'"
        return Finding("–", "serving", f"{', '.join(missing)} not installed; instances of services need it", advice)
    if not hasattr(os, "sched_setaffinity"):
        return Finding("–", "serving", "installed; instances cannot be pinned to cores here", "leave out affinity")
    return Finding("✓", "serving", "installed; instances of services can be pinned to cores")


def _optional(name: str, purpose: str, extra: str) -> Finding:
    if find_spec(name) is None:
        return Finding("–", name, f"not installed; {purpose}", f"pip install 'scanflow[{extra}]'")
    return Finding("✓", name, f"installed; {purpose}")


def _services(settings: Settings) -> Iterable[Finding]:
    """Yield how the deployed services are, if there are any."""
    if (settings.home.expanduser() / "services").is_dir():
        records = EmbeddedDeployer(settings).services()
        ill = [one for one in records if one.state in {"failed", "degraded"}]
        yield from (Finding("✗", "service", f"{one.name} is {one.state}", f"scanflow logs {one.name}") for one in ill)
        yield Finding("✓", "services", f"{len(records) - len(ill)} of {len(records)} are well")
