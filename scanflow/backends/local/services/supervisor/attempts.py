"""Attempt folders of instances: their specs, exits and logs.

``instances/<name>/<number>/`` is a shim's attempt folder (:mod:`scanflow.processes.shim`) with the instance's input
(``instance.json``, ``desired.json``) and what a later supervisor needs to adopt it (``template.json``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanflow.app.parameters import select_secrets, select_texts
from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.supervisor.listener import HTTP_FD
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_spec import list_clients
from scanflow.errors import InvalidError
from scanflow.files.private import create_private_folder, write_private
from scanflow.instance_messages import DRAIN_IDLE_S, InstanceSpec, Recording, decode, encode
from scanflow.placement.place import Grant
from scanflow.processes.shims import Exit, Spec, create_attempt_folder

CONFIGURATION = 78  # the exit code of an instance with a configuration error: a restart would not help
KEPT_ATTEMPTS = 3  # attempts of an instance that are retained
LOG_BYTES = 8 * 1024 * 1024  # a larger log is rotated
HEALTHY_S = 60.0  # an instance that ran for so long counts as healthy
MAX_PAUSE_S = 30.0

_DRAIN_EXTRA_S = DRAIN_IDLE_S + 10.0


@dataclass(frozen=True, slots=True)
class Template:
    """The data with which a supervisor adopts an instance."""

    spec_hash: str
    cores: float
    grant: Grant


def create_attempt(
    folder: ServiceFolder,
    desired: DesiredState,
    name: str,
    template: Template,
    path: Path,
    *,
    devices: Mapping[str, str],
) -> Path:
    """Create the folder of an instance's attempt, ready for its shim. ``devices``: what shows it its GPUs."""
    definition = desired.definition
    spec = _build_spec(folder, desired, name, path, template.grant)
    command = Spec(
        argv=(definition.python, *desired.program, str(path)),
        cwd=definition.app_dir,
        env={
            "PYTHONUNBUFFERED": "1",
            "SCANFLOW_APP": definition.app,
            "SCANFLOW_TEAM": definition.team,
            "SCANFLOW_WORKFLOW": definition.workflow,
            "SCANFLOW_INSTANCE": name,
            **select_texts(definition.serving.env),
            **spec.threads,
            **devices,
        },
        grace_s=definition.limits.deadline_s + _DRAIN_EXTRA_S,
    )
    try:
        create_private_folder(path)
        write_private(path / "instance.json", encode(spec))
        write_private(path / "desired.json", encode(definition.desired))
        write_private(path / "template.json", encode(template))
        return create_attempt_folder(path, command)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _build_spec(folder: ServiceFolder, desired: DesiredState, name: str, path: Path, grant: Grant) -> InstanceSpec:
    definition, shape = desired.definition, desired.definition.shape
    recording = None
    if definition.serving.record > 0 and desired.recorder:
        recording = Recording(folder=str(folder.recorded), fraction=definition.serving.record)
    return InstanceSpec(
        service=desired.name,
        app=definition.app,
        team=definition.team,
        instance=name,
        folder=str(path),
        desired=str(path / "desired.json"),
        address=desired.address,
        listen_fd=HTTP_FD,
        grpc_port=desired.grpc_port,
        host=desired.host,
        app_dir=definition.app_dir,
        auth=definition.serving.auth or "",
        tls=definition.tls,
        clients=list_clients(definition.serving),
        secrets=select_secrets(definition.serving.env),
        masked=definition.inherited,
        # Without limits an instance inherits its supervisor's mask.
        cpus=() if shape.affinity == "any" and shape.cores is None else grant.cpus,
        memory_nodes=grant.memory_nodes if shape.affinity in {"cpumem", "cpumempin"} else (),
        pin_threads=shape.affinity == "cpumempin",
        threads=dict(shape.threads),
        cores=shape.cores or grant.cores,
        limits=definition.limits,
        recording=recording,
        aliases=definition.aliases,
    )


def list_attempt_numbers(own: Path) -> list[int]:
    if not own.is_dir():
        return []
    return sorted(int(path.name) for path in own.iterdir() if path.name.isdecimal())


def get_next_attempt_folder(own: Path) -> Path:
    return own / str(max(list_attempt_numbers(own), default=0) + 1)


def list_newest_attempts(folder: ServiceFolder) -> list[tuple[str, Path]]:
    """Return the last attempt of every instance, past ones included, by name."""
    if not folder.instances.is_dir():
        return []
    attempts = [
        (own.name, own / str(numbers[-1]))
        for own in folder.instances.iterdir()
        if (numbers := list_attempt_numbers(own))
    ]
    return sorted(attempts, key=lambda attempt: (len(attempt[0]), attempt[0]))


def read_template(path: Path) -> Template | None:
    try:
        return decode(Template, (path / "template.json").read_bytes())
    except (OSError, InvalidError):
        return None


def read_started(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((path / "started").read_bytes())
    except (OSError, ValueError):
        return None
    return record


def describe_failure(path: Path, exit_: Exit) -> str:
    try:
        reason = str(json.loads((path / "failure.json").read_bytes())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        reason = ""
    if reason:
        return reason
    if exit_.reason == "lost":
        return "its shim was killed"
    if exit_.signal is not None:
        return f"it was killed by signal {exit_.signal}" + (" (SIGKILL)" if exit_.signal == 9 else "")
    if exit_.exit_code == 70:
        return "it reported itself unhealthy: too many of its threads are stuck in a component"
    last = _read_last_line(path / "stderr.log")
    return f"it exited with code {exit_.exit_code}" + (f": {last}" if last else "")


def count_failures_in_a_row(lives_s: Sequence[float]) -> int:
    """Return how many of the last lifetimes, oldest first, were too short to count as healthy."""
    return next((count for count, life in enumerate(reversed(lives_s)) if life >= HEALTHY_S), len(lives_s))


def pause_s(failures: int) -> float:
    """Return the pause before a restart after this many failures in a row: 0, 0, 0.5, 1, 2, 4 … 30 seconds."""
    return 0.0 if failures <= 1 else min(MAX_PAUSE_S, 0.5 * 2.0 ** min(failures - 2, 16))


def prune(own: Path) -> None:
    """Remove the oldest attempts of an instance."""
    for number in list_attempt_numbers(own)[:-KEPT_ATTEMPTS]:
        shutil.rmtree(own / str(number), ignore_errors=True)


def rotate_log(path: Path, *, at_most: int = LOG_BYTES) -> None:
    """Rotate a log that has grown too large: copy it to ``….1``, and truncate it.

    Its writer appends, so it continues at the new end. Lines written between the two steps are lost.
    """
    for name in ("stdout.log", "stderr.log"):
        log = path / name
        try:
            if log.stat().st_size > at_most:
                shutil.copyfile(log, path / f"{name}.1")
                with log.open("r+b") as file:
                    file.truncate(0)
        except OSError:
            continue


def _read_last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 2000))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
