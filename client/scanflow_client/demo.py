"""The demo: the MNIST tutorial's own application, wherever it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.backends.records import RunRecord
from scanflow.deployer import Deployer
from scanflow.errors import InternalError, MissingExtraError
from scanflow.loading import load_application
from scanflow.settings import Settings

__all__ = ["load_demo", "where_to_look"]

_NEEDS = ("tensorflow", "sklearn", "mlflow")


def load_demo(data: str) -> tuple[Application, Path, dict[str, Any]]:
    """Return the demo's application, its file, and the parameters that make it use ``data``.

    Raises:
        MissingExtraError: what it trains with is not installed.
    """
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"The demo trains with TensorFlow and logs to MLflow, and {', '.join(missing)} cannot be imported here. "
            "Install them: pip install 'scanflow[local,tensorflow]'"
        )
    application, path, _ = load_application(str(_tutorials() / "mnist" / "app.py"))
    named = data if data in {"digits", "mnist"} else str(Path(data).expanduser().absolute())
    return application, path, {"load-data.data": named}


def where_to_look(record: RunRecord, deployer: Deployer) -> list[str]:
    """Return what a person wants to know after the demo, and the commands that show more."""
    loaded, best = deployer.outputs(record.name, "load-data"), deployer.outputs(record.name, "select")
    assert isinstance(loaded, dict)
    assert isinstance(best, dict)
    tracker = Settings.from_environment().home.expanduser().absolute() / "tracker"
    return [
        "",
        f"  data      {loaded.get('source', '')}",
        *(f"  {key:<9} {value}" for key, value in best.items()),
        "",
        f"  the run    scanflow show {record.name}",
        f"  its logs   scanflow logs {record.name}",
        "  try again  scanflow spin modeling-cnn1 -p epochs=5",
        f"  in MLflow  mlflow ui --backend-store-uri sqlite:///{tracker / 'mlflow.db'}",
    ]


def _tutorials() -> Path:
    """Return the tutorials: inside the package where it was installed from a wheel, beside it in a checkout."""
    inside = Path(__file__).parent / "tutorials"
    beside = Path(__file__).parents[2] / "tutorials"
    for folder in (inside, beside):
        if (folder / "mnist" / "app.py").is_file():
            return folder
    raise InternalError("The tutorials were not installed with scanflow.")
