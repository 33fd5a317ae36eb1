"""Versions of models, and plain MLflow, for notebooks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow_client.control_client import ControlClient
from scanflow_client.listing import Listing
from scanflow_client.program import resolve_application
from scanflow_client.progress import show_service_changes

if TYPE_CHECKING:
    from scanflow.agent.model_changer import ModelChange
    from scanflow.deployer import Deployer
    from scanflow.knowledge.knowledge_port import KnowledgeBase
    from scanflow.reports.model_history import VersionHistory
    from scanflow.settings import Settings
    from scanflow_client.model_client import ModelClient


class RegistryClient(ControlClient):
    _deployer: Deployer
    _settings: Settings
    _control: ControlClient | None
    """Itself, if it is one of a server."""

    @property
    def url(self) -> str | None:
        """The address of its server. None: it has none, and works inside this process."""
        return None if self._control is None else self._control.server.url

    def _choose_stream(self) -> TextIO | None:
        """Return the stream for progress; None: it is not shown."""
        raise NotImplementedError

    def models(self, name: str | None = None) -> Listing[VersionHistory]:
        """Return the history of the versions of a model, or of all; a notebook shows a table.

        Which is in use and since when, what each was compared on, and the reason of each decision.
        """
        return self._models.list_histories(name)

    def promote_model(self, name: str, version: int, *, why: str = "", services: Sequence[str] = ()) -> ModelChange:
        """Serve a version of a model and name it the champion, as the agents would.

        ``services``: those to change, of the services of the model; none named: the only one. :meth:`reject_model`
        reverts it.
        """
        with show_service_changes(self._choose_stream()) as observe:
            return self._models.promote(name, version, why=why, services=services, observe=observe)

    def reject_model(self, name: str, version: int, *, why: str = "") -> ModelChange:
        """Reject a version; where it is in use, the previous version is served again."""
        with show_service_changes(self._choose_stream()) as observe:
            return self._models.reject(name, version, why=why, observe=observe)

    def use_mlflow(self, app: Application | Workflow | None = None) -> str:
        """Have plain ``import mlflow`` in this process log where steps do, and return the tracker's address.

        It sets ``MLFLOW_TRACKING_URI`` and, where the tracker is behind a server, ``MLFLOW_TRACKING_TOKEN``; with
        ``app`` the experiment, too. Raises UnavailableError if the server has no tracker.
        """
        from scanflow_client.mlflow_variables import build_mlflow_variables

        variables = build_mlflow_variables(
            self._settings, self._control, None if app is None else resolve_application(app)
        )
        os.environ.update(variables)
        return variables["MLFLOW_TRACKING_URI"]

    @cached_property
    def _models(self) -> ModelClient:
        from scanflow_client.model_client import ModelClient

        return ModelClient(self._open_knowledge(), self._deployer, self._control)

    def _open_knowledge(self) -> KnowledgeBase:
        from scanflow_client.model_client import open_server_knowledge

        return open_server_knowledge(self._settings, self._control)
