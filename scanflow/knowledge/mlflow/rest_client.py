"""MLflow's client, as far as the knowledge base needs it, over the REST API, without importing MLflow.

To load MLflow takes a process a second of CPU and 90 to 150 MiB, in each of an application's agents anew. The server
that ``scanflow up`` starts has it loaded already. Methods and what they return are named as ``mlflow.MlflowClient``
names them, so :mod:`scanflow.knowledge.mlflow` works with either. Artifacts are files of this machine where that server
is asked by its socket, and are streamed (``mlflow-artifacts:``) where it is asked through Scanflow's server.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from scanflow.errors import InvalidError
from scanflow.transport.mlflow_api import MlflowApi, MlflowApiError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

Client: TypeAlias = "MlflowClient | RestClient"
"""MLflow's own client, or ours."""


@dataclass(frozen=True)
class Metric:
    key: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Param:
    key: str
    value: str


class Page(list[Any]):
    """A page of a listing."""

    token: str | None
    """The token of the next page; None: this is the last page."""


class RestClient:
    """Thread-safe. Every method may raise a ``MlflowApiError`` or an ``UnavailableError``."""

    def __init__(
        self, url: str, *, token: str | None = None, socket: Path | None = None, api: MlflowApi | None = None
    ) -> None:
        """``token``: for the server at ``url``. ``socket``: the server's, in place of an address. ``api``: used in
        place of both."""
        self.tracking_uri = url
        self._api = api or MlflowApi("http://localhost" if socket else url, token=token, socket=socket)

    # -- experiments

    def get_experiment(self, experiment_id: str) -> Any:
        return _to_experiment(self._api.get("/experiments/get", {"experiment_id": experiment_id})["experiment"])

    def get_experiment_by_name(self, name: str) -> Any:
        try:
            return _to_experiment(self._api.get("/experiments/get-by-name", {"experiment_name": name})["experiment"])
        except MlflowApiError as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def create_experiment(self, name: str, location: str | None, tags: Mapping[str, str]) -> str:
        body = {"name": name, "artifact_location": location, "tags": _to_pairs(tags)}
        return str(self._api.post("/experiments/create", body)["experiment_id"])

    def set_experiment_tag(self, experiment_id: str, key: str, value: str) -> None:
        body = {"experiment_id": experiment_id, "key": key, "value": value}
        self._api.post("/experiments/set-experiment-tag", body)

    # -- runs

    def get_run(self, run_id: str) -> Any:
        return _to_run(self._api.get("/runs/get", {"run_id": run_id})["run"])

    def search_runs(
        self,
        experiment_ids: Sequence[str],
        filter_string: str,
        *,
        max_results: int,
        order_by: Sequence[str],
        page_token: str | None,
    ) -> Page:
        body = {"experiment_ids": experiment_ids, "filter": filter_string, "order_by": order_by}
        response = self._api.post("/runs/search", {**body, "max_results": max_results, "page_token": page_token})
        return _to_page(response, "runs", _to_run)

    def create_run(self, experiment_id: str, *, start_time: int, tags: Mapping[str, str], run_name: str | None) -> Any:
        body = {"experiment_id": experiment_id, "start_time": start_time, "tags": _to_pairs(tags), "run_name": run_name}
        return _to_run(self._api.post("/runs/create", body)["run"])

    def log_batch(self, run_id: str, *, params: Sequence[Param] = (), metrics: Sequence[Metric] = ()) -> None:
        body = {"params": [vars(entity) for entity in params], "metrics": [vars(entity) for entity in metrics]}
        self._api.post("/runs/log-batch", {"run_id": run_id, **body})

    def set_terminated(self, run_id: str, status: str, end_time: int) -> None:
        self._api.post("/runs/update", {"run_id": run_id, "status": status, "end_time": end_time})

    def delete_tag(self, run_id: str, key: str) -> None:
        self._api.post("/runs/delete-tag", {"run_id": run_id, "key": key})

    def delete_run(self, run_id: str) -> None:
        self._api.post("/runs/delete", {"run_id": run_id})

    def log_artifact(self, run_id: str, local_path: str, artifact_path: str | None) -> None:
        self._open_artifacts(run_id).log_artifact(local_path, artifact_path)

    def log_artifacts(self, run_id: str, local_dir: str, artifact_path: str | None) -> None:
        self._open_artifacts(run_id).log_artifacts(local_dir, artifact_path)

    def open_served_files(self, uri: str) -> ServedFiles:
        """Return the files at a ``mlflow-artifacts:`` address of this server."""
        return ServedFiles(self._api, uri)

    def _open_artifacts(self, run_id: str) -> ArtifactRepository | LocalFiles | ServedFiles:
        return open_artifact_repository(self.get_run(run_id).info.artifact_uri, self)

    def search_logged_models(
        self, experiment_ids: Sequence[str], filter_string: str, *, page_token: str | None
    ) -> Page:
        body = {"experiment_ids": experiment_ids, "filter": filter_string, "page_token": page_token}
        return _to_page(self._api.post("/logged-models/search", body), "models", _to_logged_model)

    # -- registered models

    def create_registered_model(self, name: str, tags: Mapping[str, str]) -> None:
        self._api.post("/registered-models/create", {"name": name, "tags": _to_pairs(tags)})

    def get_registered_model(self, name: str) -> Any:
        return _to_registered_model(self._api.get("/registered-models/get", {"name": name})["registered_model"])

    def search_registered_models(self, *, max_results: int, page_token: str | None) -> Page:
        query = {"max_results": max_results, "page_token": page_token}
        return _to_page(self._api.get("/registered-models/search", query), "registered_models", _to_registered_model)

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self._api.post("/registered-models/alias", {"name": name, "alias": alias, "version": version})

    def create_model_version(self, name: str, source: str, *, run_id: str, tags: Mapping[str, str]) -> Any:
        body = {"name": name, "source": source, "run_id": run_id, "tags": _to_pairs(tags)}
        return _to_version(self._api.post("/model-versions/create", body)["model_version"])

    def search_model_versions(self, filter_string: str, *, max_results: int, page_token: str | None) -> Page:
        query: dict[str, str | int | None] = {"filter": filter_string, "max_results": max_results}
        query["page_token"] = page_token
        return _to_page(self._api.get("/model-versions/search", query), "model_versions", _to_version)

    def set_model_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        self._api.post("/model-versions/set-tag", {"name": name, "version": version, "key": key, "value": value})

    def get_model_version_download_uri(self, name: str, version: str) -> str:
        query = {"name": name, "version": version}
        address = str(self._api.get("/model-versions/get-download-uri", query)["artifact_uri"])
        model = address.removeprefix("models:/")  # as training logs one, kept beside its run
        return address if model == address else self.get_logged_model_location(model)

    def get_logged_model_location(self, model_id: str) -> str:
        return str(self._api.get(f"/logged-models/{model_id}", {})["model"]["info"]["artifact_uri"])


class LocalFiles:
    """Artifacts in a folder of this machine, with the interface of MLflow's ``ArtifactRepository``."""

    def __init__(self, uri: str) -> None:
        self.root = get_local_path(uri)

    def log_artifact(self, local_path: str, artifact_path: str | None) -> None:
        shutil.copy(local_path, _make_folder(self.root, artifact_path))

    def log_artifacts(self, local_dir: str, artifact_path: str | None) -> None:
        shutil.copytree(local_dir, _make_folder(self.root, artifact_path), dirs_exist_ok=True)

    def list_artifacts(self, path: str | None) -> list[Any]:
        folder = self.root if path is None else self.root / path
        if not folder.is_dir():  # as MLflow has it, a file holds nothing
            return []
        below = sorted(folder.iterdir())
        return [SimpleNamespace(path=entry.relative_to(self.root).as_posix(), is_dir=entry.is_dir()) for entry in below]

    def download_artifacts(self, path: str, destination: str) -> None:
        """Copy a file, or the content of a folder, below ``destination``; missing files are skipped."""
        source = self.root / path
        if source.is_dir():
            shutil.copytree(source, Path(destination, path), dirs_exist_ok=True)
        elif source.is_file():
            shutil.copy(source, _make_folder(Path(destination), str(PurePosixPath(path).parent)))


class ServedFiles:
    """Artifacts that an MLflow server streams, with the same interface."""

    def __init__(self, api: MlflowApi, uri: str) -> None:
        self._api, self._root = api, PurePosixPath(unquote(urlsplit(uri).path).strip("/"))

    def log_artifact(self, local_path: str, artifact_path: str | None) -> None:
        file = Path(local_path)
        self._api.upload_artifact(str(self._root / (artifact_path or "") / file.name), file)

    def log_artifacts(self, local_dir: str, artifact_path: str | None) -> None:
        for file in sorted(path for path in Path(local_dir).rglob("*") if path.is_file()):
            below = file.relative_to(local_dir).as_posix()
            self._api.upload_artifact(str(self._root / (artifact_path or "") / below), file)

    def list_artifacts(self, path: str | None) -> list[Any]:
        folder = self._root / (path or "")
        entries = self._api.list_artifacts(str(folder))
        return [
            SimpleNamespace(path=str(PurePosixPath(path or "") / entry["path"]), is_dir=bool(entry.get("is_dir")))
            for entry in sorted(entries, key=lambda entry: str(entry["path"]))
        ]

    def download_artifacts(self, path: str, destination: str) -> None:
        """Write a file, or the content of a folder, below ``destination``; missing files are skipped."""
        if entries := self.list_artifacts(path):
            for entry in entries:
                if entry.is_dir:
                    self.download_artifacts(entry.path, destination)
                else:
                    self._download_file(entry.path, destination)
        elif path:
            with _suppress_missing():
                self._download_file(path, destination)

    def _download_file(self, path: str, destination: str) -> None:
        parent = PurePosixPath(path).parent
        if PurePosixPath(path).is_absolute() or ".." in parent.parts:
            raise InvalidError(f"The tracker names an artifact {path!r}, which is not below its folder.")
        file = _make_folder(Path(destination), str(parent)) / PurePosixPath(path).name
        self._api.download_artifact(str(self._root / path), file)


@contextmanager
def _suppress_missing() -> Iterator[None]:
    try:
        yield
    except MlflowApiError as error:
        if error.error_code not in {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"}:
            raise


def open_artifact_repository(uri: str, client: Client) -> ArtifactRepository | LocalFiles | ServedFiles:
    """Return the files at an address; MLflow is loaded for files that neither are on this machine nor are streamed."""
    if isinstance(client, RestClient) and is_local(uri):
        return LocalFiles(uri)
    if isinstance(client, RestClient) and is_served(uri):
        return client.open_served_files(uri)
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri, tracking_uri=client.tracking_uri, registry_uri=client.tracking_uri)


def is_local(uri: str) -> bool:
    return urlsplit(uri).scheme in {"", "file"}


def is_served(uri: str) -> bool:
    """Return whether an address is one of files that the tracker's own server streams."""
    names_host = uri.startswith("mlflow-artifacts://") and not uri.startswith("mlflow-artifacts:///")
    return uri.startswith("mlflow-artifacts:/") and not names_host


def get_local_path(uri: str) -> Path:
    """Return the folder that a ``file:`` address, or a plain path, names."""
    parts = urlsplit(uri)
    return Path(url2pathname(parts.path) if parts.scheme else uri)


def _make_folder(root: Path, path: str | None) -> Path:
    folder = root / path if path else root
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _to_page(response: Mapping[str, Any], name: str, convert: Callable[[Mapping[str, Any]], SimpleNamespace]) -> Page:
    page = Page(convert(entry) for entry in response.get(name, ()))
    page.token = response.get("next_page_token") or None
    return page


def _to_pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


def _from_pairs(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: pair.get("value", "") for pair in pairs}


def _to_experiment(fields: Mapping[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**{**fields, "tags": _from_pairs(fields.get("tags", ()))})


def _to_run(fields: Mapping[str, Any]) -> SimpleNamespace:
    info, data = fields["info"], fields.get("data", {})
    times = {"start_time": int(info["start_time"]), "end_time": int(info["end_time"]) if "end_time" in info else None}
    metrics = {key: float(value) for key, value in _from_pairs(data.get("metrics", ())).items()}
    return SimpleNamespace(
        info=SimpleNamespace(**{"run_name": None, **info, **times}),
        data=SimpleNamespace(
            metrics=metrics, params=_from_pairs(data.get("params", ())), tags=_from_pairs(data.get("tags", ()))
        ),
    )


def _to_registered_model(fields: Mapping[str, Any]) -> SimpleNamespace:
    aliases = {alias["alias"]: alias["version"] for alias in fields.get("aliases", ())}
    tags = _from_pairs(fields.get("tags", ()))
    return SimpleNamespace(
        name=fields["name"], latest_versions=fields.get("latest_versions", ()), aliases=aliases, tags=tags
    )


def _to_logged_model(fields: Mapping[str, Any]) -> SimpleNamespace:
    info = fields["info"]
    return SimpleNamespace(source_run_id=info.get("source_run_id"), artifact_location=info["artifact_uri"])


def _to_version(fields: Mapping[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(
        name=fields["name"],
        version=fields["version"],
        run_id=fields.get("run_id"),
        creation_timestamp=int(fields["creation_timestamp"]),
        tags=_from_pairs(fields.get("tags", ())),
    )
