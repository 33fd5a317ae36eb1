"""The variables with which plain ``import mlflow`` in a notebook or a script logs where steps do."""

from __future__ import annotations

from scanflow.app.application import Application
from scanflow.deployer.remote_home import build_mlflow_url, find_mlflow_url
from scanflow.errors import UnavailableError
from scanflow.http.home_token import read_home_token
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.step_environment import (
    build_served_variables,
    build_step_environment,
    find_prepared_environment,
    locate_tracker,
)
from scanflow.settings import Settings
from scanflow_client.control_client import ControlClient

_NEVER = ("MLFLOW_RUN_ID", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT")
"""What a step's process has and a notebook has not: a run begun outside, and silence."""


def build_mlflow_variables(
    settings: Settings, control: ControlClient | None, app: Application | None
) -> dict[str, str]:
    """Return the variables for the tracker of a server or, without one, of the home; with ``app``, for its experiment.

    Raises:
        UnavailableError: the server has no tracker.
    """
    if control is not None:
        served = _build_remote_variables(control)
        own = {} if app is None else build_step_environment(served["MLFLOW_TRACKING_URI"], app=app.name, team=app.team)
    else:
        served, own = _build_served_variables(settings), _build_home_variables(settings, app)
    return {name: value for name, value in {**own, **served}.items() if name not in _NEVER}


def _build_remote_variables(control: ControlClient) -> dict[str, str]:
    tracker = control.status().get("tracker") or {}
    server, url = control.server, str(tracker.get("url") or "")
    if tracker.get("proxied"):
        return build_served_variables(build_mlflow_url(server.url), server.token or "")
    if not url.startswith(("http://", "https://")):
        raise UnavailableError(f"The server at {server.url} has no tracker that others reach. Start one: scanflow up")
    return {"MLFLOW_TRACKING_URI": url, "MLFLOW_REGISTRY_URI": url}


def _build_served_variables(settings: Settings) -> dict[str, str]:
    url, token = find_mlflow_url(settings.home), read_home_token(settings.home)
    return {} if url is None or token is None else build_served_variables(url, token)


def _build_home_variables(settings: Settings, app: Application | None) -> dict[str, str]:
    home = settings.home.expanduser().absolute()
    uri = (None if app is None or app.tracker is None else app.tracker.uri) or settings.tracker_uri
    if app is None:
        address = locate_tracker(home, uri).tracking_uri
        return {"MLFLOW_TRACKING_URI": address, "MLFLOW_REGISTRY_URI": address}
    prepared = find_prepared_environment(home, app.name, app.team, tracker_uri=uri)
    return prepared or open_knowledge(home, uri, served=True).prepare(app.name, app.team)
