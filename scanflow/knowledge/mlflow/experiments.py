"""Environments as MLflow's experiments, and runs that are invisible until they are complete.

Each environment has two experiments: ``scanflow-<app>-<team>`` holds the runs that users log, and the same with
``.records`` holds what scanflow keeps as runs: applications' descriptions, artifacts, the files of models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.errors import UsageError
from scanflow.knowledge.checks import RESERVED_PREFIX, check_environment, check_owner
from scanflow.knowledge.knowledge_port import NewRun
from scanflow.knowledge.mlflow import rest_client
from scanflow.knowledge.mlflow.connection import list_refusal_types
from scanflow.knowledge.mlflow.rest_client import Client, RestClient

if TYPE_CHECKING:
    from mlflow.entities import Run

KIND = f"{RESERVED_PREFIX}kind"
"""The tag with the kind of a run in ``.records``."""

WRITING = f"{RESERVED_PREFIX}writing"
"""The tag of an incomplete run. It is set with the run and removed last; a run with this tag does not exist for
readers."""

_MAX_PARAMS = 25  # a request may be 1 MB: 25 parameters of 6,000 characters, each written as \\uXXXX
_MAX_METRICS = 1000


def find_experiment(client: Client, app: str, team: str, *, records: bool = False) -> str | None:
    """Return the id of the environment's experiment; None if it does not exist, or belongs to another application."""
    experiment = client.get_experiment_by_name(_format_name(app, team, records=records))
    if experiment is None or experiment.lifecycle_stage != "active":
        return None
    owner = _read_owner(experiment.tags)
    return str(experiment.experiment_id) if owner in {None, (app, team)} else None


def make_experiment(client: Client, artifacts: Path | None, app: str, team: str, *, records: bool = False) -> str:
    """Return the id of the environment's experiment; create it if it is missing.

    ``artifacts``: the folder of the tracker's artifacts; None: MLflow's server knows where they are.
    """
    if records:
        make_experiment(client, artifacts, app, team)  # which settles whose the environment is
    name = _format_name(app, team, records=records)
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        location = None if artifacts is None else (artifacts / name).as_uri()
        try:
            return str(client.create_experiment(name, location, tags={"scanflow.app": app, "scanflow.team": team}))
        except list_refusal_types() as error:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:  # else another process was quicker
                raise error from None
    identity = str(experiment.experiment_id)
    if experiment.lifecycle_stage != "active":
        raise UsageError(
            f"The experiment {name!r} was deleted in MLflow, which still reserves its name. Restore it: "
            f"mlflow experiments restore --experiment-id {identity}. Or remove it permanently: mlflow gc "
            f"--experiment-ids {identity}"
        )
    owner = _read_owner(experiment.tags)
    if owner is None:  # made by hand: from now on it is ours
        client.set_experiment_tag(identity, "scanflow.app", app)
        client.set_experiment_tag(identity, "scanflow.team", team)
    else:
        check_owner(check_environment(app, team), owner, (app, team))
    return identity


def items(ask: Callable[..., Any]) -> Iterator[Any]:
    token: str | None = None
    while True:
        page = ask(page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def iterate_runs(client: Client, experiment_id: str, filter_string: str) -> Iterator[Run]:
    order = ["attributes.start_time DESC"]
    ask = partial(client.search_runs, [experiment_id], filter_string, max_results=200, order_by=order)
    return (run for run in items(ask) if WRITING not in run.data.tags)


def write_run(client: Client, experiment_id: str, new: NewRun, *, below: str | None = None) -> Run:
    """Write a run, its files under ``below`` among its artifacts, or at the root.

    Killed on the way, it leaves a run that no reader of ours sees.
    """
    start = _to_milliseconds(new.began)
    run = client.create_run(experiment_id, start_time=start, tags={**new.tags, WRITING: "true"}, run_name=new.name)
    run_id = str(run.info.run_id)
    try:
        _log_numbers(client, run_id, new, _to_milliseconds(new.ends()))
        if new.source is not None:
            upload = client.log_artifacts if new.source.is_dir() else client.log_artifact
            upload(run_id, str(new.source), below)
        client.set_terminated(run_id, new.status.upper(), _to_milliseconds(new.ends()))
        client.delete_tag(run_id, WRITING)
    except BaseException:
        with suppress(*list_refusal_types(), OSError):
            client.delete_run(run_id)
        raise
    return client.get_run(run_id)


def _log_numbers(client: Client, run_id: str, new: NewRun, timestamp: int) -> None:
    metric, param = _get_entity_types(client)
    params = iter([param(key, value) for key, value in new.params.items()])
    while some_params := list(islice(params, _MAX_PARAMS)):
        client.log_batch(run_id, params=some_params)
    metrics = iter([metric(key, value, timestamp, 0) for key, value in new.metrics.items()])
    while some_metrics := list(islice(metrics, _MAX_METRICS)):
        client.log_batch(run_id, metrics=some_metrics)


def _get_entity_types(client: Client) -> tuple[Any, Any]:
    """Return the types of a metric and of a parameter, as the client takes them."""
    if isinstance(client, RestClient):
        return rest_client.Metric, rest_client.Param
    from mlflow.entities import Metric, Param

    return Metric, Param


def _format_name(app: str, team: str, *, records: bool) -> str:
    return check_environment(app, team) + (".records" if records else "")


def _read_owner(tags: Mapping[str, str]) -> tuple[str, str] | None:
    app, team = tags.get("scanflow.app"), tags.get("scanflow.team")
    return None if app is None or team is None else (app, team)


def _to_milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)
