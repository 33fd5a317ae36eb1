"""Where services keep things below the home folder. Paths only: nothing is read or made here."""

from __future__ import annotations

from pathlib import Path


class ServiceFolder:
    """One service's folder: ``<home>/services/<name>``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.desired = path / "service.json"  # state/desired.py
        self.lock = path / "service.lock"  # held while service.json is changed
        self.supervised = path / "supervisor.lock"  # held by the supervisor as long as it lives
        self.shim = path / "shim.lock"  # held by the shim that keeps the supervisor running
        self.socket = path / "supervisor"  # whoever connects has the supervisor look again at once
        self.log = path / "supervisor.log"
        self.state = path / "state.json"  # state/observed.py
        self.canary = path / "canary.json"  # where the counters stood when the analysis of a canary began
        self.counted = path / "metrics.json"  # what instances that are gone had counted
        self.grants = path / "grants.json"  # the cores that its instances hold
        self.recorded = path / "recorded"  # predictions on their way to the tracker
        self.recorder = path / "recorder"  # the attempts of the recorder
        self.instances = path / "instances"  # a folder for each, and in it one for each of its attempts, from 1

    def attempts(self, instance: str) -> Path:
        return self.instances / instance


class ServicesHome:
    """The folder of all services of one home."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "services.lock"  # held while ports and cores are chosen, so that no two choose the same

    def service(self, name: str) -> ServiceFolder:
        return ServiceFolder(self.path / name)

    def names(self) -> list[str]:
        """Return the services there are, by name."""
        return sorted(found.parent.name for found in self.path.glob("*/service.json"))
