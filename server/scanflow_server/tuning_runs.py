"""The searches of ``scanflow tune``, as MLflow behind this server has them: runs with the kind ``tuning``.

MLflow itself is not loaded here, as that takes seconds and 150 MiB: its server is asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from scanflow.app.quantities import MAX_CORES
from scanflow.errors import InvalidError, NotFoundError, UnavailableError
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.knowledge_records import TrackedRun
from scanflow.knowledge.mlflow.mlflow_socket import find_server_socket
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.names import format_environment_name
from scanflow.tuning.result import TuningResult
from scanflow_server.server_context import ServerContext

FILTER: Final = "tags.`scanflow.kind` = 'tuning'"
FILE: Final = "tuning.json"
MAX_RUNS: Final = 50
"""Of each application, the newest."""

MAX_BYTES: Final = 4 * 2**20


class Search(NamedTuple):
    """A search, and what it found."""

    run: TrackedRun
    service: str
    cores: float
    result: TuningResult


def open_tracker(context: ServerContext) -> KnowledgeBase:
    """Open the tracker behind this server without loading MLflow.

    Raises:
        UnavailableError: no MLflow runs for this server.
        MissingExtraError: it is not installed here.
    """
    settings = context.settings
    uri, token = settings.library.tracker_uri, settings.tracker_token
    place = locate_tracker(settings.home, uri)
    if place.artifact_root is None and token is not None:
        return open_knowledge(settings.home, uri, token=token.get_secret_value())
    if find_server_socket(place) is None:
        raise UnavailableError("No MLflow runs behind this server. Start it: scanflow up")
    return open_knowledge(settings.home, uri, served=True)


def list_searches(context: ServerContext, applications: Iterable[tuple[str, str]]) -> list[TrackedRun]:
    """Return the searches of applications, each with its team, the newest first."""
    tracker = open_tracker(context)
    runs = [run for app, team in applications for run in tracker.search_runs(app, team, FILTER, limit=MAX_RUNS)]
    return sorted(runs, key=lambda run: run.started_at, reverse=True)


def load_search(context: ServerContext, run_id: str, applications: Iterable[tuple[str, str]]) -> Search:
    """Return a search of one of these applications; NotFoundError: there is none."""
    tracker = open_tracker(context)
    missing = NotFoundError(f"There is no search {run_id!r}. List the searches: /tuning")
    try:
        run = tracker.get_run(run_id)
    except (InvalidError, NotFoundError) as error:
        raise missing from error
    own = {format_environment_name(app, team) for app, team in applications}
    if run.environment not in own or run.tags.get("scanflow.kind") != "tuning":
        raise missing
    with TemporaryDirectory(prefix="scanflow-tuning-") as folder:
        files = tracker.fetch_run_artifacts(run_id, Path(folder, "files"))
        path = files / FILE
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise NotFoundError(f"The run {run.name!r} of MLflow has no {FILE} of a search.")
        return parse_search(run, path.read_text(encoding="utf-8"))


def parse_search(run: TrackedRun, text: str) -> Search:
    """Parse the file of a search, which whoever may log to MLflow may have written. Pure.

    Raises:
        InvalidError: it is none.
    """
    try:
        document = json.loads(text)
        result, cores = TuningResult.from_json(document), float(document["cores"])
        if not 0 < cores < MAX_CORES:
            raise ValueError(f"{cores} cores")
        return Search(run, str(document["service"]), cores, result)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidError(f"The file {FILE} of the run {run.name!r} is not one of scanflow tune: {error}") from error
