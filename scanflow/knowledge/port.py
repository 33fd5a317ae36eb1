"""The port of the knowledge base: what scanflow remembers of applications, runs and models.

Adapters: :mod:`scanflow.knowledge.mlflow` (a server, a database, or SQLite in the home folder) and
:mod:`scanflow.knowledge.memory` (tests). ``scanflow.testing.knowledge`` holds the suite that every adapter passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from scanflow.app.application import Application
from scanflow.knowledge.records import LATEST, ModelVersion, SavedVersion, TrackedRun


class KnowledgeBase(Protocol):
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

    def prepare(self, app: str, team: str) -> dict[str, str]:
        """Make the environment exist, and return the variables with which a step's own code logs to it.

        Idempotent, and safe in several processes at once. Other operations do not need it.
        """
        ...

    def save_application(self, application: Application) -> SavedVersion:
        """Keep the application's description as the newest version of it."""
        ...

    def get_application(self, app: str, team: str, *, version: str | None = None) -> Application:
        """Return the newest description that was saved, or the one of ``version``."""
        ...

    def list_application_versions(self, app: str, team: str) -> list[SavedVersion]:
        """Return every save of the application's description."""
        ...

    def save_artifacts(self, app: str, team: str, name: str, source: Path) -> SavedVersion:
        """Keep a file or folder under ``name``, as the newest version of it. Any text of 1 to 250 characters is a
        name."""
        ...

    def fetch_artifacts(self, app: str, team: str, name: str, destination: Path, *, version: str | None = None) -> Path:
        """Write the newest save of ``name``, or the one of ``version``, into ``destination``."""
        ...

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
        ...

    def register_logged_model(self, name: str, uri: str, *, tags: Mapping[str, str] | None = None) -> ModelVersion:
        """Make what a run logged the next version of the model; ``uri`` is ``runs:/<run id>/<path>``."""
        ...

    def list_models(self) -> list[str]:
        """Return the names of all models, sorted."""
        ...

    def get_model(self, name: str, version: int | str = LATEST) -> ModelVersion:
        """Return the version of that number or alias, or the latest."""
        ...

    def list_model_versions(self, name: str) -> list[ModelVersion]:
        """Return every version, the highest number first."""
        ...

    def set_model_alias(self, name: str, alias: str, version: int) -> ModelVersion:
        """Let ``alias`` name this version, and no other of the model; return the version as it then is."""
        ...

    def set_model_tags(self, name: str, version: int, tags: Mapping[str, str]) -> ModelVersion:
        """Set these tags, keep the others; return the version as it then is."""
        ...

    def fetch_model(self, name: str, destination: Path, *, version: int | str = LATEST) -> Path:
        """Write the files of a version into ``destination``."""
        ...

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
        ...

    def get_run(self, run_id: str) -> TrackedRun:
        """Return one run."""
        ...

    def search_runs(self, app: str, team: str, filter_text: str = "", *, limit: int = 100) -> list[TrackedRun]:
        """Return the runs that match, also those that still run; none if the environment does not exist.

        ``filter_text`` is the subset of MLflow's filter language that :mod:`scanflow.knowledge.filters` defines, with
        the same meaning in every adapter: ``tags.stage = 'train' and metrics.accuracy > 0.9 and params.depth != '3'``.

        Raises:
            UnsupportedError: the filter says more than that.
        """
        ...

    def fetch_run_artifacts(self, run_id: str, destination: Path, *, path: str = "") -> Path:
        """Write a run's artifacts, or those under ``path``, into ``destination``."""
        ...
