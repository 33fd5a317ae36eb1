"""A knowledge base in memory: for tests, and as the simplest implementation of the port."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from scanflow.knowledge import checks
from scanflow.knowledge.filters import Clause, matches
from scanflow.knowledge.knowledge_port import KnowledgeBase, NewRun, SaveKey
from scanflow.knowledge.knowledge_records import ModelVersion, SavedVersion, TrackedRun
from scanflow.knowledge.tracked_files import check_source

Files = Mapping[str, bytes]


class MemoryKnowledge(KnowledgeBase):
    """Keeps everything until the process ends. See :class:`~scanflow.knowledge.knowledge_port.KnowledgeBase` for the
    contract."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        super().__init__(clock=clock)
        self._lock = threading.RLock()
        self._store = _MemoryStore()

    @contextmanager
    def _open(self, _doing: str, /) -> Generator[_MemoryStore, None, None]:
        with self._lock:
            yield self._store

    def prepare(self, app: str, team: str) -> dict[str, str]:
        """Return no variables: no other process can log to this one's memory."""
        with self._lock:
            self._store.claim_environment(app, team)
        return {}


@dataclass(kw_only=True, slots=True)
class _Model:
    versions: list[ModelVersion] = field(default_factory=list)
    files: list[Files] = field(default_factory=list)
    aliases: dict[str, int] = field(default_factory=dict)


class _MemoryStore:
    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._owners: dict[str, tuple[str, str]] = {}
        self._saves: dict[SaveKey, dict[str, tuple[SavedVersion, Files]]] = {}
        self._models: dict[str, _Model] = {}
        self._runs: dict[str, tuple[TrackedRun, Files]] = {}

    def claim_environment(self, app: str, team: str) -> str:
        environment = checks.check_environment(app, team)
        checks.check_owner(environment, self._owners.setdefault(environment, (app, team)), (app, team))
        return environment

    def save(self, key: SaveKey, source: Path, now: datetime) -> SavedVersion:
        self.claim_environment(key.app, key.team)
        version = f"v{next(self._ids)}"
        uri = f"runs:/{version}/{key.path}"
        saved = SavedVersion(version=version, app=key.app, team=key.team, saved_at=now, uri=uri)
        self._saves.setdefault(key, {})[version] = saved, _load(source)
        return saved

    def iterate_saves(self, key: SaveKey) -> Iterator[SavedVersion]:
        return (saved for saved, _ in reversed(self._saves.get(key, {}).values()))

    def list_artifact_names(self, app: str, team: str) -> Iterable[str]:
        return (key.name for key in self._saves if (key.app, key.team, key.kind) == (app, team, "artifacts"))

    def save_at(self, key: SaveKey, version: str) -> Files:
        return self._saves[key][version][1]

    def add_version(self, name: str, source: Path, run_id: str | None, tags: Mapping[str, str], now: datetime) -> int:
        self.claim_environment(tags["scanflow.app"], tags["scanflow.team"])
        files = _load(source)
        model = self._models.setdefault(name, _Model())
        number = len(model.versions) + 1
        uri = f"models:/{name}/{number}"
        version = ModelVersion(name=name, version=number, tags=tags, run_id=run_id, uri=uri, created_at=now)
        model.versions.append(version)
        model.files.append(files)
        return number

    def list_model_names(self, team: str | None = None) -> Iterable[str]:
        return [name for name in self._models if team in {None, self.find_model_owner(name)}]

    def find_model_owner(self, name: str) -> str | None:
        return self._models[name].versions[0].tags[checks.OWNER] if name in self._models else None

    def list_versions(self, name: str) -> list[ModelVersion]:
        model = self._models.get(name, _Model())
        return [
            version.replace(
                aliases=tuple(sorted(alias for alias, named in model.aliases.items() if named == version.version))
            )
            for version in reversed(model.versions)
        ]

    def set_alias(self, name: str, alias: str, number: int) -> None:
        self._models[name].aliases[alias] = number

    def set_tags(self, name: str, number: int, tags: Mapping[str, str]) -> None:
        versions = self._models[name].versions
        versions[number - 1] = versions[number - 1].replace(tags={**versions[number - 1].tags, **tags})

    def locate_version(self, name: str, number: int) -> Files:
        return self._models[name].files[number - 1]

    def log(self, app: str, team: str, run: NewRun) -> str:
        environment = self.claim_environment(app, team)
        files = {} if run.source is None else _load(run.source)
        run_id = f"r{next(self._ids)}"
        logged = TrackedRun(
            run_id=run_id,
            environment=environment,
            name=run.name or run_id,
            status=run.status,
            params=run.params,
            metrics=run.metrics,
            tags=run.tags,
            parent=run.parent,
            started_at=run.began,
            ended_at=run.ends(),  # where it is found from now on
        )
        self._runs[run_id] = logged, files
        return run_id

    def run(self, run_id: str) -> TrackedRun | None:
        return self._runs[run_id][0] if run_id in self._runs else None

    def runs(self, app: str, team: str, clauses: tuple[Clause, ...]) -> Iterator[TrackedRun]:
        environment = checks.check_environment(app, team)
        is_owner = self._owners.get(environment) == (app, team)
        # Last in, first out; the sort by time is stable, so runs begun at the same instant keep that order.
        runs = [run for run, _ in reversed(self._runs.values()) if is_owner and run.environment == environment]
        matching = [run for run in runs if matches(clauses, tags=run.tags, params=run.params, metrics=run.metrics)]
        return iter(sorted(matching, key=lambda run: run.started_at, reverse=True))

    def run_at(self, run_id: str, path: str) -> Files:
        files = self._runs[run_id][1]
        if path in files:
            return {path.rpartition("/")[2]: files[path]}
        below = f"{path}/" if path else ""
        below_path = {name.removeprefix(below): data for name, data in files.items() if name.startswith(below)}
        if not below_path:
            raise checks.build_unknown_path_error(run_id, path, {name.partition("/")[0] for name in files})
        return below_path

    def download(self, place: Files, staging: Path) -> None:
        for name, data in place.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_bytes(data)


def _load(source: Path) -> Files:
    return {name: path.read_bytes() for name, path in check_source(source).items()}
