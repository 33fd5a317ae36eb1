"""Where files lie in MLflow's artifact stores, and how they come back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scanflow.errors import NotFoundError
from scanflow.knowledge import not_found

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run
    from mlflow.store.artifact.artifact_repo import ArtifactRepository


@dataclass(frozen=True, slots=True)
class Found:
    """Something among a run's artifacts: a folder, a file in one, or a model that MLflow keeps beside its runs."""

    folder: str
    """Its address, or that of the folder that holds it."""

    file: str | None = None
    """Its name in the folder, if it is a file."""

    model_id: str | None = None


def find_artifact(client: MlflowClient, run: Run, path: str, registry_uri: str) -> Found:
    """Return where ``path`` of a run lies.

    ``mlflow.<flavor>.log_model(model, name=...)`` puts a model not among the run's artifacts but beside them, and
    readers expect to find it under its name all the same.

    Raises:
        NotFoundError: there is nothing of that name.
    """
    # Not client.list_artifacts and not runs:/ addresses: those hide every error, so a store that does not answer looks
    # empty.
    root = _repository(root_of(run), client.tracking_uri, registry_uri)
    if root.list_artifacts(path or None):
        return Found(inside(root_of(run), path))
    if not path:
        raise not_found.unknown_path(run.info.run_id, path, ())
    folder, _, name = path.rpartition("/")
    beside = {Path(entry.path).name for entry in root.list_artifacts(folder or None)}
    if name in beside:
        return Found(inside(root_of(run), folder), file=name)
    model = _logged_model(client, run, path)
    if model is not None:
        return Found(model.artifact_location, model_id=model.model_id)
    raise not_found.unknown_path(run.info.run_id, path, beside)


def download(uri: str, staging: Path, tracking_uri: str, registry_uri: str, *, file: str = "") -> None:
    """Write the files at an address, or one of them, into an empty folder.

    Raises:
        NotFoundError: there are none.
    """
    _repository(uri, tracking_uri, registry_uri).download_artifacts(file, str(staging))
    if not any(staging.iterdir()):
        raise NotFoundError(f"There are no files at {uri!r}. They were never logged, or removed since: look there.")


def root_of(run: Run) -> str:
    """Return the address of a run's artifacts, which a store gives every run."""
    return str(run.info.artifact_uri)


def inside(uri: str, path: str) -> str:
    """Return the address of ``path`` inside ``uri``."""
    from mlflow.utils.uri import append_to_uri_path

    return str(append_to_uri_path(uri, path)) if path else uri


def _repository(uri: str, tracking_uri: str, registry_uri: str) -> ArtifactRepository:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri, tracking_uri=tracking_uri, registry_uri=registry_uri)


def _logged_model(client: MlflowClient, run: Run, name: str) -> LoggedModel | None:
    if "'" in name:
        return None
    token: str | None = None
    while True:
        page = client.search_logged_models([run.info.experiment_id], f"name = '{name}'", page_token=token)
        for model in page:
            if model.source_run_id == run.info.run_id:
                return model
        token = page.token
        if not token:
            return None
