"""The knowledge base on MLflow: a tracking server, a database, or SQLite in the home folder."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scanflow.app.application import Application
from scanflow.app.files import dump_json, load_json
from scanflow.knowledge import checks, not_found
from scanflow.knowledge.files import arriving, check_source
from scanflow.knowledge.filters import matches, parse_filter, to_mlflow
from scanflow.knowledge.mlflow.artifacts import download, find_artifact, inside, root_of
from scanflow.knowledge.mlflow.connection import MlflowConnection
from scanflow.knowledge.mlflow.convert import MADE_BY, PARENT, to_saved_version, to_tracked_run
from scanflow.knowledge.mlflow.experiments import (
    KIND,
    WRITING,
    NewRun,
    find_experiment,
    find_runs,
    make_experiment,
    write_run,
)
from scanflow.knowledge.mlflow.registry import add_version, model_names, model_versions, pick_version
from scanflow.knowledge.records import LATEST, ModelVersion, SavedVersion, TrackedRun
from scanflow.knowledge.step_environment import TrackerPlace, known_environment, remember, step_environment
from scanflow.names import environment_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_DESCRIPTION = "application.json"
_FILES = "files"
_MODEL = "model"
_LABEL = f"{checks.RESERVED}label"  # which artifacts: a digest, as a filter cannot carry every name
_NAME = f"{checks.RESERVED}name"


class MlflowKnowledge:
    """MLflow as the knowledge base. See :class:`~scanflow.knowledge.port.KnowledgeBase` for the contract.

    MLflow is loaded by the first operation that needs it, which takes seconds; ``prepare`` needs it once per
    environment.
    """

    def __init__(
        self,
        place: TrackerPlace,
        *,
        registry_uri: str | None = None,
        connect_timeout_s: float = 5.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Remember the place; nothing is opened yet.

        ``connect_timeout_s`` is how long a tracker may take to give a sign of life; ``clock`` says what time it is.

        Raises:
            MissingExtraError: MLflow is not installed.
        """
        self._place = place
        self._registry_uri = registry_uri
        self._clock = clock
        self._connection = MlflowConnection(place, registry_uri=registry_uri, connect_timeout_s=connect_timeout_s)

    def prepare(self, app: str, team: str) -> dict[str, str]:
        """See the port. Quick for an environment that was prepared before: then MLflow is not even loaded."""
        known = known_environment(self._place, app, team)
        if known is not None and known["MLFLOW_REGISTRY_URI"] == self._connection.registry_uri:
            return known
        with self._connection.open("prepare the environment") as client:
            experiment_id = make_experiment(client, self._place, app, team)
        remember(self._place, app=app, team=team, experiment_id=experiment_id, registry_uri=self._registry_uri)
        return step_environment(
            self._place, app=app, team=team, experiment_id=experiment_id, registry_uri=self._registry_uri
        )

    def save_application(self, application: Application) -> SavedVersion:
        checks.check_environment(application.name, application.team)
        with tempfile.TemporaryDirectory(prefix="scanflow-") as folder:
            source = Path(folder, _DESCRIPTION)
            source.write_text(dump_json(application), encoding="utf-8")
            return self._save(
                application.name, application.team, source, below=None, kind="application", label=_DESCRIPTION
            )

    def get_application(self, app: str, team: str, *, version: str | None = None) -> Application:
        with (
            self._connection.open("read the application") as client,
            tempfile.TemporaryDirectory(prefix="scanflow-") as folder,
        ):
            saves = list(self._saves(client, app, team, "application", _DESCRIPTION))
            if not saves:
                raise not_found.unknown_application(app, team)
            run = _pick(saves, version, f"Application {app!r} of team {team!r}")
            self._download(root_of(run), Path(folder), file=_DESCRIPTION)
            return load_json(Path(folder, _DESCRIPTION).read_text(encoding="utf-8"))

    def list_application_versions(self, app: str, team: str) -> list[SavedVersion]:
        with self._connection.open("list the application's versions") as client:
            saves = list(self._saves(client, app, team, "application", _DESCRIPTION))
        if not saves:
            raise not_found.unknown_application(app, team)
        return [to_saved_version(run, app, team, _DESCRIPTION) for run in saves]

    def save_artifacts(self, app: str, team: str, name: str, source: Path) -> SavedVersion:
        checks.check_artifact_name(name)
        checks.check_environment(app, team)
        check_source(source)
        return self._save(app, team, source, below=_FILES, kind="artifacts", label=name)

    def fetch_artifacts(self, app: str, team: str, name: str, destination: Path, *, version: str | None = None) -> Path:
        checks.check_artifact_name(name)
        with self._connection.open(f"fetch the artifacts {name!r}") as client:
            saves = list(self._saves(client, app, team, "artifacts", name))
            if not saves:
                names = [run.data.tags.get(_NAME, "") for run in self._saves(client, app, team, "artifacts")]
                raise not_found.unknown_artifacts(app, team, name, names)
            run = _pick(saves, version, f"{name!r} of application {app!r}")
            with arriving(destination) as staging:
                self._download(inside(root_of(run), _FILES), staging)
        return destination

    def register_model(
        self,
        name: str,
        source: Path,
        *,
        app: str,
        team: str,
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> ModelVersion:
        checks.check_model_name(name)
        checks.check_environment(app, team)
        given = checks.check_tags(tags)
        check_source(source)
        with self._connection.open(f"register the model {name!r}") as client:
            if run_id is not None:
                _run(client, run_id)
            experiment_id = make_experiment(client, self._place, app, team, records=True)
            now = self._clock()
            held = NewRun(
                name=name, began=now, ends=lambda: now, tags={KIND: "model", _NAME: name}, source=source, below=_MODEL
            )
            holder = client.get_run(write_run(client, experiment_id, held))
            owned = {**given, "scanflow.app": app, "scanflow.team": team, MADE_BY: run_id or ""}
            return add_version(client, name, inside(root_of(holder), _MODEL), holder.info.run_id, owned)

    def register_logged_model(self, name: str, uri: str, *, tags: Mapping[str, str] | None = None) -> ModelVersion:
        checks.check_model_name(name)
        given = checks.check_tags(tags)
        run_id, path = checks.split_run_uri(uri)
        with self._connection.open(f"register the model {name!r}") as client:
            run = _run(client, run_id)
            found = find_artifact(client, run, path, self._connection.registry_uri)
            not_found.check_model_folder(run_id, path, is_file=found.file is not None)
            owner = client.get_experiment(run.info.experiment_id).tags
            owned = {**given, **{key: owner[key] for key in ("scanflow.app", "scanflow.team") if key in owner}}
            return add_version(client, name, found.folder, run_id, owned, model_id=found.model_id)

    def list_models(self) -> list[str]:
        with self._connection.open("list the models") as client:
            return model_names(client)

    def get_model(self, name: str, version: int | str = LATEST) -> ModelVersion:
        with self._connection.open(f"read the model {name!r}") as client:
            return pick_version(model_versions(client, name), name, version)

    def list_model_versions(self, name: str) -> list[ModelVersion]:
        with self._connection.open(f"list the versions of the model {name!r}") as client:
            return model_versions(client, name)

    def set_model_alias(self, name: str, alias: str, version: int) -> ModelVersion:
        checks.check_alias(alias)
        with self._connection.open(f"set the alias {alias!r} of the model {name!r}") as client:
            number = pick_version(model_versions(client, name), name, version).version
            client.set_registered_model_alias(name, alias, str(number))
            return pick_version(model_versions(client, name), name, number)

    def set_model_tags(self, name: str, version: int, tags: Mapping[str, str]) -> ModelVersion:
        given = checks.check_tags(tags)
        with self._connection.open(f"tag the model {name!r}") as client:
            number = pick_version(model_versions(client, name), name, version).version
            for key, value in given.items():
                client.set_model_version_tag(name, str(number), key, value)
            return pick_version(model_versions(client, name), name, number)

    def fetch_model(self, name: str, destination: Path, *, version: int | str = LATEST) -> Path:
        with self._connection.open(f"fetch the model {name!r}") as client:
            number = pick_version(model_versions(client, name), name, version).version
            with arriving(destination) as staging:
                self._download(client.get_model_version_download_uri(name, str(number)), staging)
        return destination

    def log_run(
        self,
        app: str,
        team: str,
        *,
        name: str | None = None,
        params: Mapping[str, object] | None = None,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
        artifacts: Path | None = None,
        parent: str | None = None,
        status: Literal["finished", "failed"] = "finished",
        started_at: datetime | None = None,
        ended_at: datetime | None = None,
    ) -> TrackedRun:
        environment = checks.check_environment(app, team)
        texts, numbers, given = checks.check_params(params), checks.check_metrics(metrics), checks.check_tags(tags)
        began, _ = checks.check_times(started_at, ended_at, now=self._clock())
        if name is not None:
            checks.check_run_name(name)
        if artifacts is not None:
            check_source(artifacts)
        with self._connection.open("log the run") as client:
            if parent is not None:
                given[PARENT] = _run(client, parent).info.run_id
            new = NewRun(
                name=name,
                began=began,
                ends=lambda: checks.check_times(began, ended_at, now=self._clock())[1],
                status=status.upper(),
                tags=given,
                params=texts,
                metrics=numbers,
                source=artifacts,
            )
            run_id = write_run(client, make_experiment(client, self._place, app, team), new)
            return to_tracked_run(client.get_run(run_id), environment)

    def get_run(self, run_id: str) -> TrackedRun:
        with self._connection.open("read the run") as client:
            run = _run(client, run_id)
            return to_tracked_run(run, client.get_experiment(run.info.experiment_id).name)

    def search_runs(self, app: str, team: str, filter_text: str = "", *, limit: int = 100) -> list[TrackedRun]:
        checks.check_environment(app, team)
        checks.check_limit(limit)
        clauses = parse_filter(filter_text)
        with self._connection.open("search the runs") as client:
            experiment_id = find_experiment(client, app, team)
            if experiment_id is None:
                return []
            # MLflow narrows the search; whether a run matches is decided here, so that it means the same everywhere.
            wanted = (
                run
                for run in find_runs(client, experiment_id, to_mlflow(clauses))
                if matches(clauses, tags=run.data.tags, params=run.data.params, metrics=run.data.metrics)
            )
            return [to_tracked_run(run, environment_name(app, team)) for run in islice(wanted, limit)]

    def fetch_run_artifacts(self, run_id: str, destination: Path, *, path: str = "") -> Path:
        wanted = checks.check_path(path)
        with self._connection.open("fetch the run's artifacts") as client:
            found = find_artifact(client, _run(client, run_id), wanted, self._connection.registry_uri)
            with arriving(destination) as staging:
                self._download(found.folder, staging, file=found.file or "")
        return destination

    def _save(self, app: str, team: str, source: Path, *, below: str | None, kind: str, label: str) -> SavedVersion:
        with self._connection.open(f"save {label!r}") as client:
            experiment_id = make_experiment(client, self._place, app, team, records=True)
            newest = next(self._saves(client, app, team, kind, label), None)
            now = self._clock()
            if newest is not None:  # a clock that was set back must not make this save the older one
                now = max(now, to_saved_version(newest, app, team, "").saved_at + timedelta(milliseconds=1))
            tags = {KIND: kind, _LABEL: _digest(label), _NAME: label}
            new = NewRun(name=label, began=now, ends=lambda: now, tags=tags, source=source, below=below)
            run = client.get_run(write_run(client, experiment_id, new))
            return to_saved_version(run, app, team, below or _DESCRIPTION)

    def _saves(self, client: MlflowClient, app: str, team: str, kind: str, label: str | None = None) -> Iterator[Run]:
        checks.check_environment(app, team)
        experiment_id = find_experiment(client, app, team, records=True)
        if experiment_id is None:
            return iter(())
        labelled = "" if label is None else f" and tags.`{_LABEL}` = '{_digest(label)}'"
        return find_runs(client, experiment_id, f"tags.`{KIND}` = '{kind}'{labelled}")

    def _download(self, uri: str, staging: Path, *, file: str = "") -> None:
        download(uri, staging, self._place.tracking_uri, self._connection.registry_uri, file=file)


def _digest(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()


def _pick(saves: list[Run], version: str | None, what: str) -> Run:
    if version is None:
        return saves[0]
    for run in saves:
        if run.info.run_id == version:
            return run
    raise not_found.unknown_version_of(what, version, [run.info.run_id for run in saves])


def _run(client: MlflowClient, run_id: str) -> Run:
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code in {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}:
            raise not_found.unknown_run(run_id) from error
        raise
    if run.info.lifecycle_stage != "active" or run.data.tags.keys() & {KIND, WRITING}:
        raise not_found.unknown_run(run_id)
    return run
