"""MLflow's runs and model versions as our records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scanflow.knowledge.checks import RESERVED
from scanflow.knowledge.records import ModelVersion, RunStatus, SavedVersion, TrackedRun

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion

PARENT = "mlflow.parentRunId"
MADE_BY = f"{RESERVED}made-by"
"""The tag of a model version with the id of the run that made it, where MLflow's own field names the run that holds
it."""

_STATUS: Mapping[str, RunStatus] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "failed"}


def to_tracked_run(run: Run, environment: str) -> TrackedRun:
    """Return a run as ours. MLflow's own tags are kept, less those that are fields."""
    hidden = {PARENT, "mlflow.runName"}
    return TrackedRun(
        run_id=run.info.run_id,
        environment=environment,
        name=run.info.run_name or run.info.run_id,
        status=_STATUS.get(run.info.status, "running"),
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags={key: value for key, value in run.data.tags.items() if key not in hidden and not key.startswith(RESERVED)},
        parent=run.data.tags.get(PARENT),
        started_at=_time(run.info.start_time),
        ended_at=None if run.info.end_time is None else _time(run.info.end_time),
    )


def to_saved_version(run: Run, app: str, team: str, path: str) -> SavedVersion:
    """Return a run in ``.records`` as the save that it holds."""
    run_id = run.info.run_id
    return SavedVersion(
        version=run_id, app=app, team=team, saved_at=_time(run.info.start_time), uri=f"runs:/{run_id}/{path}"
    )


def to_model_version(version: MlflowVersion, aliases: Mapping[str, str]) -> ModelVersion:
    """Return a model version as ours; ``aliases`` are the model's, by name."""
    number = int(version.version)
    return ModelVersion(
        name=version.name,
        version=number,
        aliases=tuple(sorted(alias for alias, named in aliases.items() if int(named) == number)),
        tags={key: value for key, value in version.tags.items() if not key.startswith(RESERVED)},
        run_id=version.tags.get(MADE_BY, version.run_id) or None,
        uri=f"models:/{version.name}/{number}",
        created_at=_time(version.creation_timestamp),
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
