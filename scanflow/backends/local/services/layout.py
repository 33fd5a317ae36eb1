"""Where services keep things below the home folder. Paths only: nothing is read or made here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServiceFolder:
    """One service's folder: ``<home>/services/<name>``."""

    path: Path

    @property
    def desired(self) -> Path:
        """The :class:`~scanflow.backends.local.services.state.desired.DesiredState`."""
        return self.path / "service.json"

    @property
    def lock(self) -> Path:
        """Held while ``service.json`` is changed."""
        return self.path / "service.lock"

    @property
    def supervised(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.path / "supervisor.lock"

    @property
    def shim(self) -> Path:
        """Held by the shim that keeps the supervisor running."""
        return self.path / "shim.lock"

    @property
    def socket(self) -> Path:
        """Whoever connects has the supervisor look again at once."""
        return self.path / "supervisor"

    @property
    def log(self) -> Path:
        """What the supervisor says."""
        return self.path / "supervisor.log"

    @property
    def state(self) -> Path:
        """How things stand, as the supervisor saw them last."""
        return self.path / "state.json"

    @property
    def canary(self) -> Path:
        """Where the counters stood when the analysis of a canary began."""
        return self.path / "canary.json"

    @property
    def counted(self) -> Path:
        """What instances that are gone had counted."""
        return self.path / "metrics.json"

    @property
    def recorded(self) -> Path:
        """Predictions on their way to the tracker."""
        return self.path / "recorded"

    @property
    def recorder(self) -> Path:
        """The attempts of the recorder."""
        return self.path / "recorder"

    @property
    def instances(self) -> Path:
        """A folder for each instance, and in it one for each of its attempts, numbered from 1."""
        return self.path / "instances"

    def attempts(self, instance: str) -> Path:
        """Where the attempts of one instance are."""
        return self.instances / instance


@dataclass(frozen=True, slots=True)
class ServicesHome:
    """The folder of all services of one home."""

    path: Path

    @property
    def lock(self) -> Path:
        """Held while ports and cores are chosen, so that two services do not choose the same."""
        return self.path / "services.lock"

    def service(self, name: str) -> ServiceFolder:
        """The folder of one service."""
        return ServiceFolder(self.path / name)

    def names(self) -> list[str]:
        """Return the services there are, by name."""
        return sorted(found.parent.name for found in self.path.glob("*/service.json"))
