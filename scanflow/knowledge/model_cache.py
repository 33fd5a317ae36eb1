"""Caches versions of registered models in the home folder, and remembers how they were served."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from scanflow.errors import InvalidError, UnavailableError
from scanflow.instance_messages import FoundModel
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow.knowledge.version_tags import describe_rejection
from scanflow.names import describe_wrong_model_address

SHAPE_TAG = "scanflow.shape"
"""The tag of a model version with the shape it was last served with: instances, cores, affinity and threads, as
JSON."""

_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[^/@]+))")


def split_model_uri(uri: str) -> tuple[str, int | str]:
    """Return name, and number or alias, of ``models:/name@alias``, ``models:/name/3`` or ``models:/name/latest``."""
    match = _URI.fullmatch(uri)
    version = match and (match["alias"] or match["version"])
    if match is None or version is None:
        raise InvalidError(f"The model {uri!r} {describe_wrong_model_address(uri)}")
    return match["name"], int(version) if version.isascii() and version.isdecimal() else version


class ModelCache:
    """Models of one registry on this machine's disk.

    What was fetched once is never changed: a version's files cannot change in the registry either. Several processes
    may fetch the same version at the same time.
    """

    def __init__(self, folder: Path, registry: Callable[[], KnowledgeBase]) -> None:
        self._folder = folder
        self._registry = registry

    def fetch(self, uri: str, team: str | None = None) -> FoundModel:
        """Return the version that ``uri`` refers to now, with its files on this machine's disk. ``team``: if it is this
        team's."""
        name, wanted = split_model_uri(uri)
        version = self._registry().for_team(team).get_model(name, wanted)
        path = self._get_path(version)
        if not path.is_dir():
            self._download(version, path)
        return _build_files(version, str(path))

    def find(self, uri: str, team: str | None = None) -> FoundModel:
        """Return the version that ``uri`` refers to now, without fetching its files. ``team``: if it is this team's."""
        version = self._registry().for_team(team).get_model(*split_model_uri(uri))
        return _build_files(version, "")

    def remember(self, name: str, version: int, shape: str) -> None:
        if self.recall(name, version) != shape:
            self._registry().set_model_tags(name, version, {SHAPE_TAG: shape})

    def recall(self, name: str, version: int) -> str | None:
        return self._registry().get_model(name, version).tags.get(SHAPE_TAG)

    def _get_path(self, version: ModelVersion) -> Path:
        # A home folder outlives a registry that is recreated, and may see several: their first versions are not the
        # same.
        identity = f"{version.name}/{version.version}/{version.created_at.isoformat()}/{version.run_id}"
        return self._folder / version.name / f"{version.version}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"

    def _download(self, version: ModelVersion, path: Path) -> None:
        try:
            self._registry().fetch_model(version.name, path, version=version.version)
        except (InvalidError, UnavailableError):
            if not path.is_dir():  # else another process was quicker
                raise
        if not (path / "MLmodel").is_file():
            raise InvalidError(
                f"The version {version.version} of the model {version.name!r} has no file 'MLmodel', so it cannot be "
                "loaded. Log the model with MLflow, for example with mlflow.sklearn.log_model(...), and register "
                "that."
            )


def _build_files(version: ModelVersion, path: str) -> FoundModel:
    return FoundModel(name=version.name, version=version.version, path=path, rejection=describe_rejection(version.tags))
