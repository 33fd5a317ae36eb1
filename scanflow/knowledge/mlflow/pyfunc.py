"""Models that only MLflow's own wrapper can load. Importing this module is cheap; loading a model imports MLflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scanflow.errors import MissingExtraError, UsageError
from scanflow.installation import explain_install


def load_pyfunc(folder: Path, who: str) -> Callable[[Any], Any]:
    """Return the model in ``folder`` as a function, from an array, a dictionary of arrays or a table to the same."""
    try:
        import mlflow.pyfunc
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{who} is loaded by MLflow, but {error.name!r} is not installed. {explain_install('local')}"
        ) from error
    try:
        model = mlflow.pyfunc.load_model(str(folder), suppress_warnings=True)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{who} needs {error.name!r}, which is not installed. It was saved with these requirements: "
            f"{folder / 'requirements.txt'}"
        ) from error
    except MlflowException as error:
        raise UsageError(f"{who} cannot be loaded: {str(error)[:2000]}") from error

    def predict(value: Any) -> Any:
        return _to_arrays(model.predict(value))

    return predict


def _to_arrays(result: Any) -> Any:
    """Return tables as dictionaries of their columns, and columns as arrays."""
    kind = type(result).__name__
    if kind == "DataFrame":
        return {str(name): result[name].to_numpy() for name in result.columns}
    return result.to_numpy() if kind == "Series" else result
