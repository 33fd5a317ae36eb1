"""Locates and downloads files in MLflow's artifact stores."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scanflow.errors import NotFoundError
from scanflow.knowledge.checks import build_unknown_path_error
from scanflow.knowledge.mlflow.experiments import items
from scanflow.knowledge.mlflow.rest_client import Client, is_local, is_served, open_artifact_repository

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run


class ArtifactLocation(NamedTuple):
    """The location of files: a folder's address, or the folder and the name of one file."""

    folder: str
    file: str = ""


def locate_artifact(client: Client, run: Run, path: str) -> ArtifactLocation:
    """Locate ``path`` of a run: among its artifacts or, as ``mlflow.<flavor>.log_model(model, name=...)``
    puts a model, beside them."""
    # Not client.list_artifacts and not runs:/ addresses: those hide every error, so a store that does not answer looks
    # empty.
    root = open_artifact_repository(get_artifact_root(run), client)
    if root.list_artifacts(path or None):
        return ArtifactLocation(append_path(get_artifact_root(run), path))
    if not path:
        raise build_unknown_path_error(run.info.run_id, path, ())
    folder, _, name = path.rpartition("/")
    beside = {Path(entry.path).name for entry in root.list_artifacts(folder or None)}
    if name in beside:
        return ArtifactLocation(append_path(get_artifact_root(run), folder), file=name)
    model = _find_logged_model(client, run, path)
    if model is not None:
        return ArtifactLocation(model.artifact_location)
    raise build_unknown_path_error(run.info.run_id, path, beside)


def download(location: ArtifactLocation, staging: Path, client: Client) -> None:
    open_artifact_repository(location.folder, client).download_artifacts(location.file, str(staging))
    if not any(staging.iterdir()):
        raise NotFoundError(
            f"There are no files at {location.folder!r}. They were never logged, or were removed later."
        )


def get_artifact_root(run: Run) -> str:
    return str(run.info.artifact_uri)


def append_path(uri: str, path: str) -> str:
    if not path:
        return uri
    if is_local(uri) or is_served(uri):
        return f"{uri.rstrip('/')}/{path}"
    from mlflow.utils.uri import append_to_uri_path

    return str(append_to_uri_path(uri, path))


def _find_logged_model(client: Client, run: Run, name: str) -> LoggedModel | None:
    if "'" in name:
        return None
    ask = partial(client.search_logged_models, [run.info.experiment_id], f"name = '{name}'")
    return next((model for model in items(ask) if model.source_run_id == run.info.run_id), None)
