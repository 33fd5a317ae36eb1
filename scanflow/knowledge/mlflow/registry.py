"""MLflow's model registry: names, versions and aliases, found and added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scanflow.knowledge import checks, not_found
from scanflow.knowledge.mlflow.convert import to_model_version
from scanflow.knowledge.records import LATEST, ModelVersion

if TYPE_CHECKING:
    from mlflow import MlflowClient


def model_names(client: MlflowClient) -> list[str]:
    """Return the names of all models that have a version, sorted."""
    names: list[str] = []
    token: str | None = None
    while True:
        page = client.search_registered_models(page_token=token, max_results=200)
        # A process killed while it registered may have left a name without a version: not a model yet.
        names += [model.name for model in page if model.latest_versions]
        token = page.token
        if not token:
            return sorted(names)


def model_versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    """Return every version of a model, the highest number first.

    Raises:
        NotFoundError: there is no such model.
    """
    from mlflow.exceptions import MlflowException

    checks.check_model_name(name)
    try:
        aliases = client.get_registered_model(name).aliases
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise not_found.unknown_model(name, model_names(client)) from error
        raise
    found: list[ModelVersion] = []
    token: str | None = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", max_results=200, page_token=token)
        found += [to_model_version(version, aliases) for version in page]
        token = page.token
        if not token:
            break
    if not found:
        raise not_found.unknown_model(name, model_names(client))
    return sorted(found, key=lambda version: version.version, reverse=True)


def pick_version(versions: list[ModelVersion], name: str, version: int | str) -> ModelVersion:
    """Return the version of that number or alias, or the latest.

    Raises:
        NotFoundError: none of them is.
    """
    for known in versions:
        if version == LATEST or version == known.version or version in known.aliases:
            return known
    aliases = [alias for known in versions for alias in known.aliases]
    raise not_found.unknown_version(name, version, [known.version for known in versions], aliases)


def add_version(
    client: MlflowClient, name: str, source: str, run_id: str, tags: Mapping[str, str], *, model_id: str | None = None
) -> ModelVersion:
    """Make the files at ``source`` the next version of a model, which they may be the first of.

    ``source`` is where the files are, and not ``models:/<model id>``: MLflow's registry looks that up in whatever
    tracker the process has set as its global one, which need not be ours.
    """
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    made = client.create_model_version(name, source, run_id=run_id, tags=dict(tags), model_id=model_id)
    return pick_version(model_versions(client, name), name, int(made.version))
