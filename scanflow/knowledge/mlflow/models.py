"""Models in MLflow, as a training reads and writes them. Importing this costs nothing; each function imports MLflow."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scanflow.errors import InvalidError, NotFoundError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRUSTED = ("sklearn.", "numpy.", "scipy.")
"""Where a type comes from that a model of scikit-learn may hold."""

_BATCH = 256


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A model as its own library has it: scikit-learn's, Keras', or any with ``predict``."""

    native: Any

    def predict(self, x: Any) -> NDArray[Any]:
        """Return what it says of samples: labels, or numbers (n,)."""
        found = self._raw(x)
        return found if found.ndim == 1 else found.argmax(axis=1) if found.shape[1] > 1 else found[:, 0]

    def probabilities(self, x: Any) -> NDArray[Any] | None:
        """Return the probabilities of the classes (n, classes); None: it does not say."""
        import numpy as np

        if hasattr(self.native, "predict_proba"):
            return np.asarray(self.native.predict_proba(x))
        found = None if _is_sklearn(self.native) else self._raw(x)
        if found is None or found.ndim != 2 or found.shape[1] < 2 or found.min() < 0:
            return None
        return found if np.allclose(found.sum(axis=1), 1, atol=1e-3) else None

    def _raw(self, x: Any) -> NDArray[Any]:
        import numpy as np

        if _is_keras(self.native):
            return np.asarray(self.native.predict(x, batch_size=_BATCH, verbose=0))
        takes_context = "context" in inspect.signature(self.native.predict).parameters  # a PythonModel, not yet saved
        found = np.asarray(self.native.predict(None, x) if takes_context else self.native.predict(x))
        return found.reshape(-1) if found.ndim == 2 and found.shape[1] == 1 else found


def load(uri: str) -> FittedModel:
    """Return the model at an address, such as ``models:/NAME@champion``.

    Raises:
        NotFoundError: there is none.
    """
    from mlflow.exceptions import MlflowException

    mlflow = _mlflow()
    try:
        flavors = mlflow.models.get_model_info(uri).flavors
    except MlflowException as error:
        raise NotFoundError(f"There is no model at {uri!r}: {str(error)[:300]}") from error
    if "sklearn" in flavors:
        return FittedModel(mlflow.sklearn.load_model(uri))
    if "keras" in flavors or "tensorflow" in flavors:
        return FittedModel((mlflow.keras if "keras" in flavors else mlflow.tensorflow).load_model(uri))
    return FittedModel(mlflow.pyfunc.load_model(uri))


def version_of(uri: str) -> int | None:
    """Return the version that ``models:/NAME/VERSION`` or ``models:/NAME@ALIAS`` stands for; None: it is neither."""
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
    """Log a model with the signature that a few samples give it, and return its new version in the registry.

    It is the version that this step of this run registered before it was interrupted, if it did.

    Raises:
        InvalidError: nobody knows how to save such a model.
    """
    mlflow = _mlflow()
    client = mlflow.MlflowClient()
    own = {key: tags.get(key, "") for key in ("scanflow.run", "scanflow.step")}
    known = client.search_model_versions(f"name='{name}'") if own["scanflow.run"] else []
    if before := [version for version in known if own.items() <= version.tags.items()]:
        return int(before[0].version)
    with mlflow.start_run(run_name=own["scanflow.step"] or name):
        mlflow.set_tags(dict(tags))
        mlflow.log_params(dict(params))
        mlflow.log_metrics(dict(metrics))
        signature = mlflow.models.infer_signature(x, FittedModel(model)._raw(x))
        address = _log(model, signature).model_uri
        return int(mlflow.register_model(address, name, tags=dict(tags)).version)


def _mlflow() -> Any:
    import mlflow  # its flavors are loaded when they are asked for, which type checkers do not see

    return mlflow


def _log(model: Any, signature: Any) -> Any:
    mlflow = _mlflow()
    given = {"name": "model", "signature": signature}
    if _is_keras(model):
        import keras
        import numpy as np
        import tensorflow as tf

        libraries = [f"{one.__name__}=={one.__version__}" for one in (tf, keras, np)]
        return mlflow.keras.log_model(model, pip_requirements=libraries, **given)
    if _is_sklearn(model):
        return mlflow.sklearn.log_model(model, **given, **_sklearn_format(model), pip_requirements=_sklearn_libraries())
    if isinstance(model, mlflow.pyfunc.PythonModel):
        return mlflow.pyfunc.log_model(python_model=model, **given)
    raise InvalidError(
        f"fit() returned a {type(model).__module__}.{type(model).__qualname__}, and such a model is not known. Return "
        "one of scikit-learn or Keras, or wrap it in an mlflow.pyfunc.PythonModel."
    )


def _sklearn_format(model: Any) -> dict[str, Any]:
    """Return how to save a model of scikit-learn: without pickles where all it holds is of libraries that we know.

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
    if not all(one.startswith(TRUSTED) for one in types):
        return {"serialization_format": "cloudpickle"}
    return {"serialization_format": "skops", "skops_trusted_types": types}


def _sklearn_libraries() -> list[str]:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for one in ("scikit-learn", "numpy", "pandas", "skops", "cloudpickle"):
        try:
            found.append(f"{one}=={version(one)}")
        except PackageNotFoundError:
            continue
    return found


def _is_keras(model: Any) -> bool:
    return any(one.__module__.startswith("keras.") for one in type(model).__mro__)


def _is_sklearn(model: Any) -> bool:
    return any(one.__module__.startswith("sklearn.") for one in type(model).__mro__)


def quiet() -> None:
    """Have TensorFlow and MLflow say only what went wrong; to be called before either is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")


def pinned(uri: str) -> str:
    """Return the address of the version that an address stands for now: an alias may move."""
    number = version_of(uri)
    return uri if number is None else f"{uri.partition('@')[0].removesuffix(f'/{number}')}/{number}"


def tags_of(uri: str) -> dict[str, str]:
    """Return the tags of the version that an address stands for."""
    import mlflow

    number = version_of(uri)
    if number is None:
        return {}
    name = uri.removeprefix("models:/").partition("@")[0].partition("/")[0]
    return dict(mlflow.MlflowClient().get_model_version(name, str(number)).tags)
