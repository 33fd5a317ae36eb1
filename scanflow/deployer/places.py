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


DEFAULT = "local"


def open_backend(settings: Settings, name: str | None = None) -> Backend:
    """Return the backend that the settings name, else the one of that name, else this machine.

    Raises:
        NotFoundError: it is not installed; the message says which are, and what to install.
    """
    home = settings.home.expanduser().absolute()
    chosen = settings.backend or name or DEFAULT
    try:
        factory = load_plugin("backends", chosen)
    except NotFoundError as error:
        extra = _EXTRAS.get(chosen)
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
