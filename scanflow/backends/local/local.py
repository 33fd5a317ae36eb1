"""This machine as a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanflow.backends.port import OpenModels, RunBackend
from scanflow.errors import UnsupportedError
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.backends.local.batch.backend import LocalBackend
    from scanflow.backends.local.services.api import LocalServices

LOG_PREDICTIONS = "scanflow.deployer.recording:log_predictions"
"""What takes recorded predictions to the tracker, loaded by name in a process of its own."""


class Local:
    """See :class:`~scanflow.backends.port.Backend`. Everything is below ``settings.home``."""

    def __init__(self, settings: Settings, models: OpenModels) -> None:
        self._settings, self._models = settings, models

    def batch(self) -> LocalBackend:
        from scanflow.backends.local.batch.backend import LocalBackend

        return LocalBackend(self._settings)

    def online(self, tracker: str | None = None) -> LocalServices:
        from scanflow.backends.local.services.api import LocalServices
        from scanflow.backends.shapes import read_shape

        models = self._models(tracker)
        return LocalServices(
            self._settings,
            fetch=models.fetch,
            remember=lambda name, version, shape: models.remember(name, version, shape.model_dump_json()),
            recall=lambda name, version: read_shape(models.recall(name, version)),
            log_predictions=LOG_PREDICTIONS,
        )

    def mpi(self) -> RunBackend:
        raise UnsupportedError("The backend 'local' cannot run MPI jobs.")
