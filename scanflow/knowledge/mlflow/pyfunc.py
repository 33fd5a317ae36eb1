"""Models that only MLflow's own wrapper can load. Importing this module is cheap; loading a model imports MLflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from scanflow.errors import MissingExtraError, UsageError
from scanflow.installation import explain_install

_REFUSALS: Final = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST"})


def load_pyfunc(folder: Path, who: str) -> Callable[[Any, Mapping[str, Any] | None], Any]:
    """Return the model in ``folder`` as a function of an array, a dictionary of arrays, a table or a list, and of the
    model's parameters. It raises ValueError for an input that MLflow refuses."""
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

    def predict(value: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        try:
            result = model.predict(value, params=dict(parameters) if parameters else None)
        except MlflowException as error:
            if error.error_code not in _REFUSALS:
                raise
            raise ValueError(str(error)) from error
        return _to_arrays(list(result) if inspect.isgenerator(result) else result)

    return predict


def _to_arrays(result: Any) -> Any:
    """Return tables as dictionaries of their columns, and columns as arrays."""
    kind = type(result).__name__
    if kind == "DataFrame":
        return {str(name): result[name].to_numpy() for name in result.columns}
    return result.to_numpy() if kind == "Series" else result
