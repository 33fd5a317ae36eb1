"""A digit classifier with one hidden layer, by scikit-learn: for machines without TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np

ROUNDS, SEED = 20, 1


def network(units: int) -> Any:
    """Return an untrained network for pictures in MNIST's format: (n, 28, 28), from 0 to 255."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, MinMaxScaler

    return make_pipeline(
        FunctionTransformer(np.reshape, kw_args={"shape": (-1, 28 * 28)}),
        MinMaxScaler(clip=True),
        MLPClassifier((units,), max_iter=ROUNDS, random_state=SEED),
    )


def fit(x: Any, y: Any, model: Any) -> Any:
    """Return a network like the model in use, trained on pictures (n, 28, 28) with their labels (n,)."""
    import warnings

    from sklearn.base import clone

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that more rounds would make it better still
        return clone(model).fit(x, y)
