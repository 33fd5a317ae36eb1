"""Models that only MLflow's own wrapper can load. Importing this module is cheap; loading a model imports MLflow."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scanflow.arrays import read_column
from scanflow.errors import MissingExtraError, UnsupportedError, UsageError
from scanflow.installation import explain_install

_REFUSALS: Final = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST"})


class PyfuncModel:
    """A model as MLflow calls it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def raw(self) -> Any:
        """The library's own model; None: MLflow does not give it."""
        try:
            return self._model.get_raw_model()
        except NotImplementedError:
            return None

    def set_order(self, columns: Sequence[str]) -> None:
        """Have the model be given its columns in this order: MLflow would restore that of the signature, and LightGBM
        takes them by their places."""
        from mlflow.models import ModelSignature
        from mlflow.types import Schema

        signature = self._model.metadata.signature
        by_name = {column.name: column for column in signature.inputs}
        ordered = Schema([by_name[name] for name in columns])
        self._model.metadata.signature = ModelSignature(ordered, signature.outputs, signature.params)

    def predict(self, value: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        """Answer an array, a dictionary of arrays, a table or a list.

        Raises:
            ValueError: MLflow refuses the input.
        """
        from mlflow.exceptions import MlflowException

        try:
            result = self._model.predict(value, params=dict(parameters) if parameters else None)
        except MlflowException as error:
            if error.error_code not in _REFUSALS:
                raise
            raise ValueError(str(error)) from error
        return _to_arrays(list(result) if inspect.isgenerator(result) else result)


def load_pyfunc(folder: Path, who: str) -> PyfuncModel:
    """Return the model in ``folder``."""
    try:
        import mlflow.pyfunc
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{who} is loaded by MLflow, but {error.name!r} is not installed. {explain_install('local')}"
        ) from error
    try:
        return PyfuncModel(mlflow.pyfunc.load_model(str(folder), suppress_warnings=True))
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{who} needs {error.name!r}, which is not installed. It was saved with these requirements: "
            f"{folder / 'requirements.txt'}"
        ) from error
    except MlflowException as error:
        raise UsageError(f"{who} cannot be loaded: {str(error)[:2000]}") from error


def _to_arrays(result: Any) -> Any:
    """Return tables as dictionaries of their columns, and columns as arrays."""
    kind = type(result).__name__
    if kind == "DataFrame":
        first: dict[str, Any] = {}
        for name in result.columns:
            if str(name) in first:
                raise UnsupportedError(
                    f"It returned a table with the columns {first[str(name)]!r} and {name!r}, whose names are the same "
                    "in an answer. Rename one of them."
                )
            first[str(name)] = name
        return {text: read_column(result[name]) for text, name in first.items()}
    return read_column(result) if kind == "Series" else result
