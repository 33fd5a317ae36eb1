"""This machine as a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.backends.port import HostedProgram, Lease, OpenModels, RunBackend
from scanflow.backends.recorder import LOG_PREDICTIONS
from scanflow.errors import UnsupportedError
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.backends.environments import EnvironmentBackend, ObjectChange
    from scanflow.backends.findings import Finding
    from scanflow.backends.local.agents import LocalAgents
    from scanflow.backends.local.batch.backend import LocalBackend
    from scanflow.backends.local.services.api import LocalServices


class Local:
    """See :class:`~scanflow.backends.port.Backend`. Everything is below ``settings.home``."""

    def __init__(self, settings: Settings, models: OpenModels) -> None:
        self._settings, self._models = settings, models

    def batch(self) -> LocalBackend:
        return self._batch

    @cached_property
    def _batch(self) -> LocalBackend:
        """One for all calls: each looks at all pages of the journal once."""
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
        return self.batch()

    def agents(self, *, ended: Callable[[], None]) -> LocalAgents:
        from scanflow.backends.local.agents import LocalAgents
        from scanflow.pki import prepare_tls

        return LocalAgents(
            self._settings.home.expanduser().absolute(), ended=ended, prepare_tls=partial(prepare_tls, self._settings)
        )

    def lease(self, name: str, *, holder: str, duration_s: float) -> Lease:  # noqa: ARG002
        raise UnsupportedError(
            "The backend 'local' has no leases: a home has one server at a time anyway. Unset SCANFLOW_SERVER_LEASE"
        )

    def objects(self, app: Application, workflow: Workflow) -> list[ObjectChange]:  # noqa: ARG002
        return []

    def tracker(self, app: Application) -> None:  # noqa: ARG002
        return None

    def environments(self) -> EnvironmentBackend:
        raise UnsupportedError(
            "The backend 'local' has no environments: a run needs no preparation. Name a cluster: --backend kubernetes"
        )

    def program(
        self,
        command: Sequence[str],  # noqa: ARG002
        environment: Mapping[str, str],  # noqa: ARG002
    ) -> AbstractContextManager[HostedProgram]:
        raise UnsupportedError("The backend 'local' does not host programs: start them on this machine.")

    def doctor(self, *, thorough: bool = False) -> list[Finding]:  # noqa: ARG002
        return []
