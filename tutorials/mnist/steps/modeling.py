"""Train a convolutional network, test it, and log it to MLflow: parameters, metrics, model and confusion matrix."""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported: errors only
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")

import mlflow
import numpy as np
from matplotlib.figure import Figure
from quiet import stderr_to

import scanflow as sf

with stderr_to(sf.output_dir() / "tensorflow.log"):
    import tensorflow as tf
    from tensorflow import keras
    from tensorflow.keras import layers


def lenet() -> list[Any]:
    """Large filters and a dense layer, after LeNet-5."""
    return [
        layers.Conv2D(16, 5, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 5, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
    ]


def vgg() -> list[Any]:
    """Stacks of small filters, after VGG."""
    return [
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.25),
    ]


ARCHITECTURES = {"lenet": lenet, "vgg": vgg}


def build(architecture: str) -> Any:
    """Return an untrained network for pictures in MNIST's format: (n, 28, 28), from 0 to 255."""
    model = keras.Sequential(
        [
            layers.Input((28, 28)),
            layers.Rescaling(1 / 255),
            layers.Reshape((28, 28, 1)),
            *ARCHITECTURES[architecture](),
            layers.Dense(10, activation="softmax"),
        ],
        name=architecture,
    )
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def confusion_figure(truth: Any, guesses: Any) -> Figure:
    counts = np.zeros((10, 10), dtype=int)
    np.add.at(counts, (truth, guesses), 1)
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    axes.imshow(np.log1p(counts), cmap="Blues")
    axes.set(xlabel="predicted", ylabel="digit", xticks=range(10), yticks=range(10))
    for (row, column), count in np.ndenumerate(counts):
        axes.text(column, row, count or "", ha="center", va="center", color="white" if row == column else "black")
    return figure


def log_epoch(epoch: int, metrics: dict[str, float]) -> None:
    mlflow.log_metrics(metrics, step=epoch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", choices=sorted(ARCHITECTURES), default="lenet")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trained_on", default="unknown", help="description of the data, for the log")
    for name in ("x_train", "y_train", "x_test", "y_test"):
        parser.add_argument(f"--{name}_path", required=True)
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs {arguments.epochs}: a network must be trained; give 1 or more")

    x_train, y_train = np.load(arguments.x_train_path), np.load(arguments.y_train_path)
    x_test, y_test = np.load(arguments.x_test_path), np.load(arguments.y_test_path)
    keras.utils.set_random_seed(arguments.seed)
    tf.config.experimental.enable_op_determinism()
    model = build(arguments.architecture)

    with mlflow.start_run(run_name=os.environ.get("SCANFLOW_STEP", arguments.architecture)):
        mlflow.set_tags({"scanflow.run": os.environ.get("SCANFLOW_RUN", ""), "data": arguments.trained_on})
        mlflow.log_params(
            {
                "architecture": arguments.architecture,
                "epochs": arguments.epochs,
                "batch_size": arguments.batch_size,
                "seed": arguments.seed,
                "weights": model.count_params(),
                "data": arguments.trained_on,
                "train_size": len(x_train),
                "test_size": len(x_test),
            }
        )
        model.fit(
            x_train,
            y_train,
            validation_data=(x_test, y_test),
            epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            verbose=2,
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=log_epoch)],
        )
        scores = model.predict(x_test, batch_size=256, verbose=0)
        guesses = scores.argmax(axis=1)
        accuracy = float((guesses == y_test).mean())
        mlflow.log_metric("test_accuracy", accuracy)
        mlflow.log_figure(confusion_figure(y_test, guesses), "confusion.png")
        logged = mlflow.keras.log_model(
            model,
            name="model",
            signature=mlflow.models.infer_signature(x_test, scores),
            pip_requirements=[f"{library.__name__}=={library.__version__}" for library in (tf, keras, np)],
        )

    print(f"{arguments.architecture}: test accuracy {accuracy:.4f}")
    sf.output("accuracy", accuracy)
    sf.output("model_uri", logged.model_uri)


if __name__ == "__main__":
    main()
