"""The port of the knowledge base: what scanflow remembers of applications, runs and models.

:class:`KnowledgeBase` checks what it is asked, once for all stores. :class:`KnowledgeStore` is what an adapter brings:
:mod:`scanflow.knowledge.mlflow` (a server, a database, or SQLite in the home folder) and
:mod:`scanflow.knowledge.memory` (tests). ``scanflow.testing.knowledge`` holds the suite that every adapter passes.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from scanflow.app.application import Application
from scanflow.app.files import dump_json, load_json
from scanflow.errors import NotFoundError, did_you_mean
from scanflow.knowledge import checks
from scanflow.knowledge.files import arriving, check_source
from scanflow.knowledge.filters import Clause, parse_filter
from scanflow.knowledge.records import LATEST, ModelVersion, SavedVersion, TrackedRun

Place = TypeVar("Place")

_DESCRIPTION = "application.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is saved of an application: its description, or artifacts of a name."""

    app: str
    team: str
    kind: Literal["application", "artifacts"] = "application"
    name: str = _DESCRIPTION

    @property
    def path(self) -> str:
        """Where its files are in a save: a file, or a folder."""
        return _DESCRIPTION if self.kind == "application" else "files"

    def __str__(self) -> str:
        if self.kind == "application":
            return f"Application {self.app!r} of team {self.team!r}"
        return f"{self.name!r} of application {self.app!r}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """What a run will hold."""

    name: str | None
    began: datetime
    ends: Callable[[], datetime]
    """Says when it ended. It is asked when all of it is written, so that who looks through the runs by the time of
    their end, up to a second ago, finds each of them."""

    status: Literal["finished", "failed"] = "finished"
    tags: Mapping[str, str]
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    source: Path | None = None
    """A file or folder with its artifacts."""

    parent: str | None = None


class KnowledgeStore(Protocol[Place]):
    """What keeps the records, opened for one operation. All that it is given was checked; it knows what is there.

    A ``Place`` says where files are; it is good as long as the store is open.
    """

    def save(self, kept: Kept, source: Path, now: datetime) -> SavedVersion: ...

    def saves(self, kept: Kept) -> Iterator[SavedVersion]:
        """Return the saves, the newest first; none if the environment is another application's."""
        ...

    def artifact_names(self, app: str, team: str) -> Iterable[str]: ...

    def save_at(self, kept: Kept, version: str) -> Place: ...

    def add_version(self, name: str, source: Path, run_id: str | None, tags: Mapping[str, str], now: datetime) -> int:
        """Make the files the next version of a model, which they may be the first of, and return its number. ``tags``
        name the application and team that own it."""
        ...

    def model_names(self) -> Iterable[str]: ...

    def versions(self, name: str) -> list[ModelVersion]:
        """Return every version, the highest number first; none: there is no such model."""
        ...

    def set_alias(self, name: str, alias: str, number: int) -> None: ...

    def set_tags(self, name: str, number: int, tags: Mapping[str, str]) -> None: ...

    def version_at(self, name: str, number: int) -> Place: ...

    def log(self, app: str, team: str, run: NewRun) -> str: ...

    def run(self, run_id: str) -> TrackedRun | None: ...

    def runs(self, app: str, team: str, clauses: tuple[Clause, ...]) -> Iterator[TrackedRun]:
        """Return the runs that match all clauses, the newest first."""
        ...

    def run_at(self, run_id: str, path: str) -> Place:
        """Return where ``path`` of a run that is there lies, or raise a ``NotFoundError``."""
        ...

    def download(self, place: Place, staging: Path) -> None: ...


class KnowledgeBase(ABC):
    """The knowledge base. Methods may be called from several threads and by several processes at once.

    *Whose.* Runs, applications and artifacts belong to one environment, ``scanflow-<app>-<team>``. Models are shared by
    all teams: their names are global, and a version carries the tags ``scanflow.app`` and ``scanflow.team``.

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

    @abstractmethod
    def _open(self, doing: str, /) -> AbstractContextManager[KnowledgeStore[Any]]:
        """Give the store for one operation; ``doing`` completes "could not ..." in errors."""

    @abstractmethod
    def prepare(self, app: str, team: str) -> dict[str, str]:
        """Make the environment exist, and return the variables with which a step's own code logs to it.

        Idempotent, and safe in several processes at once. Other operations do not need it.
        """

    def save_application(self, application: Application) -> SavedVersion:
        """Keep the application's description as the newest version of it."""
        with tempfile.TemporaryDirectory(prefix="scanflow-") as folder:
            source = Path(folder, _DESCRIPTION)
            source.write_text(dump_json(application), encoding="utf-8")
            return self._save(Kept(application.name, application.team), source)

    def get_application(self, app: str, team: str, *, version: str | None = None) -> Application:
        """Return the newest description that was saved, or the one of ``version``."""
        with tempfile.TemporaryDirectory(prefix="scanflow-") as folder:
            saved = self._fetch(Kept(app, team), Path(folder, "saved"), version, "read the application")
            return load_json((saved / _DESCRIPTION).read_text(encoding="utf-8"))

    def save_artifacts(self, app: str, team: str, name: str, source: Path) -> SavedVersion:
        """Keep a file or folder under ``name``, as the newest version of it. Any text of 1 to 250 characters is a
        name."""
        return self._save(Kept(app, team, "artifacts", checks.check_artifact_name(name)), source)

    def fetch_artifacts(self, app: str, team: str, name: str, destination: Path, *, version: str | None = None) -> Path:
        """Write the newest save of ``name``, or the one of ``version``, into ``destination``."""
        kept = Kept(app, team, "artifacts", checks.check_artifact_name(name))
        return self._fetch(kept, destination, version, f"fetch the artifacts {name!r}")

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
        """Keep the files as the next version of the model; ``run_id`` says which run made them.

        Versions count from 1, and the model exists from its first version on.
        """
        checks.check_model_name(name)
        checks.check_environment(app, team)
        owned = {**checks.check_tags(tags), "scanflow.app": app, "scanflow.team": team}
        check_source(source)
        with self._open(f"register the model {name!r}") as store:
            if run_id is not None:
                _run(store, run_id)
            number = store.add_version(name, source, run_id, owned, self._clock())
            return _version(store, name, number)

    def get_model(self, name: str, version: int | str = LATEST) -> ModelVersion:
        """Return the version of that number or alias, or the latest."""
        with self._open(f"read the model {name!r}") as store:
            return _version(store, name, version)

    def list_models(self) -> list[str]:
        """Return the names of the models of all teams, in order."""
        with self._open("list the models") as store:
            return sorted(store.model_names())

    def list_model_versions(self, name: str) -> list[ModelVersion]:
        """Return every version, the highest number first."""
        with self._open(f"list the versions of the model {name!r}") as store:
            return _versions(store, name)

    def set_model_alias(self, name: str, alias: str, version: int) -> ModelVersion:
        """Let ``alias`` name this version, and no other of the model; return the version as it then is."""
        checks.check_alias(alias)
        with self._open(f"set the alias {alias!r} of the model {name!r}") as store:
            number = _version(store, name, version).version
            store.set_alias(name, alias, number)
            return _version(store, name, number)

    def set_model_tags(self, name: str, version: int, tags: Mapping[str, str]) -> ModelVersion:
        """Set these tags, keep the others; return the version as it then is."""
        given = checks.check_tags(tags)
        with self._open(f"tag the model {name!r}") as store:
            number = _version(store, name, version).version
            store.set_tags(name, number, given)
            return _version(store, name, number)

    def fetch_model(self, name: str, destination: Path, *, version: int | str = LATEST) -> Path:
        """Write the files of a version into ``destination``."""
        with self._open(f"fetch the model {name!r}") as store:
            number = _version(store, name, version).version
            return _download(store, store.version_at(name, number), destination)

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
        """Keep one run that is over. Parameters are kept as text; metrics are finite numbers; times default to now."""
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
                _run(store, parent)
            return _run(store, store.log(app, team, run))

    def get_run(self, run_id: str) -> TrackedRun:
        """Return one run."""
        with self._open("read the run") as store:
            return _run(store, run_id)

    def search_runs(self, app: str, team: str, filter_text: str = "", *, limit: int = 100) -> list[TrackedRun]:
        """Return the runs that match, also those that still run; none if the environment does not exist.

        ``filter_text`` is the subset of MLflow's filter language that :mod:`scanflow.knowledge.filters` defines, with
        the same meaning in every adapter: ``tags.stage = 'train' and metrics.accuracy > 0.9 and params.depth != '3'``.

        Raises:
            UnsupportedError: the filter says more than that.
        """
        checks.check_environment(app, team)
        checks.check_limit(limit)
        clauses = parse_filter(filter_text)
        with self._open("search the runs") as store:
            return list(islice(store.runs(app, team, clauses), limit))

    def fetch_run_artifacts(self, run_id: str, destination: Path, *, path: str = "") -> Path:
        """Write a run's artifacts, or those under ``path``, into ``destination``."""
        wanted = checks.check_path(path)
        with self._open("fetch the run's artifacts") as store:
            _run(store, run_id)
            return _download(store, store.run_at(run_id, wanted), destination)

    def _save(self, kept: Kept, source: Path) -> SavedVersion:
        checks.check_environment(kept.app, kept.team)
        check_source(source)
        with self._open(f"save {kept.name!r}") as store:
            now, newest = self._clock(), next(store.saves(kept), None)
            if newest is not None:  # a clock that was set back must not make this save the older one
                now = max(now, newest.saved_at + timedelta(milliseconds=1))
            return store.save(kept, source, now)

    def _fetch(self, kept: Kept, destination: Path, version: str | None, doing: str) -> Path:
        checks.check_environment(kept.app, kept.team)
        with self._open(doing) as store:
            saves = list(store.saves(kept))
            if not saves:
                raise _never_saved(store, kept)
            found = next((one for one in saves if version in {None, one.version}), None)
            if found is None:
                near = did_you_mean(str(version), [one.version for one in saves])
                raise NotFoundError(f"{kept} has no version {version!r}.{near} Leave it out for the newest.")
            return _download(store, store.save_at(kept, found.version), destination)


def _never_saved(store: KnowledgeStore[Any], kept: Kept) -> NotFoundError:
    whose = f"Application {kept.app!r} of team {kept.team!r}"
    if kept.kind == "application":
        return NotFoundError(f"{whose} was never saved here. Save it first, or check both names and the tracker.")
    advice = did_you_mean(kept.name, set(store.artifact_names(kept.app, kept.team))) or " Save some first."
    return NotFoundError(f"{whose} has no artifacts {kept.name!r}.{advice}")


def _versions(store: KnowledgeStore[Any], name: str) -> list[ModelVersion]:
    found = store.versions(checks.check_model_name(name))
    if not found:
        advice = did_you_mean(name, store.model_names()) or " Register a version of it first."
        raise NotFoundError(f"There is no model {name!r}.{advice}")
    return found


def _version(store: KnowledgeStore[Any], name: str, version: int | str) -> ModelVersion:
    versions = _versions(store, name)
    for one in versions:
        if version == LATEST or version == one.version or version in one.aliases:
            return one
    known = [str(one.version) for one in versions[:6]][::-1] + [alias for one in versions for alias in one.aliases]
    if isinstance(version, str):
        raise NotFoundError(f"Model {name!r} has no version with the alias {version!r}.{did_you_mean(version, known)}")
    # Numbers that look alike are not near each other, so they are listed rather than guessed at.
    raise NotFoundError(f"Model {name!r} has no version {version}. Known: {', '.join(known)}.")


def _run(store: KnowledgeStore[Any], run_id: str) -> TrackedRun:
    found = store.run(run_id)
    if found is None:
        raise NotFoundError(f"There is no run {run_id!r} here. Search the environment's runs for its id.")
    return found


def _download(store: KnowledgeStore[Place], place: Place, destination: Path) -> Path:
    with arriving(destination) as staging:
        store.download(place, staging)
    return destination
