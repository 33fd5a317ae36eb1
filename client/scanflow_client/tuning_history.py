"""Histories of earlier tuning searches, stored as tags of models' versions in the registry, for warm starts."""

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
    from scanflow.knowledge.knowledge_port import KnowledgeBase
    from scanflow.knowledge.knowledge_records import ModelVersion

HISTORY_TAG = "scanflow.tuning."
"""Tag of a model's version, followed by the goal's name: the result of the newest search for that goal, as JSON."""

MAX_MODELS = 200
"""Limit of the registered models that are searched for a similar one."""

LIKE_SIZE = 2.0
"""Largest ratio of the sizes of similar models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """Traits by which models are compared."""

    kind: str
    """The flavor in MLflow: ``keras``, ``sklearn``."""

    size_bytes: int
    """Size of the model's files."""

    nodes: int = 1
    """Number of nodes of the graph that serves it."""

    def compute_distance(self, other: ModelTraits) -> float:
        """Return the logarithm of the ratio of two models' sizes; infinite if the models are not similar."""
        if (self.kind, self.nodes) != (other.kind, other.nodes) or min(self.size_bytes, other.size_bytes) < 1:
            return math.inf
        distance = abs(math.log(self.size_bytes / other.size_bytes))
        return distance if distance <= math.log(LIKE_SIZE) else math.inf


def read_traits(files: Path, *, nodes: int) -> ModelTraits:
    """Return the traits of a model whose ``MLmodel`` is in a folder.

    Raises:
        OSError: there is no such file.
        ValueError: the file is not in MLflow's format.
    """
    import yaml

    try:
        described = yaml.safe_load((files / "MLmodel").read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{files / 'MLmodel'} is not YAML: {error}") from error
    flavors = described.get("flavors") if isinstance(described, Mapping) else None
    names = sorted(name for name in (flavors or {}) if name != "python_function")
    size = sum(file.stat().st_size for file in files.rglob("*") if file.is_file())
    return ModelTraits(kind=names[0] if names else "python_function", size_bytes=size, nodes=nodes)


class TuningHistories:
    """Histories of tuning searches in a registry."""

    def __init__(self, knowledge: KnowledgeBase, home: Path) -> None:
        """Open the histories; ``home`` has the cache of models' files."""
        self._knowledge = knowledge
        self._cache = ModelCache(home.expanduser() / "models", lambda: knowledge)

    def find(self, workflow: Workflow, goal: Goal) -> TuningHistory | None:
        """Return the history of the version that a workflow serves; else of an earlier version, else of a later one,
        else of the similar model nearest in size; None: there is none.

        Only searches for the same goal and bound count.
        """
        served = list(iterate_served_versions(self._knowledge, workflow))
        for version in served:
            versions = self._knowledge.list_model_versions(version.name)
            earlier = [candidate for candidate in versions if candidate.version <= version.version]
            for candidate in [
                *earlier,
                *(candidate for candidate in reversed(versions) if candidate.version > version.version),
            ]:
                if (record := read_record(candidate, goal)) is not None:
                    return _parse_history(record, candidate)
        for version in served:
            traits = self._read_model_traits(version, workflow)
            if traits is not None and (history := self._find_alike(version.name, traits, goal)) is not None:
                return history
        return None

    def save(self, workflow: Workflow, goal: Goal, history: TuningHistory, *, run: str) -> list[ModelVersion]:
        """Save a history with the versions that a workflow serves, and return them."""
        saved = []
        for version in iterate_served_versions(self._knowledge, workflow):
            traits = self._read_model_traits(version, workflow)
            record = {
                "ranking": [compact(candidate) for candidate in history.ranking],
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
        for other, versions in self._knowledge.list_versions_by_model(MAX_MODELS).items():
            if other == name:
                continue
            for version in versions:
                record = read_record(version, goal)
                distance = math.inf if record is None else _compute_distance(traits, record)
                if record is not None and distance < (math.inf if nearest is None else nearest[0]):
                    nearest = (distance, _parse_history(record, version))
        return None if nearest is None else nearest[1]

    def _read_model_traits(self, version: ModelVersion, workflow: Workflow) -> ModelTraits | None:
        with suppress(OSError, ValueError, ScanflowError):  # a model without traits is similar to none
            files = self._cache.fetch(version.uri)
            return read_traits(Path(files.path), nodes=len(workflow.services))
        return None


def iterate_served_versions(knowledge: KnowledgeBase, workflow: Workflow) -> Iterator[ModelVersion]:
    """Yield the versions of registered models that a workflow's nodes name."""
    for node in workflow.services:
        if node.model is not None:
            with suppress(NotFoundError):
                yield knowledge.get_model(*split_model_uri(node.model))


def read_record(version: ModelVersion, goal: Goal) -> Mapping[str, Any] | None:
    """Return a version's record of a search for the same goal and bound; None: there is none, or it is invalid."""
    try:
        record = json.loads(version.tags.get(HISTORY_TAG + goal.name, "null"))
        if isinstance(record, Mapping) and record.get("p99_s") == goal.p99_s:
            _parse_history(record, version)
            return record
    except (ValueError, TypeError, KeyError):  # another program's tag of that name
        pass
    return None


def compact(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate without default values."""
    always = {"instances": candidate.instances, "cores": candidate.cores}
    return always | {name: value for name, value in asdict(candidate).items() if value not in (None, "any", 0)}


def _parse_history(record: Mapping[str, Any], version: ModelVersion) -> TuningHistory:
    ranking = tuple(Candidate(**candidate) for candidate in record["ranking"])
    if not ranking or not all(candidate.instances >= 1 and candidate.cores > 0 for candidate in ranking):
        raise ValueError(f"The record of a search with {version.uri} has no valid candidates.")
    return TuningHistory(
        ranking=ranking,
        default=Candidate(**record["default"]),
        ratio=float(record["ratio"]),
        trials=int(record["trials"]),
        complete=bool(record["complete"]),
        source=f"{version.name} {version.version}",
    )


def _compute_distance(traits: ModelTraits, record: Mapping[str, Any]) -> float:
    try:
        other = ModelTraits(
            kind=str(record["kind"]), size_bytes=int(record["size_bytes"]), nodes=int(record.get("nodes", 1))
        )
    except (ValueError, TypeError, KeyError):
        return math.inf
    return traits.compute_distance(other)
