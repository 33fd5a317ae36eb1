"""What earlier searches found for a model, kept as tags of its versions in the registry, to begin a search from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.app.workflow import Workflow
from scanflow.errors import NotFoundError, ScanflowError
from scanflow.knowledge.model_cache import ModelCache, split_model_uri
from scanflow.tuning.candidates import Candidate
from scanflow.tuning.goals import Goal
from scanflow.tuning.warm_start import TuningHistory

if TYPE_CHECKING:
    from scanflow.knowledge.port import KnowledgeBase
    from scanflow.knowledge.records import ModelVersion

HISTORY_TAG = "scanflow.tuning."
"""Of a model's version, with the goal's name behind it: what the newest search for that goal found, as JSON."""

MOST_MODELS = 200
"""So many registered models are looked through for one of like size and kind."""

LIKE_SIZE = 2.0
"""Models of like size are at most so many times as large as each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """By what models are alike."""

    kind: str
    """The library that it is of, in MLflow's words: ``keras``, ``sklearn``."""

    size_bytes: int
    """Of its files."""

    nodes: int = 1
    """Of the graph that serves it."""

    def distance(self, other: ModelTraits) -> float:
        """Return how unlike two models' sizes are, as a logarithm; infinite where the models are not alike."""
        if (self.kind, self.nodes) != (other.kind, other.nodes) or min(self.size_bytes, other.size_bytes) < 1:
            return math.inf
        distance = abs(math.log(self.size_bytes / other.size_bytes))
        return distance if distance <= math.log(LIKE_SIZE) else math.inf


def read_traits(files: Path, *, nodes: int) -> ModelTraits:
    """Return the traits of a model whose ``MLmodel`` is in a folder.

    Raises:
        OSError: there is no such file.
        ValueError: it is not as MLflow writes it.
    """
    import yaml

    try:
        described = yaml.safe_load((files / "MLmodel").read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{files / 'MLmodel'} is no YAML: {error}") from error
    flavors = described.get("flavors") if isinstance(described, Mapping) else None
    names = sorted(name for name in (flavors or {}) if name != "python_function")
    size = sum(file.stat().st_size for file in files.rglob("*") if file.is_file())
    return ModelTraits(kind=names[0] if names else "python_function", size_bytes=size, nodes=nodes)


class TuningHistories:
    """Histories of searches in a registry."""

    def __init__(self, knowledge: KnowledgeBase, home: Path) -> None:
        """``home``: where models' files are cached."""
        self._knowledge = knowledge
        self._cache = ModelCache(home.expanduser() / "models", lambda: knowledge)

    def find(self, workflow: Workflow, goal: Goal) -> TuningHistory | None:
        """Return what was found for the version that a workflow serves; else for an earlier version of that model, else
        for a later one, else for the model of like size and kind that is nearest in size; None: nothing is known.

        Only searches for the same goal and bound count.
        """
        served = list(served_versions(self._knowledge, workflow))
        for version in served:
            versions = self._knowledge.list_model_versions(version.name)
            earlier = [one for one in versions if one.version <= version.version]
            for one in [*earlier, *(one for one in reversed(versions) if one.version > version.version)]:
                if (record := read_record(one, goal)) is not None:
                    return _history(record, one)
        for version in served:
            traits = self._traits(version, workflow)
            if traits is not None and (history := self._find_alike(version.name, traits, goal)) is not None:
                return history
        return None

    def save(self, workflow: Workflow, goal: Goal, history: TuningHistory, *, run: str) -> list[ModelVersion]:
        """Keep what was found with the versions that a workflow serves, and return them."""
        saved = []
        for version in served_versions(self._knowledge, workflow):
            traits = self._traits(version, workflow)
            record = {
                "ranking": [compact(one) for one in history.ranking],
                "default": compact(history.default),
                "ratio": round(history.ratio, 4),
                "trials": history.trials,
                "complete": history.complete,
                "p99_s": goal.p99_s,
                "run": run,
                **({} if traits is None else asdict(traits)),
            }
            tags = {HISTORY_TAG + goal.name: json.dumps(record)}
            saved.append(self._knowledge.set_model_tags(version.name, version.version, tags))
        return saved

    def _find_alike(self, name: str, traits: ModelTraits, goal: Goal) -> TuningHistory | None:
        nearest: tuple[float, TuningHistory] | None = None
        for other in self._knowledge.list_models()[:MOST_MODELS]:
            if other == name:
                continue
            for version in self._knowledge.list_model_versions(other):
                record = read_record(version, goal)
                distance = math.inf if record is None else _distance(traits, record)
                if record is not None and distance < (math.inf if nearest is None else nearest[0]):
                    nearest = (distance, _history(record, version))
        return None if nearest is None else nearest[1]

    def _traits(self, version: ModelVersion, workflow: Workflow) -> ModelTraits | None:
        with suppress(OSError, ValueError, ScanflowError):  # without them the model is like no other
            files = self._cache.fetch(version.uri)
            return read_traits(Path(files.path), nodes=len(workflow.services))
        return None


def served_versions(knowledge: KnowledgeBase, workflow: Workflow) -> Iterator[ModelVersion]:
    """Yield the versions of registered models that a workflow's nodes name."""
    for node in workflow.services:
        if node.model is not None:
            with suppress(NotFoundError):
                yield knowledge.get_model(*split_model_uri(node.model))


def read_record(version: ModelVersion, goal: Goal) -> Mapping[str, Any] | None:
    """Return what a search for the same goal and bound left with a version; None: none did, or it is not readable."""
    try:
        record = json.loads(version.tags.get(HISTORY_TAG + goal.name, "null"))
        if isinstance(record, Mapping) and record.get("p99_s") == goal.p99_s:
            _history(record, version)
            return record
    except (ValueError, TypeError, KeyError):  # another program's tag of that name
        pass
    return None


def compact(one: Candidate) -> dict[str, Any]:
    """Return a candidate without what is as by default."""
    always = {"instances": one.instances, "cores": one.cores}
    return always | {name: value for name, value in asdict(one).items() if value not in (None, "any")}


def _history(record: Mapping[str, Any], version: ModelVersion) -> TuningHistory:
    ranking = tuple(Candidate(**one) for one in record["ranking"])
    if not ranking or not all(one.instances >= 1 and one.cores > 0 for one in ranking):
        raise ValueError(f"A search has left no candidates with {version.uri}.")
    return TuningHistory(
        ranking=ranking,
        default=Candidate(**record["default"]),
        ratio=float(record["ratio"]),
        trials=int(record["trials"]),
        complete=bool(record["complete"]),
        source=f"{version.name} {version.version}",
    )


def _distance(traits: ModelTraits, record: Mapping[str, Any]) -> float:
    try:
        other = ModelTraits(
            kind=str(record["kind"]), size_bytes=int(record["size_bytes"]), nodes=int(record.get("nodes", 1))
        )
    except (ValueError, TypeError, KeyError):
        return math.inf
    return traits.distance(other)
