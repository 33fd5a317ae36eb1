"""Remembers prepared environments without MLflow: its import takes seconds, and a run should start within one.

:func:`find_prepared_environment` is what ``scanflow run`` asks first. Only when it has no answer does the adapter's
``prepare`` load MLflow and make the environment, after which :func:`remember` writes the answer down. A note is
believed only while the installed MLflow is the one that wrote it and, for SQLite, while the database itself still
agrees.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scanflow.errors import InvalidError
from scanflow.files.private import create_private_folder, replace_by_draft, write_private
from scanflow.files.secret_sources import is_secret_source, read_secret_source
from scanflow.knowledge.artifact_locations import move_artifact_addresses
from scanflow.knowledge.checks import check_environment
from scanflow.pki import find_authority_file
from scanflow.text.masking import mask_place

_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackerPlace:
    """The address of a tracker, and the folder of our notes about it."""

    tracking_uri: str
    artifact_root: Path | None
    """The folder for artifacts, if the client chooses it: not with a tracking server."""

    notes: Path

    @property
    def digest(self) -> str:
        """Names the files about the tracker: its address may hold a password."""
        return hashlib.sha256(self.tracking_uri.encode(errors="surrogateescape")).hexdigest()[:16]


def locate_tracker(home: Path, tracker_uri: str | None = None) -> TrackerPlace:
    """Return the place of the tracker at ``tracker_uri``; unset: SQLite and a folder inside ``home``.

    ``tracker_uri`` may be a reference to a secret, ``env:NAME`` or ``file:PATH``: it is read here, by who connects.
    """
    root = home.absolute() / "tracker"
    if tracker_uri is not None and is_secret_source(tracker_uri):
        tracker_uri = read_secret_source(tracker_uri, home).strip()
    uri = tracker_uri or f"sqlite:///{root / 'mlflow.db'}"
    scheme = uri.partition(":")[0].partition("+")[0]
    if scheme not in _SCHEMES or "://" not in uri:
        raise InvalidError(
            f"The tracker {mask_place(uri)!r} cannot be used. Name a tracking server (http://host:5000) or a database "
            f"(sqlite:///path/mlflow.db, postgresql://host/name), or leave it unset for the tracker in {str(home)!r}."
        )
    if scheme in {"http", "https"}:
        return TrackerPlace(tracking_uri=uri.rstrip("/"), artifact_root=None, notes=root / "prepared")
    path = find_sqlite_path(uri)
    # A relative path would mean another database in every step's working folder.
    tracking_uri = f"sqlite:///{path}" if path is not None else uri
    return TrackerPlace(tracking_uri=tracking_uri, artifact_root=root / "artifacts", notes=root / "prepared")


def find_sqlite_path(tracking_uri: str) -> Path | None:
    """Return the database file of a SQLite tracker, and None for any other tracker."""
    if not tracking_uri.startswith("sqlite:"):
        return None
    text = tracking_uri.removeprefix("sqlite:///")
    if text in {"", ":memory:"} or text.startswith("sqlite:"):
        raise InvalidError(
            f"The tracker {tracking_uri!r} names no file, so steps cannot share it. Write sqlite:///PATH."
        )
    odd = next((character for character in "?%" if character in text), None)
    if odd:  # some versions of SQLAlchemy read %41 as "A", others do not; "?" begins options in all of them
        raise InvalidError(
            f"The tracker's path {text!r} has a {odd!r}, which an address cannot contain. Choose another path: "
            "SCANFLOW_HOME, or SCANFLOW_TRACKER_URI"
        )
    return Path(text).absolute()


def build_step_environment(
    tracking_uri: str, *, app: str, team: str, experiment_id: str | None = None, artifact_root: Path | None = None
) -> dict[str, str]:
    """Return the variables with which ``import mlflow`` in a step's own code logs to the environment.

    Without an ``experiment_id`` MLflow finds or makes the experiment by its name, when a step first logs.
    ``artifact_root`` is where a database's client keeps the files of experiments that a step makes itself.
    """
    return {
        "MLFLOW_TRACKING_URI": tracking_uri,
        "MLFLOW_REGISTRY_URI": tracking_uri,
        # Both, and the name first: MLflow refuses a name whose id in the variables is another's, as an inherited one
        # may be.
        "MLFLOW_EXPERIMENT_NAME": check_environment(app, team),
        **({} if experiment_id is None else {"MLFLOW_EXPERIMENT_ID": experiment_id}),
        # MLflow's own default is ./mlruns, in whatever folder the step works.
        **({} if artifact_root is None else {"_MLFLOW_SERVER_ARTIFACT_ROOT": artifact_root.as_uri()}),
        # MLflow adds these tags to each run that mlflow.start_run begins (its SystemEnvironmentContext).
        "MLFLOW_RUN_CONTEXT": json.dumps({"scanflow.app": app, "scanflow.team": team}),
        "MLFLOW_RUN_ID": "",  # one inherited from the runner's shell would make every step resume that run
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # a step's output is its own
        "GIT_PYTHON_REFRESH": "quiet",  # else every run warns where there is no git
    }


def build_served_variables(url: str, token: str) -> dict[str, str]:
    """Return the variables with which MLflow's client speaks to a tracker behind Scanflow's server."""
    # Each client takes one or the other, and the user's own are not the server's.
    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    authority = find_authority_file() if url.startswith("https:") else None
    return {
        "MLFLOW_TRACKING_URI": url,
        "MLFLOW_REGISTRY_URI": url,
        "MLFLOW_TRACKING_TOKEN": token,
        **dict.fromkeys(names, ""),
        **({} if authority is None else {"MLFLOW_TRACKING_SERVER_CERT_PATH": str(authority.expanduser().absolute())}),
    }


def add_run_tags(environment: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """Add ``tags``, such as the run's and step's names, to runs that plain MLflow starts in an environment."""
    if not environment:
        return {}
    context_tags: dict[str, str] = json.loads(environment.get("MLFLOW_RUN_CONTEXT", "{}"))
    return {**environment, "MLFLOW_RUN_CONTEXT": json.dumps({**context_tags, **tags})}


def find_prepared_environment(
    home: Path, app: str, team: str, *, tracker_uri: str | None = None
) -> dict[str, str] | None:
    """Return the variables for a step if its environment was prepared; None if ``prepare`` must be called."""
    return find_known_environment(locate_tracker(home, tracker_uri), app, team)


def find_known_environment(place: TrackerPlace, app: str, team: str) -> dict[str, str] | None:
    note = _read_note(_get_note_path(place, check_environment(app, team)))
    if note is None or (note.get("app"), note.get("team"), note.get("mlflow")) != (app, team, _find_installed_mlflow()):
        return None
    experiment_id = str(note.get("experiment_id"))
    path = find_sqlite_path(place.tracking_uri)
    if path is not None and place.artifact_root is not None:
        move_artifact_addresses(path, place.artifact_root)
    if path is not None and not _matches_database(path, experiment_id, app, team, note.get("schema")):
        return None
    return build_step_environment(
        place.tracking_uri, app=app, team=team, experiment_id=experiment_id, artifact_root=place.artifact_root
    )


def remember(place: TrackerPlace, *, app: str, team: str, experiment_id: str) -> None:
    """Record that the environment is prepared. Failing to write the record is not an error: it only saves time."""
    path = find_sqlite_path(place.tracking_uri)
    note = {
        "app": app,
        "team": team,
        "experiment_id": experiment_id,
        "mlflow": _find_installed_mlflow(),
        "schema": None if path is None else _read_schema(path),
    }
    target = _get_note_path(place, check_environment(app, team))
    with suppress(OSError):
        create_private_folder(target.parent)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        with replace_by_draft(target, draft):
            write_private(draft, json.dumps(note))


def _get_note_path(place: TrackerPlace, environment: str) -> Path:
    return place.notes / f"{environment}.{place.digest}.json"


def _read_note(note: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _find_installed_mlflow() -> str | None:
    try:
        return version("mlflow")
    except PackageNotFoundError:
        return None


def _matches_database(path: Path, experiment_id: str, app: str, team: str, schema: object) -> bool:
    """Check the database by its tables; if MLflow has changed them the result is unknown, and MLflow itself is
    asked."""
    query = (
        "SELECT (SELECT version_num FROM alembic_version),"
        " (SELECT value FROM experiment_tags t WHERE t.experiment_id = e.experiment_id AND t.key = 'scanflow.app'),"
        " (SELECT value FROM experiment_tags t WHERE t.experiment_id = e.experiment_id AND t.key = 'scanflow.team')"
        " FROM experiments e WHERE e.experiment_id = ? AND e.name = ? AND e.lifecycle_stage = 'active'"
    )
    return _query(path, query, (experiment_id, check_environment(app, team))) == (schema, app, team)


def _read_schema(path: Path) -> str | None:
    row = _query(path, "SELECT version_num FROM alembic_version", ())
    return str(row[0]) if row else None


def _query(path: Path, query: str, values: tuple[str, ...]) -> tuple[Any, ...] | None:
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            row: tuple[Any, ...] | None = connection.execute(query, values).fetchone()
            return row
    except sqlite3.Error:
        return None
