"""Train one small network of scikit-learn, test it, and log it to MLflow, as ``modeling.py`` does with TensorFlow."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path

import mlflow
import numpy as np

import scanflow as sf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import smallnet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--trained_on", default="unknown", help="description of the data, for the log")
    for name in ("x_train", "y_train", "x_test", "y_test"):
        parser.add_argument(f"--{name}_path", required=True)
    arguments = parser.parse_args()

    x_train, y_train = np.load(arguments.x_train_path), np.load(arguments.y_train_path)
    x_test, y_test = np.load(arguments.x_test_path), np.load(arguments.y_test_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = smallnet.network(arguments.units).fit(x_train, y_train)
    accuracy = float(model.score(x_test, y_test))
    with mlflow.start_run(run_name=os.environ.get("SCANFLOW_STEP", "smallmodel")):
        mlflow.set_tags({"scanflow.run": os.environ.get("SCANFLOW_RUN", ""), "data": arguments.trained_on})
        mlflow.log_params({"units": arguments.units, "train_size": len(x_train)})
        mlflow.log_metric("test_accuracy", accuracy)
        trusted = ["numpy.reshape", "sklearn.neural_network._stochastic_optimizers.AdamOptimizer"]
        logged = mlflow.sklearn.log_model(
            model, name="model", input_example=x_test[:1], serialization_format="skops", skops_trusted_types=trusted
        )
    print(f"Right on {accuracy:.1%} of {len(x_test):,} digits")
    sf.output("accuracy", accuracy)
    sf.output("model_uri", logged.model_uri)


if __name__ == "__main__":
    main()
