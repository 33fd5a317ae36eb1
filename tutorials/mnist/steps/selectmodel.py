"""Compare the trained networks by test accuracy, and with the champion; register the best one as the champion."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

import mlflow
from mlflow.entities.model_registry import ModelVersion

import scanflow as sf

ALIAS = "champion"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_name", default="mnist_cnn", help="the name in MLflow's model registry")
    parser.add_argument("--trained_on", default="unknown", help="description of the data, for the log")
    parser.add_argument("--dataset_path", default="", help="the training data to save, an .npz file")
    for name in ("cnn1", "cnn2"):
        parser.add_argument(f"--accuracy_{name}", type=float, required=True)
        parser.add_argument(f"--model_{name}", required=True)
    arguments = parser.parse_args()

    candidates = {
        "cnn1": (arguments.accuracy_cnn1, arguments.model_cnn1),
        "cnn2": (arguments.accuracy_cnn2, arguments.model_cnn2),
    }
    best = max(candidates, key=lambda name: candidates[name][0])
    accuracy, model_uri = candidates[best]
    run = os.environ.get("SCANFLOW_RUN", "")
    tags = {"accuracy": f"{accuracy:.4f}", "data": arguments.trained_on, "scanflow.run": run}

    client = mlflow.MlflowClient()
    known = client.search_model_versions(f"name='{arguments.model_name}'")
    version = next((old.version for old in known if old.source == model_uri), None)
    if arguments.dataset_path:
        with mlflow.start_run(run_name="dataset"):
            of_model = {"scanflow.kind": "dataset", "scanflow.model": arguments.model_name}
            mlflow.set_tags({**of_model, "scanflow.run": run, "data": arguments.trained_on})
            mlflow.log_artifact(arguments.dataset_path)
    if version is None:  # else this step was interrupted right after it registered the model
        version = mlflow.register_model(model_uri, arguments.model_name, tags=tags).version
    champion = find_champion(client, arguments.model_name)
    stays = None if champion is None or champion.version == version else explain_stay(champion.tags, tags)
    if stays is None:
        client.set_registered_model_alias(arguments.model_name, ALIAS, version)

    print(f"{'network':10}{'test accuracy':>15}")
    for name, (score, _) in candidates.items():
        print(f"{name:10}{score:15.4f}{'   <- ' + ALIAS if name == best else ''}")
    if stays is None or champion is None:
        print(f"Registered as models:/{arguments.model_name}@{ALIAS} (version {version})")
    else:
        print(f"Registered as models:/{arguments.model_name}/{version}")
        print(f"Version {champion.version} stays @{ALIAS}: {stays}")
        print(f"Put it to use by name: scanflow models promote {arguments.model_name} {version}")
    if mlflow.get_tracking_uri().startswith("sqlite:"):
        print(f"Show it: mlflow ui --backend-store-uri {mlflow.get_tracking_uri()}")
    sf.output("best", best)
    sf.output("accuracy", accuracy)
    sf.output("model", f"models:/{arguments.model_name}@{ALIAS}")
    sf.output("version", version)


def find_champion(client: mlflow.MlflowClient, name: str) -> ModelVersion | None:
    """Return the version that the alias names; None: there is none yet."""
    aliases = client.get_registered_model(name).aliases
    return client.get_model_version(name, aliases[ALIAS]) if ALIAS in aliases else None


def explain_stay(champion: Mapping[str, str], challenger: Mapping[str, str]) -> str | None:
    """Return why the champion stays in use; None: the challenger is better on the same test data."""
    if champion.get("data") != challenger["data"]:
        return "it was trained on other data, so the accuracies cannot be compared"
    known, own = float(champion.get("accuracy", "inf")), float(challenger["accuracy"])
    return None if own > known else f"its accuracy is {known:.4f}, the new one's {own:.4f}"


if __name__ == "__main__":
    main()
