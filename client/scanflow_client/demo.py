"""The demo: the MNIST tutorial's own application, wherever it is installed."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.backends.records import RunRecord
from scanflow.deployer import Deployer
from scanflow.errors import InternalError, MissingExtraError, NotFoundError, did_you_mean
from scanflow.loading import load_application
from scanflow.settings import Settings

__all__ = ["load_demo", "where_to_look"]

_NAMED_DATA = ("digits", "mnist")
_SERVICE_KEPT = (
    "  service    scanflow services serve",
    "  cut anew   scanflow scale serve 1 --cores 2",
    "  end it     scanflow delete serve",
)
_NEEDS = ("tensorflow", "sklearn", "mlflow")


def load_demo(data: str) -> tuple[Application, Path, dict[str, Any]]:
    """Return the demo's application, its file, and the parameters that make it use ``data``.

    Raises:
        MissingExtraError: what it trains with is not installed.
        NotFoundError: ``data`` is neither a known name nor a file.
    """
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"The demo trains with TensorFlow and logs to MLflow, and {', '.join(missing)} cannot be imported here. "
            "Install them: pip install 'scanflow[local,tensorflow]'"
        )
    application, path, _ = load_application(str(_tutorials() / "mnist" / "app.py"))
    if data in _NAMED_DATA:
        return application, path, {"load-data.data": data}
    file = Path(data).expanduser().absolute()
    if not file.is_file():
        raise NotFoundError(f"There is no file {data!r}, and no data of that name.{did_you_mean(data, _NAMED_DATA)}")
    return application, path, {"load-data.data": str(file)}


def where_to_look(record: RunRecord, deployer: Deployer, *, kept: bool = False) -> list[str]:
    """Return what a person wants to know after the demo, and the commands that show more; ``kept``: of its service."""
    loaded, best = deployer.outputs(record.name, "load-data"), deployer.outputs(record.name, "select")
    assert isinstance(loaded, dict)
    assert isinstance(best, dict)
    tracker = Settings.from_environment().home.expanduser().absolute() / "tracker"
    on_path = shutil.which("scanflow") is not None
    return [
        "",
        f"  data      {loaded['source']}",
        f"  better    {best['best']}, with an accuracy of {best['accuracy']:.4f}",
        f"  model     {best['model']}, version {best['version']}",
        "",
        *([] if on_path else [f"  first      export PATH={Path(sys.executable).parent}:$PATH"]),
        f"  the run    scanflow show {record.name}",
        f"  its logs   scanflow logs {record.name}",
        "  try again  scanflow spin modeling-cnn1 -p epochs=5",
        f"  in MLflow  mlflow ui --backend-store-uri sqlite:///{tracker / 'mlflow.db'}",
        *(
            _SERVICE_KEPT
            if kept
            else [f"  serve it   scanflow deploy {record.source}:serve  (the demo ended its service)"]
        ),
    ]


def _tutorials() -> Path:
    """Return the tutorials: inside the package where it was installed from a wheel, beside it in a checkout."""
    inside = Path(__file__).parent / "tutorials"
    beside = Path(__file__).parents[2] / "tutorials"
    for folder in (inside, beside):
        if (folder / "mnist" / "app.py").is_file():
            return folder
    raise InternalError("The tutorials were not installed with scanflow.")
