"""Loads and registers models in MLflow for trainings. Each function imports MLflow, the module does not."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge.mlflow.model_sources import check_model_source
from scanflow.knowledge.model_code import list_code_folders, use_code

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRUSTED_MODULES = ("sklearn.", "numpy.", "scipy.")
"""The modules whose types a scikit-learn model may contain."""

_BATCH = 256


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A model of its own library: scikit-learn, Keras, or any with ``predict``."""

    native: Any

    def predict(self, x: Any) -> NDArray[Any]:
        """Return the predictions for samples: labels, or numbers (n,)."""
        outputs = self._predict_raw(x)
        return outputs if outputs.ndim == 1 else outputs.argmax(axis=1) if outputs.shape[1] > 1 else outputs[:, 0]

    def predict_probabilities(self, x: Any) -> NDArray[Any] | None:
        """Return the probabilities of the classes (n, classes); None if the model provides none."""
        import numpy as np

        if hasattr(self.native, "predict_proba"):
            return np.asarray(self.native.predict_proba(x))
        scores = None if _is_sklearn(self.native) else self._predict_raw(x)
        if scores is None or scores.ndim != 2 or scores.shape[1] < 2 or scores.min() < 0:
            return None
        return scores if np.allclose(scores.sum(axis=1), 1, atol=1e-3) else None

    def _predict_raw(self, x: Any) -> NDArray[Any]:
        import numpy as np

        if _is_keras(self.native):
            return np.asarray(self.native.predict(x, batch_size=_BATCH, verbose=0))
        takes_context = "context" in inspect.signature(self.native.predict).parameters  # a PythonModel, not yet saved
        outputs = np.asarray(self.native.predict(None, x) if takes_context else self.native.predict(x))
        return outputs.reshape(-1) if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs


def load(uri: str) -> FittedModel:
    """Load the model at an address, such as ``models:/NAME@champion``.

    Raises:
        NotFoundError: there is none.
        InvalidError: its files are not in the tracker's own store.
    """
    from mlflow.exceptions import MlflowException

    mlflow = _mlflow()
    try:
        _check_source(uri)
        flavors = mlflow.models.get_model_info(uri).flavors
    except MlflowException as error:
        raise NotFoundError(f"There is no model at {uri!r}: {str(error)[:300]}") from error
    who = f"The model {uri!r}"
    if list_code_folders(Path(), flavors):
        uri = mlflow.artifacts.download_artifacts(uri)
        for code in list_code_folders(Path(uri), flavors):
            use_code(code, who)
    if "sklearn" in flavors:
        return FittedModel(mlflow.sklearn.load_model(uri))
    if "keras" in flavors or "tensorflow" in flavors:
        return FittedModel((mlflow.keras if "keras" in flavors else mlflow.tensorflow).load_model(uri))
    return FittedModel(mlflow.pyfunc.load_model(uri))


def _check_source(uri: str) -> None:
    number = resolve_version(uri)
    if number is not None:
        name, client = uri.removeprefix("models:/").partition("@")[0].partition("/")[0], _mlflow().MlflowClient()
        location = client.get_model_version_download_uri(name, str(number))
        check_model_source(client, location, model=f"The version {number} of the model {name!r}")


def resolve_version(uri: str) -> int | None:
    """Resolve ``models:/NAME/VERSION`` or ``models:/NAME@ALIAS`` to a version; None for other addresses."""
    from mlflow.exceptions import MlflowException

    mlflow = _mlflow()
    name, _, alias = uri.removeprefix("models:/").partition("@")
    if alias:
        try:
            return int(mlflow.MlflowClient().get_model_version_by_alias(name, alias).version)
        except MlflowException as error:
            raise NotFoundError(f"No version of {name!r} has the alias {alias!r}: {str(error)[:300]}") from error
    number = name.rpartition("/")[2]
    return int(number) if number.isdecimal() else None


def register(
    model: Any, name: str, *, x: Any, tags: Mapping[str, str], params: Mapping[str, Any], metrics: Mapping[str, float]
) -> int:
    """Log a model with a signature inferred from a few samples, and return its new version in the registry.

    It is the version that this step of this run registered before it was interrupted, if it did.

    Raises:
        InvalidError: nobody knows how to save such a model.
    """
    mlflow = _mlflow()
    client = mlflow.MlflowClient()
    own = {key: tags.get(key, "") for key in ("scanflow.run", "scanflow.step")}
    versions = client.search_model_versions(f"name='{name}'") if own["scanflow.run"] else []
    if before := [version for version in versions if own.items() <= version.tags.items()]:
        return int(before[0].version)
    with mlflow.start_run(run_name=own["scanflow.step"] or name):
        mlflow.set_tags(dict(tags))
        mlflow.log_params(dict(params))
        mlflow.log_metrics(dict(metrics))
        signature = mlflow.models.infer_signature(x, FittedModel(model)._predict_raw(x))
        # A table's first row warms up new instances: made-up values, such as the text of a date, may fail.
        example = {"input_example": x[:1]} if hasattr(x, "iloc") else {}
        address = _log_model(model, {"name": "model", "signature": signature, **example}).model_uri
        return int(mlflow.register_model(address, name, tags=dict(tags)).version)


def _mlflow() -> Any:
    import mlflow  # its flavors are loaded when they are asked for, which type checkers do not see

    return mlflow


def _log_model(model: Any, options: Mapping[str, Any]) -> Any:
    mlflow = _mlflow()
    if _is_keras(model):
        import keras
        import numpy as np
        import tensorflow as tf

        libraries = [f"{module.__name__}=={module.__version__}" for module in (tf, keras, np)]
        return mlflow.keras.log_model(model, pip_requirements=libraries, **options)
    if _is_sklearn(model):
        return mlflow.sklearn.log_model(
            model, **options, **choose_sklearn_format(model), pip_requirements=_list_sklearn_libraries()
        )
    if isinstance(model, mlflow.pyfunc.PythonModel):
        return mlflow.pyfunc.log_model(python_model=model, **options)
    raise InvalidError(
        f"fit() returned a {type(model).__module__}.{type(model).__qualname__}, which is not supported. Return a "
        "model of scikit-learn or Keras, or wrap it in an mlflow.pyfunc.PythonModel."
    )


def choose_sklearn_format(model: Any) -> dict[str, Any]:
    """Choose the format in which a scikit-learn model is saved: without pickles if it contains only trusted types.

    Left to itself, MLflow refuses trees, whose types skops does not trust.
    """
    try:
        import skops.io
    except ModuleNotFoundError:
        return {"serialization_format": "cloudpickle"}
    try:
        types = skops.io.get_untrusted_types(data=skops.io.dumps(model))
    except Exception:  # noqa: BLE001  whatever it cannot save, cloudpickle may
        return {"serialization_format": "cloudpickle"}
    if not all(name.startswith(TRUSTED_MODULES) for name in types):
        return {"serialization_format": "cloudpickle"}
    return {"serialization_format": "skops", "skops_trusted_types": types}


def _list_sklearn_libraries() -> list[str]:
    from importlib.metadata import PackageNotFoundError, version

    libraries = []
    for library in ("scikit-learn", "numpy", "pandas", "skops", "cloudpickle"):
        try:
            libraries.append(f"{library}=={version(library)}")
        except PackageNotFoundError:
            continue
    return libraries


def _is_keras(model: Any) -> bool:
    return any(base.__module__.startswith("keras.") for base in type(model).__mro__)


def _is_sklearn(model: Any) -> bool:
    return any(base.__module__.startswith("sklearn.") for base in type(model).__mro__)


def limit_logs() -> None:
    """Limit TensorFlow's and MLflow's logs to errors; call it before either is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")


def pin_version(uri: str) -> str:
    """Return the address with its alias resolved to the current version: an alias may move."""
    number = resolve_version(uri)
    return uri if number is None else f"{uri.partition('@')[0].removesuffix(f'/{number}')}/{number}"


def get_version_tags(uri: str) -> dict[str, str]:
    """Return the tags of the version at an address."""
    import mlflow

    number = resolve_version(uri)
    if number is None:
        return {}
    name = uri.removeprefix("models:/").partition("@")[0].partition("/")[0]
    return dict(mlflow.MlflowClient().get_model_version(name, str(number)).tags)
