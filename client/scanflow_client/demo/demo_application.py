"""The application of the demo: the MNIST tutorial, as installed with scanflow."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.application_loading import load_application
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import InternalError, MissingExtraError, NotFoundError, did_you_mean
from scanflow.installation import explain_install

_NAMED_DATA = ("digits", "mnist")
_NEEDS = ("tensorflow", "sklearn", "mlflow", "fastapi", "sqlalchemy", "apscheduler")


def load_demo(data: str, drifted: Path | None = None) -> tuple[Application, Path, dict[str, Any], Path | None]:
    """Return the application, its file, the parameters that make it use ``data``, and the file of drifted digits."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"The demo trains with TensorFlow and runs agents, and {', '.join(missing)} cannot be imported here. "
            + explain_install("local", "tensorflow", "server", "agents")
        )
    application, path, _ = load_application(str(_get_tutorials_folder() / "mnist" / "loop.py"))
    corrupted = None if drifted is None else drifted.expanduser().absolute()
    if corrupted is not None and not corrupted.is_file():
        raise NotFoundError(f"There is no file {str(drifted)!r} with drifted digits. Leave it out to generate them.")
    if data not in _NAMED_DATA:
        file = Path(data).expanduser().absolute()
        if not file.is_file():
            raise NotFoundError(
                f"There is no file {data!r}, and no built-in data of that name.{did_you_mean(data, _NAMED_DATA)}"
            )
        data = str(file)
    return application, path, {"load-data.data": data}, corrupted


def load_small_demo() -> tuple[Application, Path]:
    """Return the demo's application for a cluster, without TensorFlow, and its file."""
    app, path, _ = load_application(str(_get_tutorials_folder() / "mnist" / "small.py"))
    return app, path


def get_traffic_program(source: Path, served: ServiceRecord, drifted: Path | None) -> tuple[Path, list[str]]:
    """Return the tutorial's traffic program, and its arguments for a service."""
    more = [] if drifted is None else ["--drifted_path", str(drifted)]
    arguments = ["--url", served.url, "--app", served.app, "--team", served.team, "--rate", "1", *more]
    return source.with_name("traffic.py"), arguments


def list_next_commands(record: RunRecord, source: Path, home: Path, *, keeps_running: bool) -> list[str]:
    """Return commands to try after the demo; ``keeps_running``: the service and the agents still run."""
    first = [] if shutil.which("scanflow") else [f"  first      export PATH={Path(sys.executable).parent}:$PATH"]
    always = [
        f"  training   scanflow show {record.name}",
        f"  in MLflow  mlflow ui --backend-store-uri sqlite:///{home / 'tracker' / 'mlflow.db'}",
    ]
    running = [
        "  reasons    scanflow why",
        "  agents     scanflow agents mnist",
        "  service    scanflow services serve",
        "  stop       scanflow agents mnist --stop; scanflow delete serve; scanflow down",
    ]
    stopped = [f"  keep it    scanflow demo --keep  (this time the demo stopped what {source.name} started)"]
    return ["", *first, *always, *(running if keeps_running else stopped)]


def _get_tutorials_folder() -> Path:
    for folder in (Path(__file__).parents[1] / "tutorials", Path(__file__).parents[3] / "tutorials"):
        if (folder / "mnist" / "loop.py").is_file():
            return folder
    raise InternalError("The tutorials were not installed with scanflow.")
