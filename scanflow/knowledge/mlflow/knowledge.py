"""The knowledge base on MLflow: a tracking server, a database, or SQLite in the home folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scanflow.knowledge.checks import RESERVED
from scanflow.knowledge.filters import Clause, matches, to_mlflow
from scanflow.knowledge.mlflow.artifacts import Found, download, find_artifact, inside, root_of
from scanflow.knowledge.mlflow.connection import MlflowConnection, refusals
from scanflow.knowledge.mlflow.experiments import (
    KIND,
    WRITING,
    find_experiment,
    find_runs,
    items,
    make_experiment,
    write_run,
)
from scanflow.knowledge.mlflow.rest_client import Client
from scanflow.knowledge.port import Kept, KnowledgeBase, NewRun
from scanflow.knowledge.records import LATEST, ModelVersion, RunStatus, SavedVersion, TrackedRun
from scanflow.knowledge.step_environment import TrackerPlace, known_environment, remember, sqlite_path, step_environment
from scanflow.names import environment_name
from scanflow.unchanged_reads import UnchangedReads

if TYPE_CHECKING:
    from mlflow.entities import Run

_MODEL = "model"
_LABEL = f"{RESERVED}label"  # which artifacts: a digest, as a filter cannot carry every name
_NAME = f"{RESERVED}name"
_PARENT = "mlflow.parentRunId"
_MADE_BY = f"{RESERVED}made-by"
"""The tag of a model version with the id of the run that made it; MLflow's own field names the run that holds it."""

_STATUS: Mapping[str, RunStatus] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "failed"}


class MlflowKnowledge(KnowledgeBase):
    """MLflow as the knowledge base. See :class:`~scanflow.knowledge.port.KnowledgeBase` for the contract.

    MLflow is loaded by the first operation that needs it, which takes seconds; ``prepare`` needs it once per
    environment. What agents read again and again is read anew from SQLite only when somebody wrote to it.
    """

    def __init__(
        self,
        place: TrackerPlace,
        *,
        connect_timeout_s: float = 5.0,
        served: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``connect_timeout_s`` is how long a tracker may take to give a sign of life. ``served``: speak to the server
        over the home's tracker, while there is one, in place of loading MLflow."""
        super().__init__(clock=clock)
        self._place = place
        self._connection = MlflowConnection(place, connect_timeout_s=connect_timeout_s, served=served)
        self._unchanged = UnchangedReads(sqlite_path(place.tracking_uri))

    def get_model(self, name: str, version: int | str = LATEST) -> ModelVersion:
        """See the port."""
        return self._unchanged.get(("model", name, version), partial(super().get_model, name, version))

    def list_model_versions(self, name: str) -> list[ModelVersion]:
        """See the port."""
        return list(self._unchanged.get(("versions", name), partial(super().list_model_versions, name)))

    def search_runs(self, app: str, team: str, filter_text: str = "", *, limit: int = 100) -> list[TrackedRun]:
        """See the port."""
        read = partial(super().search_runs, app, team, filter_text, limit=limit)
        key = ("runs", app, team, filter_text, limit)
        return list(self._unchanged.get(key, read))

    @contextmanager
    def _open(self, doing: str, /) -> Generator[_MlflowStore, None, None]:
        with self._connection.open(doing) as client:
            yield _MlflowStore(client, self._place)

    def prepare(self, app: str, team: str) -> dict[str, str]:
        """See the port. Quick for an environment that was prepared before: then MLflow is not even loaded."""
        known = known_environment(self._place, app, team)
        if known is not None:
            return known
        with self._connection.open("prepare the environment") as client:
            experiment_id = make_experiment(client, self._place, app, team)
        remember(self._place, app=app, team=team, experiment_id=experiment_id)
        return step_environment(self._place.tracking_uri, app=app, team=team, experiment_id=experiment_id)


@dataclass(frozen=True, slots=True)
class _MlflowStore:
    client: Client
    tracker: TrackerPlace

    def save(self, kept: Kept, source: Path, now: datetime) -> SavedVersion:
        tags = {KIND: kept.kind, _LABEL: _digest(kept.name), _NAME: kept.name}
        below = kept.path if kept.kind == "artifacts" else None
        return _saved(self._write(kept.app, kept.team, kept.name, tags, source, below, now), kept)

    def saves(self, kept: Kept) -> Iterator[SavedVersion]:
        clause = f" and tags.`{_LABEL}` = '{_digest(kept.name)}'"
        return (_saved(run, kept) for run in self._records(kept.app, kept.team, kept.kind, clause))

    def artifact_names(self, app: str, team: str) -> Iterable[str]:
        return (run.data.tags.get(_NAME, "") for run in self._records(app, team, "artifacts"))

    def save_at(self, kept: Kept, version: str) -> Found:
        root = root_of(self.client.get_run(version))
        return Found(root, kept.path) if kept.kind == "application" else Found(inside(root, kept.path))

    def add_version(self, name: str, source: Path, run_id: str | None, tags: Mapping[str, str], now: datetime) -> int:
        app, team = tags["scanflow.app"], tags["scanflow.team"]
        holder = self._write(app, team, name, {KIND: "model", _NAME: name}, source, _MODEL, now)
        try:
            self.client.create_registered_model(name)
        except refusals() as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        # Where the files are, and not models:/<model id>: MLflow's registry looks that up in whatever tracker the
        # process has set as its global one, which need not be ours.
        address, owned = inside(root_of(holder), _MODEL), {**tags, _MADE_BY: run_id or ""}
        return int(self.client.create_model_version(name, address, run_id=holder.info.run_id, tags=owned).version)

    def model_names(self) -> Iterable[str]:
        # A process killed while it registered may have left a name without a version: not a model yet.
        models = items(partial(self.client.search_registered_models, max_results=200))
        return (model.name for model in models if model.latest_versions)

    def versions(self, name: str) -> list[ModelVersion]:
        try:
            aliases = self.client.get_registered_model(name).aliases
        except refusals() as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return []
            raise
        found = items(partial(self.client.search_model_versions, f"name = '{name}'", max_results=200))
        versions = [
            ModelVersion(
                name=one.name,
                version=int(one.version),
                aliases=tuple(sorted(alias for alias, named in aliases.items() if int(named) == int(one.version))),
                tags={key: value for key, value in one.tags.items() if not key.startswith(RESERVED)},
                run_id=one.tags.get(_MADE_BY, one.run_id) or None,
                uri=f"models:/{one.name}/{one.version}",
                created_at=_time(one.creation_timestamp),
            )
            for one in found
        ]
        return sorted(versions, key=lambda version: version.version, reverse=True)

    def set_alias(self, name: str, alias: str, number: int) -> None:
        self.client.set_registered_model_alias(name, alias, str(number))

    def set_tags(self, name: str, number: int, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self.client.set_model_version_tag(name, str(number), key, value)

    def version_at(self, name: str, number: int) -> Found:
        return Found(self.client.get_model_version_download_uri(name, str(number)))

    def log(self, app: str, team: str, run: NewRun) -> str:
        tags = run.tags if run.parent is None else {**run.tags, _PARENT: run.parent}
        experiment_id = make_experiment(self.client, self.tracker, app, team)
        return str(write_run(self.client, experiment_id, replace(run, tags=tags)).info.run_id)

    def run(self, run_id: str) -> TrackedRun | None:
        try:
            run = self.client.get_run(run_id)
        except refusals() as error:
            if error.error_code in {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}:
                return None
            raise
        if run.info.lifecycle_stage != "active" or run.data.tags.keys() & {KIND, WRITING}:
            return None
        return _tracked(run, self.client.get_experiment(run.info.experiment_id).name)

    def runs(self, app: str, team: str, clauses: tuple[Clause, ...]) -> Iterator[TrackedRun]:
        experiment_id = find_experiment(self.client, app, team)
        # MLflow narrows the search; whether a run matches is decided here, so that it means the same everywhere.
        found = () if experiment_id is None else find_runs(self.client, experiment_id, to_mlflow(clauses))
        return (
            _tracked(run, environment_name(app, team))
            for run in found
            if matches(clauses, tags=run.data.tags, params=run.data.params, metrics=run.data.metrics)
        )

    def run_at(self, run_id: str, path: str) -> Found:
        return find_artifact(self.client, self.client.get_run(run_id), path)

    def download(self, place: Found, staging: Path) -> None:
        download(place, staging, self.client)

    def _write(
        self, app: str, team: str, name: str, tags: Mapping[str, str], source: Path, below: str | None, now: datetime
    ) -> Run:
        experiment_id = make_experiment(self.client, self.tracker, app, team, records=True)
        new = NewRun(name=name, began=now, ends=lambda: now, tags=tags, source=source)
        return write_run(self.client, experiment_id, new, below=below)

    def _records(self, app: str, team: str, kind: str, clause: str = "") -> Iterable[Run]:
        experiment_id = find_experiment(self.client, app, team, records=True)
        return (
            () if experiment_id is None else find_runs(self.client, experiment_id, f"tags.`{KIND}` = '{kind}'{clause}")
        )


def _saved(run: Run, kept: Kept) -> SavedVersion:
    run_id, at = run.info.run_id, _time(run.info.start_time)
    return SavedVersion(version=run_id, app=kept.app, team=kept.team, saved_at=at, uri=f"runs:/{run_id}/{kept.path}")


def _tracked(run: Run, environment: str) -> TrackedRun:
    """Return a run as ours. MLflow's own tags are kept, less those that are fields."""
    hidden = {_PARENT, "mlflow.runName"}
    return TrackedRun(
        run_id=run.info.run_id,
        environment=environment,
        name=run.info.run_name or run.info.run_id,
        status=_STATUS.get(run.info.status, "running"),
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags={key: value for key, value in run.data.tags.items() if key not in hidden and not key.startswith(RESERVED)},
        parent=run.data.tags.get(_PARENT),
        started_at=_time(run.info.start_time),
        ended_at=None if run.info.end_time is None else _time(run.info.end_time),
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _digest(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()
