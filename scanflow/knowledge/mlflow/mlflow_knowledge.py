"""The knowledge base on MLflow: a tracking server, a database, or SQLite in the home folder."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.files.unchanged_reads import UnchangedReads
from scanflow.knowledge.checks import DEFAULT_TEAM, OWNER, RESERVED_PREFIX
from scanflow.knowledge.filters import Clause, matches, to_mlflow
from scanflow.knowledge.knowledge_port import KnowledgeBase, NewRun, SaveKey
from scanflow.knowledge.knowledge_records import LATEST, ModelVersion, RunStatus, SavedVersion, TrackedRun
from scanflow.knowledge.mlflow.artifacts import (
    ArtifactLocation,
    append_path,
    download,
    get_artifact_root,
    locate_artifact,
)
from scanflow.knowledge.mlflow.connection import MlflowConnection, list_refusal_types
from scanflow.knowledge.mlflow.experiments import (
    KIND,
    WRITING,
    find_experiment,
    items,
    iterate_runs,
    make_experiment,
    write_run,
)
from scanflow.knowledge.mlflow.model_sources import check_model_source
from scanflow.knowledge.mlflow.rest_client import Client
from scanflow.knowledge.step_environment import (
    TrackerPlace,
    build_step_environment,
    find_known_environment,
    find_sqlite_path,
    remember,
)
from scanflow.names import format_environment_name
from scanflow.text.times import to_datetime

if TYPE_CHECKING:
    from mlflow.entities import Run

_MISSING = "RESOURCE_DOES_NOT_EXIST"
_MODEL = "model"
_LABEL = f"{RESERVED_PREFIX}label"  # which artifacts: a digest, as a filter cannot carry every name
_NAME = f"{RESERVED_PREFIX}name"
_PARENT = "mlflow.parentRunId"
_MADE_BY = f"{RESERVED_PREFIX}made-by"
"""The tag of a model version with the id of the run that created it; MLflow's own field names the run that stores
it."""

_STATUS: Mapping[str, RunStatus] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "failed"}


class MlflowKnowledge(KnowledgeBase):
    """MLflow as the knowledge base. See :class:`~scanflow.knowledge.knowledge_port.KnowledgeBase` for the contract.

    MLflow is loaded by the first operation that needs it, which takes seconds; ``prepare`` needs it once per
    environment. What agents read again and again is read anew from SQLite only when somebody wrote to it.
    """

    def __init__(
        self,
        place: TrackerPlace,
        *,
        connect_timeout_s: float = 5.0,
        served: bool = False,
        token: str | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``connect_timeout_s`` is how long a tracker may take to answer at all. ``served``: use the server
        of the home's tracker while it runs, instead of loading MLflow. ``token``: of a tracking server."""
        super().__init__(clock=clock)
        self._place = place
        self._connection = MlflowConnection(place, connect_timeout_s=connect_timeout_s, served=served, token=token)
        self._unchanged = UnchangedReads(find_sqlite_path(place.tracking_uri))

    def get_model(self, name: str, version: int | str = LATEST) -> ModelVersion:
        """See the port."""
        return self._unchanged.get(("model", self._team, name, version), partial(super().get_model, name, version))

    def list_model_versions(self, name: str) -> list[ModelVersion]:
        """See the port."""
        return list(self._unchanged.get(("versions", self._team, name), partial(super().list_model_versions, name)))

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
        """See the port. Fast for an environment that was prepared before: MLflow is not loaded."""
        variables = find_known_environment(self._place, app, team)
        if variables is not None:
            return variables
        with self._connection.open("prepare the environment") as client:
            experiment_id = make_experiment(client, self._place.artifact_root, app, team)
        remember(self._place, app=app, team=team, experiment_id=experiment_id)
        return build_step_environment(
            self._place.tracking_uri,
            app=app,
            team=team,
            experiment_id=experiment_id,
            artifact_root=self._place.artifact_root,
        )


@dataclass(frozen=True, slots=True)
class _MlflowStore:
    client: Client
    tracker: TrackerPlace

    def save(self, key: SaveKey, source: Path, now: datetime) -> SavedVersion:
        tags = {KIND: key.kind, _LABEL: _compute_digest(key.name), _NAME: key.name}
        below = key.path if key.kind == "artifacts" else None
        return _to_saved_version(self._write(key.app, key.team, key.name, tags, source, below, now), key)

    def iterate_saves(self, key: SaveKey) -> Iterator[SavedVersion]:
        clause = f" and tags.`{_LABEL}` = '{_compute_digest(key.name)}'"
        return (_to_saved_version(run, key) for run in self._search_records(key.app, key.team, key.kind, clause))

    def list_artifact_names(self, app: str, team: str) -> Iterable[str]:
        return (run.data.tags.get(_NAME, "") for run in self._search_records(app, team, "artifacts"))

    def save_at(self, key: SaveKey, version: str) -> ArtifactLocation:
        root = get_artifact_root(self.client.get_run(version))
        return (
            ArtifactLocation(root, key.path)
            if key.kind == "application"
            else ArtifactLocation(append_path(root, key.path))
        )

    def add_version(self, name: str, source: Path, run_id: str | None, tags: Mapping[str, str], now: datetime) -> int:
        app, team = tags["scanflow.app"], tags["scanflow.team"]
        _ask(partial(self.client.create_registered_model, name, {OWNER: team}), "RESOURCE_ALREADY_EXISTS")
        holder = self._write(app, team, name, {KIND: "model", _NAME: name}, source, _MODEL, now)
        # Where the files are, and not models:/<model id>: MLflow's registry looks that up in whatever tracker the
        # process has set as its global one, which need not be ours.
        address, owned = append_path(get_artifact_root(holder), _MODEL), {**tags, _MADE_BY: run_id or ""}
        return int(self.client.create_model_version(name, address, run_id=holder.info.run_id, tags=owned).version)

    def list_model_names(self, team: str | None = None) -> Iterable[str]:
        # A process killed while it registered may have left a name without a version: not a model yet.
        models = items(partial(self.client.search_registered_models, max_results=200))
        return (
            model.name
            for model in models
            if model.latest_versions and team in {None, self._find_owner(model) or DEFAULT_TEAM}
        )

    def find_model_owner(self, name: str) -> str | None:
        model = _ask(partial(self.client.get_registered_model, name), _MISSING)
        return None if model is None else self._find_owner(model)

    def _find_owner(self, model: Any) -> str | None:
        """Return the team of a registered model as ``team_access.find_owner`` does, which asks the database."""
        if (owner := model.tags.get(OWNER)) is not None:
            return str(owner)
        records = sorted(self._search_versions(model.name), key=lambda record: int(record.version))
        owners = [record.tags[OWNER] for record in records if OWNER in record.tags]
        return next(iter(owners), None) or next(filter(None, map(self._find_run_team, records)), None)

    def _find_run_team(self, record: Any) -> str | None:
        try:
            run = self.client.get_run(record.run_id) if record.run_id else None
            tags = {} if run is None else self.client.get_experiment(run.info.experiment_id).tags
        except list_refusal_types():  # the run was removed
            return None
        return tags.get(OWNER)

    def _search_versions(self, name: str) -> Iterator[Any]:
        # A filter cannot carry every name: where it may not, any character matches, and others are left out here.
        pattern = re.sub(r"['\\]", "_", name)
        matching = f"name = '{name}'" if pattern == name else f"name LIKE '{pattern}'"
        records = items(partial(self.client.search_model_versions, matching, max_results=200))
        return (record for record in records if record.name == name)

    def list_versions(self, name: str) -> list[ModelVersion]:
        if (model := _ask(partial(self.client.get_registered_model, name), _MISSING)) is None:
            return []
        versions = [
            ModelVersion(
                name=record.name,
                version=int(record.version),
                aliases=tuple(
                    sorted(alias for alias, named in model.aliases.items() if int(named) == int(record.version))
                ),
                tags={key: value for key, value in record.tags.items() if not key.startswith(RESERVED_PREFIX)},
                run_id=record.tags.get(_MADE_BY, record.run_id) or None,
                uri=f"models:/{record.name}/{record.version}",
                created_at=_to_datetime(record.creation_timestamp),
            )
            for record in self._search_versions(name)
        ]
        return sorted(versions, key=lambda version: version.version, reverse=True)

    def set_alias(self, name: str, alias: str, number: int) -> None:
        self.client.set_registered_model_alias(name, alias, str(number))

    def set_tags(self, name: str, number: int, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self.client.set_model_version_tag(name, str(number), key, value)

    def locate_version(self, name: str, number: int) -> ArtifactLocation:
        location = self.client.get_model_version_download_uri(name, str(number))
        model, root = f"The version {number} of the model {name!r}", self.tracker.artifact_root
        return ArtifactLocation(check_model_source(self.client, location, model=model, root=root))

    def log(self, app: str, team: str, run: NewRun) -> str:
        tags = run.tags if run.parent is None else {**run.tags, _PARENT: run.parent}
        experiment_id = make_experiment(self.client, self.tracker.artifact_root, app, team)
        return str(write_run(self.client, experiment_id, replace(run, tags=tags)).info.run_id)

    def run(self, run_id: str) -> TrackedRun | None:
        run = _ask(partial(self.client.get_run, run_id), _MISSING, "INVALID_PARAMETER_VALUE")
        if run is None or run.info.lifecycle_stage != "active" or run.data.tags.keys() & {KIND, WRITING}:
            return None
        return _to_tracked_run(run, self.client.get_experiment(run.info.experiment_id).name)

    def runs(self, app: str, team: str, clauses: tuple[Clause, ...]) -> Iterator[TrackedRun]:
        experiment_id = find_experiment(self.client, app, team)
        # MLflow narrows the search; whether a run matches is decided here, so that it means the same everywhere.
        candidates = () if experiment_id is None else iterate_runs(self.client, experiment_id, to_mlflow(clauses))
        return (
            _to_tracked_run(run, format_environment_name(app, team))
            for run in candidates
            if matches(clauses, tags=run.data.tags, params=run.data.params, metrics=run.data.metrics)
        )

    def run_at(self, run_id: str, path: str) -> ArtifactLocation:
        return locate_artifact(self.client, self.client.get_run(run_id), path)

    def download(self, place: ArtifactLocation, staging: Path) -> None:
        download(place, staging, self.client)

    def _write(
        self, app: str, team: str, name: str, tags: Mapping[str, str], source: Path, below: str | None, now: datetime
    ) -> Run:
        experiment_id = make_experiment(self.client, self.tracker.artifact_root, app, team, records=True)
        new = NewRun(name=name, began=now, ends=lambda: now, tags=tags, source=source)
        return write_run(self.client, experiment_id, new, below=below)

    def _search_records(self, app: str, team: str, kind: str, clause: str = "") -> Iterable[Run]:
        experiment_id = find_experiment(self.client, app, team, records=True)
        return (
            ()
            if experiment_id is None
            else iterate_runs(self.client, experiment_id, f"tags.`{KIND}` = '{kind}'{clause}")
        )


def _ask(request: Callable[[], Any], *refusals: str) -> Any:
    """Return the answer to a request; None: it was refused with one of these codes."""
    try:
        return request()
    except list_refusal_types() as error:
        if error.error_code not in refusals:
            raise
        return None


def _to_saved_version(run: Run, key: SaveKey) -> SavedVersion:
    run_id, at = run.info.run_id, _to_datetime(run.info.start_time)
    return SavedVersion(version=run_id, app=key.app, team=key.team, saved_at=at, uri=f"runs:/{run_id}/{key.path}")


def _to_tracked_run(run: Run, environment: str) -> TrackedRun:
    """Convert a run to our record. MLflow's own tags are kept, except those that are fields."""
    hidden = {_PARENT, "mlflow.runName"}
    return TrackedRun(
        run_id=run.info.run_id,
        environment=environment,
        name=run.info.run_name or run.info.run_id,
        status=_STATUS.get(run.info.status, "running"),
        params=dict(run.data.params),
        metrics={key: value for key, value in run.data.metrics.items() if math.isfinite(value)},
        tags={
            key: value
            for key, value in run.data.tags.items()
            if key not in hidden and not key.startswith(RESERVED_PREFIX)
        },
        parent=run.data.tags.get(_PARENT),
        started_at=_to_datetime(run.info.start_time),
        ended_at=None if run.info.end_time is None else _to_datetime(run.info.end_time),
    )


def _to_datetime(milliseconds: int) -> datetime:
    return to_datetime(milliseconds / 1000)


def _compute_digest(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()
