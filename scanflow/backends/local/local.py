"""This machine as a backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING

from scanflow.backends.backend_base import BackendBase
from scanflow.backends.backend_port import OpenModels, RunBackend
from scanflow.backends.local.layout import Home
from scanflow.backends.recorder import LOG_PREDICTIONS
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.backends.local.agent_processes import LocalAgents
    from scanflow.backends.local.batch.backend import LocalBackend
    from scanflow.backends.local.services.api import LocalServices


class Local(BackendBase):
    """See :class:`~scanflow.backends.backend_port.Backend`. Everything is below ``settings.home``."""

    name = "local"

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
        from scanflow.backends.local.agent_processes import LocalAgents
        from scanflow.pki import prepare_tls

        return LocalAgents(
            self._settings.home.expanduser().absolute(), ended=ended, prepare_tls=partial(prepare_tls, self._settings)
        )

    def read_change_marker(self) -> Hashable:
        """Return when the journal and the services' states were last written."""
        journal = str(self._home.journal)
        files = [journal, f"{journal}-wal"]  # texts: streams look often, and paths take four times as long
        with suppress(FileNotFoundError), os.scandir(self._home.path / "services") as folders:  # quicker than a glob
            files += [f"{folder.path}/{name}" for folder in folders for name in ("service.json", "state.json")]
        return tuple(map(_read_write_time, files))

    @cached_property
    def _home(self) -> Home:
        return Home(self._settings.home.expanduser())


def _read_write_time(file: str) -> tuple[int, int] | None:
    try:
        state = os.stat(file)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return None
    return state.st_mtime_ns, state.st_size
