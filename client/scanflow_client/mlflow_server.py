"""``python -m scanflow_client.mlflow_server PORT``: MLflow's server over the tracker of the home folder, on loopback.

The database is created first, at once, by the function that all of scanflow uses: MLflow's server would migrate it in
fifty steps, visible to runs that begin meanwhile. Then this process executes MLflow's server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from scanflow.knowledge.mlflow.server_address import hold_server_address
from scanflow.knowledge.step_environment import TrackerPlace, get_sqlite_path, locate_tracker
from scanflow.settings import Settings

_REMOVED_VARIABLES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")


def build_command(port: int) -> list[str]:
    """Return the command of MLflow's server. Addresses may hold a password, so they are not part of it."""
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        # Clients write artifacts to the folder themselves, as the embedded tracker's do; the server shows them.
        "--no-serve-artifacts",
    ]


def build_environment(place: TrackerPlace, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of MLflow's server."""
    others = {name: value for name, value in inherited.items() if name not in _REMOVED_VARIABLES}
    root = {} if place.artifact_root is None else {"MLFLOW_DEFAULT_ARTIFACT_ROOT": place.artifact_root.as_uri()}
    own = {
        "MLFLOW_BACKEND_STORE_URI": place.tracking_uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes for an unused feature
        "GIT_PYTHON_REFRESH": "quiet",
    }
    return others | root | own


def main(words: Sequence[str]) -> None:
    """Create the database if there is none, and execute MLflow's server on the port in ``words``."""
    os.umask(0o077)  # its files are private to the user
    settings = Settings.from_environment()
    place = locate_tracker(settings.home.expanduser(), settings.tracker_uri)
    path = get_sqlite_path(place.tracking_uri)
    if path is not None and place.artifact_root is not None and not path.exists():
        from scanflow.knowledge.mlflow.database import make_database

        make_database(path, place.artifact_root)
    port = int(words[0])
    hold_server_address(place, f"http://127.0.0.1:{port}")
    os.execve(sys.executable, build_command(port), build_environment(place, os.environ))  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
