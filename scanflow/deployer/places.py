"""Which backend is used: found by its name, and given what it needs of the rest of scanflow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scanflow.errors import NotFoundError
from scanflow.plugins import load_plugin
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.backends.port import Backend, Models

_EXTRAS = {"kubernetes": "pip install 'scanflow[kubernetes]'"}


def open_backend(settings: Settings) -> Backend:
    """Return the backend that the settings name.

    Raises:
        NotFoundError: it is not installed; the message says which are, and what to install.
    """
    home = settings.home.expanduser().absolute()
    try:
        factory = load_plugin("backends", settings.backend)
    except NotFoundError as error:
        extra = _EXTRAS.get(settings.backend)
        raise NotFoundError(f"{error} Choose one: SCANFLOW_BACKEND.{f' Or: {extra}' if extra else ''}") from error
    backend: Backend = factory(settings, lambda tracker: _models(home, tracker or settings.tracker_uri))
    return backend


def _models(home: Path, uri: str | None) -> Models:
    """Return a tracker's registry; MLflow, where it is not loaded, works in a process of its own beside what serves."""
    if "mlflow" not in sys.modules:
        from scanflow.knowledge.registry_subprocess import RegistrySubprocess

        return RegistrySubprocess(home, uri)
    from scanflow.knowledge import open_knowledge
    from scanflow.knowledge.model_cache import ModelCache

    return ModelCache(home / "models", lambda: open_knowledge(home, uri))
