"""The port of the knowledge base: records of applications, runs and models.

:class:`KnowledgeBase` validates arguments, once for all stores. :class:`KnowledgeStore` is what an adapter implements:
:mod:`scanflow.knowledge.mlflow` (a server, a database, or SQLite in the home folder) and
:mod:`scanflow.knowledge.memory` (tests). ``scanflow.testing.knowledge`` holds the suite that every adapter passes.
"""

from __future__ import annotations

import copy
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

from scanflow.app.application import Application
from scanflow.app.application_files import dump_json, load_json
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.knowledge import checks
from scanflow.knowledge.filters import Clause, parse_filter
from scanflow.knowledge.knowledge_records import LATEST, ModelVersion, SavedVersion, TrackedRun
from scanflow.knowledge.tracked_files import check_source, stage_destination

Place = TypeVar("Place")

APPLICATION_FILE = "application.json"
"""The file of a saved application."""


@dataclass(frozen=True, slots=True)
class SaveKey:
    """Identifies a save of an application: its description, or artifacts of a name."""

    app: str
    team: str
    kind: Literal["application", "artifacts"] = "application"
    name: str = APPLICATION_FILE

    @property
    def path(self) -> str:
        """The path of its files in a save: a file, or a folder."""
        return APPLICATION_FILE if self.kind == "application" else "files"

    def __str__(self) -> str:
        if self.kind == "application":
            return f"Application {self.app!r} of team {self.team!r}"
        return f"{self.name!r} of application {self.app!r}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """The contents of a new run."""

    name: str | None
    began: datetime
    ends: Callable[[], datetime]
    """Returns the run's end time. It is called once the run is written, so that a search by end time, up to a
    second ago, finds every run."""

    status: Literal["finished", "failed"] = "finished"
    tags: Mapping[str, str]
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    source: Path | None = None
    """A file or folder with its artifacts."""

    parent: str | None = None


class KnowledgeStore(Protocol[Place]):
    """The storage of records, opened for one operation. Its arguments were validated before.

    A ``Place`` says where files are; it is good as long as the store is open.
    """

    def save(self, key: SaveKey, source: Path, now: datetime) -> SavedVersion: ...

    def iterate_saves(self, key: SaveKey) -> Iterator[SavedVersion]:
        """Return the saves, newest first; none if the environment belongs to another application."""
        ...

    def list_artifact_names(self, app: str, team: str) -> Iterable[str]: ...

    def save_at(self, key: SaveKey, version: str) -> Place: ...

    def add_version(self, name: str, source: Path, run_id: str | None, tags: Mapping[str, str], now: datetime) -> int:
        """Make the files the next (or first) version of a model, and return its number. ``tags``
        name the application and team that own it."""
        ...

    def list_model_names(self, team: str | None = None) -> Iterable[str]:
        """Return the names of the models that a team owns; None: of all teams."""
        ...

    def find_model_owner(self, name: str) -> str | None:
        """Return the team that owns a model; None: nothing of it says a team, or there is no such model."""
        ...

    def list_versions(self, name: str) -> list[ModelVersion]:
        """Return every version, the highest number first; none: there is no such model."""
        ...

    def set_alias(self, name: str, alias: str, number: int) -> None: ...

    def set_tags(self, name: str, number: int, tags: Mapping[str, str]) -> None: ...

    def locate_version(self, name: str, number: int) -> Place: ...

    def log(self, app: str, team: str, run: NewRun) -> str: ...

    def run(self, run_id: str) -> TrackedRun | None: ...

    def runs(self, app: str, team: str, clauses: tuple[Clause, ...]) -> Iterator[TrackedRun]:
        """Return the runs that match all clauses, newest first."""
        ...

    def run_at(self, run_id: str, path: str) -> Place:
        """Return the place of ``path`` in an existing run, or raise a ``NotFoundError``."""
        ...

    def download(self, place: Place, staging: Path) -> None: ...


class KnowledgeBase(ABC):
    """The knowledge base. Methods may be called from several threads and by several processes at once.

    *Whose.* Runs, applications and artifacts belong to one environment, ``scanflow-<app>-<team>``. A model is the
    team's that registered it first, and one of which nothing says a team is the default team's. Names are shared by all
    teams. :meth:`for_team` is for what acts for a team; without it the models of all teams are there.

    *All or nothing.* What a save, log or register has not finished is not visible to any reader, also when its process
    was killed; what a fetch has not finished leaves no destination folder. Nothing already saved is ever changed,
    except a model version's tags and aliases.

    *Files.* A source is a file, which is saved as a folder holding it, or a folder. Links to files are saved as the
    files; links to folders, broken links, special files, and names with control characters or any of ``#%?\\`` are
    refused, since a tracking server cannot carry them. Empty folders and permissions are not kept. A destination must
    not exist, or be an empty folder; it is returned.

    *Order.* Newest first, always. Times are in UTC.

    *Errors,* of every method: ``InvalidError`` for a name or value that cannot be stored, before anything is;
    ``NotFoundError`` for what is not there, with the nearest name that is; ``UnavailableError``, after a bounded wait,
    when the store does not answer or cannot be written; ``MissingExtraError`` when the adapter's library is missing.
    """

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._team: str | None = None

    def for_team(self, team: str | None) -> Self:
        """Return the same knowledge base, in which no other team's models are there; None: with those that are."""
        if team is None:
            return self
        confined = copy.copy(self)
        confined._team = team
        return confined

    @abstractmethod
    def _open(self, doing: str, /) -> AbstractContextManager[KnowledgeStore[Any]]:
        """Open the store for one operation; ``doing`` completes "could not ..." in errors."""

    @abstractmethod
    def prepare(self, app: str, team: str) -> dict[str, str]:
        """Create the environment if needed, and return the variables with which a step's own code logs to it.

        Idempotent, and safe in several processes at once. Other operations do not need it.
        """

    def save_application(self, application: Application) -> SavedVersion:
        """Save the application's description as its newest version."""
        with tempfile.TemporaryDirectory(prefix="scanflow-") as folder:
            source = Path(folder, APPLICATION_FILE)
            source.write_text(dump_json(application), encoding="utf-8")
            return self._save(SaveKey(application.name, application.team), source)

    def get_application(self, app: str, team: str, *, version: str | None = None) -> Application:
        """Return the newest description that was saved, or the one of ``version``."""
        with tempfile.TemporaryDirectory(prefix="scanflow-") as folder:
            saved = self._fetch(SaveKey(app, team), Path(folder, "saved"), version, "read the application")
            return load_json((saved / APPLICATION_FILE).read_text(encoding="utf-8"))

    def save_artifacts(self, app: str, team: str, name: str, source: Path) -> SavedVersion:
        """Save a file or folder under ``name``, as its newest version. Any text of 1 to 250 characters is a
        name."""
        return self._save(SaveKey(app, team, "artifacts", checks.check_artifact_name(name)), source)

    def fetch_artifacts(self, app: str, team: str, name: str, destination: Path, *, version: str | None = None) -> Path:
        """Write the newest save of ``name``, or the one of ``version``, into ``destination``."""
        key = SaveKey(app, team, "artifacts", checks.check_artifact_name(name))
        return self._fetch(key, destination, version, f"fetch the artifacts {name!r}")

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
        """Register the files as the next version of the model; ``run_id`` is the run that created them.

        Versions count from 1, and the model exists from its first version on.

        Raises:
            InvalidError: another team has a model of this name.
        """
        checks.check_model_name(name)
        checks.check_environment(app, team)
        owned = {**checks.check_tags(tags), "scanflow.app": app, "scanflow.team": team}
        check_source(source)
        with self._open(f"register the model {name!r}") as store:
            if run_id is not None:
                _get_run(store, run_id)
            if store.find_model_owner(name) not in {None, team}:
                raise InvalidError(
                    f"The model name {name!r} is taken by another team. Names of models are shared by all teams: "
                    "choose another."
                )
            number = store.add_version(name, source, run_id, owned, self._clock())
            return self._get_version(store, name, number)

    def get_model(self, name: str, version: int | str = LATEST) -> ModelVersion:
        """Return the version of that number or alias, or the latest."""
        with self._open(f"read the model {name!r}") as store:
            return self._get_version(store, name, version)

    def list_models(self) -> list[str]:
        """Return the names of the models, in order."""
        with self._open("list the models") as store:
            return sorted(store.list_model_names(self._team))

    def list_model_versions(self, name: str) -> list[ModelVersion]:
        """Return every version, the highest number first: also of a model whose name cannot be served."""
        with self._open(f"list the versions of the model {name!r}") as store:
            return self._list_versions(store, name)

    def list_versions_by_model(self, limit: int | None = None) -> dict[str, list[ModelVersion]]:
        """Return the versions of the first ``limit`` models by their names, each the highest number first."""
        with self._open("list the models") as store:
            names = sorted(store.list_model_names(self._team))[:limit]
            return {name: versions for name in names if (versions := store.list_versions(name))}

    def set_model_alias(self, name: str, alias: str, version: int) -> ModelVersion:
        """Move ``alias`` to this version of the model; return the updated version."""
        checks.check_alias(alias)
        with self._open(f"set the alias {alias!r} of the model {name!r}") as store:
            number = self._get_version(store, name, version).version
            store.set_alias(name, alias, number)
            return self._get_version(store, name, number)

    def set_model_tags(self, name: str, version: int, tags: Mapping[str, str]) -> ModelVersion:
        """Set these tags and keep the others; return the updated version."""
        checked_tags = checks.check_tags(tags)
        with self._open(f"tag the model {name!r}") as store:
            number = self._get_version(store, name, version).version
            store.set_tags(name, number, checked_tags)
            return self._get_version(store, name, number)

    def fetch_model(self, name: str, destination: Path, *, version: int | str = LATEST) -> Path:
        """Write the files of a version into ``destination``."""
        with self._open(f"fetch the model {name!r}") as store:
            number = self._get_version(store, name, version).version
            return _download(store, store.locate_version(name, number), destination)

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
        """Log a finished run. Parameters are kept as text; metrics are finite numbers; times default to now."""
        checks.check_environment(app, team)
        began, _ = checks.check_times(started_at, ended_at, now=self._clock())
        run = NewRun(
            name=None if name is None else checks.check_run_name(name),
            began=began,
            ends=lambda: checks.check_times(began, ended_at, now=self._clock())[1],
            status=status,
            params=checks.check_params(params),
            metrics=checks.check_metrics(metrics),
            tags=checks.check_tags(tags),
            source=artifacts,
            parent=parent,
        )
        if artifacts is not None:
            check_source(artifacts)
        with self._open("log the run") as store:
            if parent is not None:
                _get_run(store, parent)
            return _get_run(store, store.log(app, team, run))

    def get_run(self, run_id: str) -> TrackedRun:
        """Return one run."""
        with self._open("read the run") as store:
            return _get_run(store, run_id)

    def search_runs(self, app: str, team: str, filter_text: str = "", *, limit: int = 100) -> list[TrackedRun]:
        """Return the runs that match, including running ones; none if the environment does not exist.

        ``filter_text`` is the subset of MLflow's filter language that :mod:`scanflow.knowledge.filters` defines, with
        the same meaning in every adapter: ``tags.stage = 'train' and metrics.accuracy > 0.9 and params.depth != '3'``.

        Raises:
            UnsupportedError: the filter says more than that.
        """
        checks.check_environment(app, team)
        if limit < 1:
            raise InvalidError(f"The limit is {limit}; it must be at least 1.")
        clauses = parse_filter(filter_text)
        with self._open("search the runs") as store:
            return list(islice(store.runs(app, team, clauses), limit))

    def fetch_run_artifacts(self, run_id: str, destination: Path, *, path: str = "") -> Path:
        """Write a run's artifacts, or those under ``path``, into ``destination``."""
        wanted = checks.check_path(path)
        with self._open("fetch the run's artifacts") as store:
            _get_run(store, run_id)
            return _download(store, store.run_at(run_id, wanted), destination)

    def _save(self, key: SaveKey, source: Path) -> SavedVersion:
        checks.check_environment(key.app, key.team)
        check_source(source)
        with self._open(f"save {key.name!r}") as store:
            now, newest = self._clock(), next(store.iterate_saves(key), None)
            if newest is not None:  # a clock that was set back must not make this save the older one
                now = max(now, newest.saved_at + timedelta(milliseconds=1))
            return store.save(key, source, now)

    def _fetch(self, key: SaveKey, destination: Path, version: str | None, doing: str) -> Path:
        checks.check_environment(key.app, key.team)
        with self._open(doing) as store:
            saves = list(store.iterate_saves(key))
            if not saves:
                raise _build_not_saved_error(store, key)
            saved = next((save for save in saves if version in {None, save.version}), None)
            if saved is None:
                near = did_you_mean(str(version), [save.version for save in saves])
                raise NotFoundError(f"{key} has no version {version!r}.{near} Omit the version for the newest.")
            return _download(store, store.save_at(key, saved.version), destination)

    def _get_version(self, store: KnowledgeStore[Any], name: str, version: int | str) -> ModelVersion:
        return _select_version(self._list_versions(store, checks.check_model_name(name)), name, version)

    def _list_versions(self, store: KnowledgeStore[Any], name: str) -> list[ModelVersion]:
        versions = store.list_versions(name)
        own = self._team is None or (store.find_model_owner(name) or checks.DEFAULT_TEAM) == self._team
        if not versions or not own:
            whose = "" if self._team is None else f" of the team {self._team!r}"
            advice = did_you_mean(name, store.list_model_names(self._team)) or " Register a version of it first."
            raise NotFoundError(f"There is no model {name!r}{whose}.{advice}")
        return versions


def _build_not_saved_error(store: KnowledgeStore[Any], key: SaveKey) -> NotFoundError:
    whose = f"Application {key.app!r} of team {key.team!r}"
    if key.kind == "application":
        return NotFoundError(
            f"{whose} was never saved here. Save it first, or check the application, the team and the tracker."
        )
    advice = did_you_mean(key.name, set(store.list_artifact_names(key.app, key.team))) or " Save some first."
    return NotFoundError(f"{whose} has no artifacts {key.name!r}.{advice}")


def _select_version(versions: Sequence[ModelVersion], name: str, version: int | str) -> ModelVersion:
    for model_version in versions:
        if version == LATEST or version == model_version.version or version in model_version.aliases:
            return model_version
    names = [str(model_version.version) for model_version in versions[:6]][::-1] + [
        alias for model_version in versions for alias in model_version.aliases
    ]
    if isinstance(version, str):
        advice = f" Promote one: scanflow models promote {name} {names[0]}" if version == "champion" and names else ""
        raise NotFoundError(
            f"Model {name!r} has no version with the alias {version!r}.{did_you_mean(version, names)}{advice}"
        )
    # Numbers that look alike are not near each other, so they are listed rather than guessed at.
    raise NotFoundError(f"Model {name!r} has no version {version}. Known: {', '.join(names)}.")


def _get_run(store: KnowledgeStore[Any], run_id: str) -> TrackedRun:
    run = store.run(run_id)
    if run is None:
        raise NotFoundError(f"There is no run {run_id!r} here. Search the environment's runs for its id.")
    return run


def _download(store: KnowledgeStore[Place], place: Place, destination: Path) -> Path:
    with stage_destination(destination) as staging:
        store.download(place, staging)
    return destination
