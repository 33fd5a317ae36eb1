"""The image classifier that the inference experiment serves: Keras' ResNet50 with random weights, where Keras is
installed, else a network of matrix products."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

SIDE = 224
WIDTH, LAYERS = 768, 24


class ImageClassifier:
    """Takes images of shape (rows, 224, 224, 3) as float32, and returns a row for each."""

    def __init__(self) -> None:
        self._classify: Callable[[Any], Any] = define_resnet() if has_keras() else define_products()
        self._classify(np.zeros((1, SIDE, SIDE, 3), dtype=np.float32))

    def predict(self, inputs: Any) -> Any:
        return self._classify(inputs)


def has_keras() -> bool:
    return all(importlib.util.find_spec(name) for name in ("keras", "tensorflow"))


def define_resnet() -> Callable[[Any], Any]:
    keras, tf = (importlib.import_module(name) for name in ("keras", "tensorflow"))
    model = keras.applications.ResNet50(weights=None)
    compiled = tf.function(model)
    return lambda images: compiled(tf.constant(images), training=False).numpy()


def define_products() -> Callable[[Any], Any]:
    weights = np.random.default_rng(1).standard_normal((LAYERS, WIDTH, WIDTH), dtype=np.float32) / WIDTH**0.5

    def classify(images: Any) -> Any:
        rows = images.reshape(len(images) * SIDE, SIDE * 3)
        values = np.pad(rows, ((0, 0), (0, WIDTH - rows.shape[1])))
        for layer in weights:
            values = np.maximum(values @ layer, 0)
        return values.reshape(len(images), SIDE, WIDTH).mean(axis=1)

    return classify
