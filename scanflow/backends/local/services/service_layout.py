"""The layout of services' folders below the home. Paths only: nothing is read or created here."""

from __future__ import annotations

from pathlib import Path


class ServiceFolder:
    """One service's folder: ``<home>/services/<name>``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.desired = path / "service.json"  # state/desired.py
        self.lock = path / "service.lock"  # held while service.json is changed
        self.supervised = path / "supervisor.lock"  # held by the supervisor while it runs
        self.shim = path / "shim.lock"  # held by the shim that restarts the supervisor
        self.socket = path / "supervisor"  # a connection wakes the supervisor
        self.log = path / "supervisor.log"
        self.state = path / "state.json"  # state/observed.py
        self.canary = path / "canary.json"  # the counters at the start of a canary analysis
        self.counted = path / "metrics.json"  # the counters of ended instances
        self.grants = path / "grants.json"  # the CPU grants of its instances
        self.recorded = path / "recorded"  # recorded predictions to be uploaded
        self.recorder = path / "recorder"  # the attempts of the recorder
        self.instances = path / "instances"  # a folder for each instance, with one for each of its attempts, from 1

    def get_attempts_folder(self, instance: str) -> Path:
        return self.instances / instance


class ServicesHome:
    """The folder of all services of one home."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "services.lock"  # held while ports and cores are chosen

    def service(self, name: str) -> ServiceFolder:
        return ServiceFolder(self.path / name)

    def list_names(self) -> list[str]:
        """Return the names of all services, sorted."""
        return sorted(file.parent.name for file in self.path.glob("*/service.json"))
