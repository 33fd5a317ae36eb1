"""A knowledge base in this process' memory: for tests, and to read what the port's contract comes down to."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from scanflow.app.application import Application
from scanflow.knowledge import checks, not_found
from scanflow.knowledge.files import arriving, check_source
from scanflow.knowledge.filters import matches, parse_filter
from scanflow.knowledge.records import LATEST, ModelVersion, SavedVersion, TrackedRun

Files = Mapping[str, bytes]
Kept = TypeVar("Kept")


@dataclass(kw_only=True, slots=True)
class _Model:
    versions: list[ModelVersion] = field(default_factory=list)
    files: list[Files] = field(default_factory=list)
    aliases: dict[str, int] = field(default_factory=dict)


class MemoryKnowledge:
    """Keeps everything until the process ends. See :class:`~scanflow.knowledge.port.KnowledgeBase` for the contract."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Start empty; ``clock`` says what time it is."""
        self._clock = clock
        self._lock = threading.RLock()
        self._ids = itertools.count(1)
        self._owners: dict[str, tuple[str, str]] = {}
        self._applications: dict[str, list[tuple[SavedVersion, Application]]] = {}
        self._artifacts: dict[tuple[str, str], list[tuple[SavedVersion, Files]]] = {}
        self._models: dict[str, _Model] = {}
        self._runs: dict[str, tuple[TrackedRun, Files]] = {}

    def prepare(self, app: str, team: str) -> dict[str, str]:
        """Return no variables: no other process can log to this one's memory."""
        with self._lock:
            self._own(app, team)
        return {}

    def save_application(self, application: Application) -> SavedVersion:
        with self._lock:
            environment = self._own(application.name, application.team)
            saved = self._saved(application.name, application.team, "application.json")
            self._applications.setdefault(environment, []).append((saved, application))
            return saved

    def get_application(self, app: str, team: str, *, version: str | None = None) -> Application:
        with self._lock:
            saves = self._saves(app, team)
            if not saves:
                raise not_found.unknown_application(app, team)
            return _pick(saves, version, f"Application {app!r} of team {team!r}")

    def list_application_versions(self, app: str, team: str) -> list[SavedVersion]:
        with self._lock:
            saves = self._saves(app, team)
            if not saves:
                raise not_found.unknown_application(app, team)
            return [saved for saved, _ in reversed(saves)]

    def save_artifacts(self, app: str, team: str, name: str, source: Path) -> SavedVersion:
        checks.check_artifact_name(name)
        checks.check_environment(app, team)
        files = _load(source)
        with self._lock:
            environment = self._own(app, team)
            saved = self._saved(app, team, "files")
            self._artifacts.setdefault((environment, name), []).append((saved, files))
            return saved

    def fetch_artifacts(self, app: str, team: str, name: str, destination: Path, *, version: str | None = None) -> Path:
        environment = checks.check_environment(app, team)
        with self._lock:
            saves = self._artifacts.get((environment, checks.check_artifact_name(name)), [])
            if not saves or self._owners[environment] != (app, team):
                raise not_found.unknown_artifacts(
                    app, team, name, (kept for own, kept in self._artifacts if own == environment)
                )
            files = _pick(saves, version, f"{name!r} of application {app!r}")
        return _store(files, destination)

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
        owned = {**checks.check_tags(tags), "scanflow.app": app, "scanflow.team": team}
        files = _load(source)
        with self._lock:
            self._own(app, team)
            if run_id is not None:
                self.get_run(run_id)
            return self._add_version(name, files, run_id, owned)

    def register_logged_model(self, name: str, uri: str, *, tags: Mapping[str, str] | None = None) -> ModelVersion:
        checks.check_model_name(name)
        given = checks.check_tags(tags)
        run_id, path = checks.split_run_uri(uri)
        with self._lock:
            run = self.get_run(run_id)
            app, team = self._owners[run.environment]
            not_found.check_model_folder(run_id, path, is_file=path in self._runs[run_id][1])
            files = self._run_files(run_id, path)
            return self._add_version(name, files, run_id, {**given, "scanflow.app": app, "scanflow.team": team})

    def list_models(self) -> list[str]:
        with self._lock:
            return sorted(self._models)

    def get_model(self, name: str, version: int | str = LATEST) -> ModelVersion:
        with self._lock:
            model = self._model(name)
            return self._shown(model, self._number(name, model, version))

    def list_model_versions(self, name: str) -> list[ModelVersion]:
        with self._lock:
            model = self._model(name)
            return [self._shown(model, number) for number in range(len(model.versions), 0, -1)]

    def set_model_alias(self, name: str, alias: str, version: int) -> ModelVersion:
        checks.check_alias(alias)
        with self._lock:
            model = self._model(name)
            model.aliases[alias] = self._number(name, model, version)
            return self._shown(model, version)

    def set_model_tags(self, name: str, version: int, tags: Mapping[str, str]) -> ModelVersion:
        given = checks.check_tags(tags)
        with self._lock:
            model = self._model(name)
            index = self._number(name, model, version) - 1
            kept = model.versions[index]
            model.versions[index] = kept.replace(tags={**kept.tags, **given})
            return self._shown(model, version)

    def fetch_model(self, name: str, destination: Path, *, version: int | str = LATEST) -> Path:
        with self._lock:
            model = self._model(name)
            files = model.files[self._number(name, model, version) - 1]
        return _store(files, destination)

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
        checks.check_environment(app, team)
        texts, numbers, given = checks.check_params(params), checks.check_metrics(metrics), checks.check_tags(tags)
        begun, _ = checks.check_times(started_at, ended_at, now=self._clock())
        if name is not None:
            checks.check_run_name(name)
        files = {} if artifacts is None else _load(artifacts)
        with self._lock:
            if parent is not None:
                self.get_run(parent)
            environment = self._own(app, team)
            _, ended = checks.check_times(begun, ended_at, now=self._clock())  # where it is found from now on
            run_id = f"r{next(self._ids)}"
            run = TrackedRun(
                run_id=run_id,
                environment=environment,
                name=name or run_id,
                status=status,
                params=texts,
                metrics=numbers,
                tags=given,
                parent=parent,
                started_at=begun,
                ended_at=ended,
            )
            self._runs[run_id] = (run, files)
            return run

    def get_run(self, run_id: str) -> TrackedRun:
        with self._lock:
            if run_id not in self._runs:
                raise not_found.unknown_run(run_id)
            return self._runs[run_id][0]

    def search_runs(self, app: str, team: str, filter_text: str = "", *, limit: int = 100) -> list[TrackedRun]:
        environment = checks.check_environment(app, team)
        clauses = parse_filter(filter_text)
        with self._lock:
            # Last in, first out; the sort by time is stable, so runs begun at the same instant keep that order.
            ours = self._owners.get(environment) == (app, team)
            runs = [run for run, _ in reversed(self._runs.values()) if ours and run.environment == environment]
        found = [run for run in runs if matches(clauses, tags=run.tags, params=run.params, metrics=run.metrics)]
        return sorted(found, key=lambda run: run.started_at, reverse=True)[: checks.check_limit(limit)]

    def fetch_run_artifacts(self, run_id: str, destination: Path, *, path: str = "") -> Path:
        with self._lock:
            self.get_run(run_id)
            files = self._run_files(run_id, checks.check_path(path))
        return _store(files, destination)

    def _own(self, app: str, team: str) -> str:
        environment = checks.check_environment(app, team)
        not_found.check_owner(environment, self._owners.setdefault(environment, (app, team)), (app, team))
        return environment

    def _saves(self, app: str, team: str) -> list[tuple[SavedVersion, Application]]:
        environment = checks.check_environment(app, team)
        return self._applications.get(environment, []) if self._owners.get(environment) == (app, team) else []

    def _saved(self, app: str, team: str, path: str) -> SavedVersion:
        version = f"v{next(self._ids)}"
        return SavedVersion(version=version, app=app, team=team, saved_at=self._clock(), uri=f"runs:/{version}/{path}")

    def _model(self, name: str) -> _Model:
        if name not in self._models:
            raise not_found.unknown_model(name, self._models)
        return self._models[name]

    def _number(self, name: str, model: _Model, version: int | str) -> int:
        number = model.aliases.get(version) if isinstance(version, str) else version
        number = len(model.versions) if version == LATEST else number
        if number is None or not 1 <= number <= len(model.versions):
            raise not_found.unknown_version(name, version, range(1, len(model.versions) + 1), model.aliases)
        return number

    def _shown(self, model: _Model, number: int) -> ModelVersion:
        aliases = sorted(alias for alias, named in model.aliases.items() if named == number)
        return model.versions[number - 1].replace(aliases=tuple(aliases))

    def _add_version(self, name: str, files: Files, run_id: str | None, tags: Mapping[str, str]) -> ModelVersion:
        model = self._models.setdefault(name, _Model())
        number = len(model.versions) + 1
        made = ModelVersion(
            name=name,
            version=number,
            tags=tags,
            run_id=run_id,
            uri=f"models:/{name}/{number}",
            created_at=self._clock(),
        )
        model.versions.append(made)
        model.files.append(files)
        return made

    def _run_files(self, run_id: str, path: str) -> Files:
        files = self._runs[run_id][1]
        if path in files:
            return {path.rpartition("/")[2]: files[path]}
        inside = {
            name.removeprefix(f"{path}/"): data
            for name, data in files.items()
            if not path or name.startswith(f"{path}/")
        }
        if not inside:
            raise not_found.unknown_path(run_id, path, {name.partition("/")[0] for name in files})
        return inside


def _pick(saves: list[tuple[SavedVersion, Kept]], version: str | None, what: str) -> Kept:
    if version is None:
        return saves[-1][1]
    for saved, kept in saves:
        if saved.version == version:
            return kept
    raise not_found.unknown_version_of(what, version, [saved.version for saved, _ in saves])


def _load(source: Path) -> Files:
    return {name: path.read_bytes() for name, path in check_source(source).items()}


def _store(files: Files, destination: Path) -> Path:
    with arriving(destination) as staging:
        for name, data in files.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_bytes(data)
    return destination
