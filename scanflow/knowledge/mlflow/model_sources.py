"""Refuses to load models whose files lie outside of the tracker's own artifact store.

A model is code: a version that anybody could register with files of a place of theirs would run there as whoever loads
it. What belongs to the store is known by the location of MLflow's first experiment, which MLflow makes itself.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from scanflow.errors import InvalidError
from scanflow.knowledge.mlflow.rest_client import Client, RestClient, get_local_path, is_local, is_served
from scanflow.settings import Settings

_FIRST_EXPERIMENT = "0"


def check_model_source(client: Client, location: str, *, model: str, root: Path | None = None) -> str:
    """Return the address of a version's files, if they lie in the tracker's store or at a place that a setting names.

    Args:
        client: Of the tracker.
        location: As the registry has it: a folder's address, or ``models:/`` and the id of a logged model.
        model: What the message calls the version.
        root: The folder of the tracker's artifacts, where it is on this machine.

    Raises:
        InvalidError: they lie elsewhere.
    """
    files = _resolve(client, location)
    roots = [*([] if root is None else [root.as_uri()]), *_list_store_locations(client), *_read_setting()]
    is_own = is_served(files) and _has_no_parent(files)
    if not is_own and not any(_is_inside(files, place) for place in roots):
        raise InvalidError(
            f"{model} is not loaded: its files are at {files!r}, which is not in the tracker's own artifact store. "
            "Register it again with MLflow's log_model(..., registered_model_name=...). If you trust that place, name "
            "it: SCANFLOW_MODEL_SOURCES"
        )
    return files


def _resolve(client: Client, location: str) -> str:
    """Follow ``models:/m-…``, where training logged a model that was then registered."""
    name = location.removeprefix("models:/")
    if name == location:
        return location
    if isinstance(client, RestClient):
        return client.get_logged_model_location(name)
    return str(client.get_logged_model(name).artifact_location)


def _list_store_locations(client: Client) -> list[str]:
    from scanflow.knowledge.mlflow.connection import list_refusal_types

    try:
        first = str(client.get_experiment(_FIRST_EXPERIMENT).artifact_location)
    except list_refusal_types():  # somebody removed it for good
        return []
    parent, _, name = first.rstrip("/").rpartition("/")
    return [parent] if name == _FIRST_EXPERIMENT and parent and not is_served(first) else []


def _read_setting() -> list[str]:
    return [place.strip() for place in Settings.from_environment().model_sources.split(",") if place.strip()]


def _is_inside(files: str, place: str) -> bool:
    if is_local(files) and is_local(place):  # a link may lead elsewhere
        return get_local_path(files).resolve().is_relative_to(get_local_path(place).resolve())
    return (files == place or files.startswith(f"{place.rstrip('/')}/")) and _has_no_parent(files)


def _has_no_parent(address: str) -> bool:
    return ".." not in unquote(address).split("/")
