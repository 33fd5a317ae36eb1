"""Compare new pictures with those the model knows: has the data drifted, which are outliers, which should be labelled?

Leaves in its output folder: ``outliers.npz`` (index, id, x, value), ``picked.npz`` (index, id, x, guess, score), the
same points without pictures as ``picked.json``, ``metrics.json``, and the detector itself in ``detector/``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported: errors only
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")

import mlflow
import numpy as np
from steps.quiet import stderr_to

import scanflow as sf
from scanflow.drift.detectors import catalogue
from scanflow.drift.detectors.critical import CriticalPoint, pick, uncertainty_of
from scanflow.drift.detectors.port import Fitted, Scores
from scanflow.drift.table import main_directions
from scanflow.errors import ScanflowError

DIRECTIONS = 16  # in which pictures are told apart, so that those picked are of many kinds


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference_path", required=True, help="pictures that the model knows, (n, 28, 28), .npy")
    parser.add_argument("--new_path", required=True, help="pictures that came since, (n, 28, 28), .npy")
    parser.add_argument("--ids_path", default="", help="what names each new picture: a JSON list; else their numbers")
    parser.add_argument("--predicted_in", default="", help="the run in which they were predicted")
    parser.add_argument("--detector", choices=catalogue.names(), default="default")
    parser.add_argument("--options", default="{}", help='of the detector, as JSON: {"level": 0.001}')
    parser.add_argument("--detector_path", default="", help="the folder of a fitted one, instead of fitting one")
    parser.add_argument("--reference_size", type=int, default=2000, help="so many of the reference, drawn at random")
    parser.add_argument("--model_uri", default="", help="the model that predicts: it says what it is unsure of")
    parser.add_argument("--picks", type=int, default=100, help="how many points to pick at most, if there is drift")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.detector == "prior" and not arguments.model_uri:
        parser.error("--detector prior compares predictions: give the --model_uri that makes them")
    return arguments


def read(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        sys.exit(f"Error: {path} cannot be read as an .npy file ({error}).")


def names(path: str, count: int) -> list[str]:
    if not path:
        return [f"{number:06d}" for number in range(count)]
    ids = [str(name) for name in json.loads(Path(path).read_text(encoding="utf-8"))]
    if len(ids) != count:
        sys.exit(f"Error: {path} has {len(ids)} ids for {count} pictures. Give one for each.")
    return ids


def drawn(x: Any, most: int, generator: np.random.Generator) -> Any:
    """Return ``most`` drawn at random: the first ones of a data set are seldom like the rest."""
    return x if len(x) <= most else x[np.sort(generator.choice(len(x), most, replace=False))]


def predictions(model_uri: str, *batches: Any) -> list[Any]:
    """Return the model's scores (n, 10) of each batch; without a model, scores that say nothing."""
    if not model_uri:
        return [np.tile(np.eye(10)[0], (len(x), 1)) for x in batches]
    from retrain import keras_model

    model = keras_model(model_uri)
    return [model.predict(x, batch_size=256, verbose=0) for x in batches]


def picked(arguments: argparse.Namespace, x: Any, scores: Any, found: Scores) -> list[CriticalPoint]:
    """Return what should be labelled: nothing, while nothing has drifted."""
    if not found.drifted:
        return []
    return pick(
        ids=names(arguments.ids_path, len(x)),
        runs=[arguments.predicted_in] * len(x),
        guesses=scores.argmax(axis=1).tolist() if arguments.model_uri else [-1] * len(x),
        strangeness=found.values,
        uncertainty=uncertainty_of(scores),
        outliers=found.outliers,
        features=main_directions(x.reshape(len(x), -1), DIRECTIONS),
        most=arguments.picks,
    )


def fitted(arguments: argparse.Namespace, reference: Any, predicted: Any, generator: np.random.Generator) -> Fitted:
    if arguments.detector_path:
        return catalogue.load(Path(arguments.detector_path))
    options = json.loads(arguments.options)
    detector = catalogue.make(arguments.detector, generator=generator, options=options)
    return catalogue.fit(detector, reference, predicted=predicted)


def write(folder: Path, x: Any, ids: list[str], found: Scores, points: list[CriticalPoint]) -> None:
    outliers, chosen = found.outliers, [point.index for point in points]
    np.savez_compressed(
        folder / "outliers.npz",
        index=outliers,
        id=np.array([ids[at] for at in outliers], dtype=np.str_),
        x=x[outliers],
        value=found.values[outliers],
    )
    np.savez_compressed(
        folder / "picked.npz",
        index=np.array(chosen, dtype=np.intp),
        id=np.array([point.id for point in points], dtype=np.str_),
        x=x[chosen],
        guess=np.array([point.guess for point in points], dtype=np.int64),
        score=np.array([point.score for point in points]),
    )
    (folder / "picked.json").write_text(json.dumps([point.model_dump() for point in points]), encoding="utf-8")


def main() -> None:
    arguments = arguments_of()
    folder, generator = sf.output_dir(), np.random.default_rng(arguments.seed)
    reference, x = read(arguments.reference_path), read(arguments.new_path)
    ids = names(arguments.ids_path, len(x))
    try:
        reference = drawn(reference, arguments.reference_size, generator)
        with stderr_to(folder / "tensorflow.log"):
            scores_known, scores = predictions(arguments.model_uri, reference, x)
            given = bool(arguments.model_uri)
            detector = fitted(arguments, reference, scores_known if given else None, generator)
            found = catalogue.score(detector, x, predicted=scores if given else None)
        points = picked(arguments, x, scores, found)
        detector.save(folder / "detector")
    except ScanflowError as error:
        sys.exit(f"Error: {error}")
    write(folder, x, ids, found, points)

    metrics = {
        "n_newdata": len(x),
        "n_anomalies": len(found.outliers),
        "n_picked": len(points),
        "drifted": int(found.drifted),
        "statistic": found.statistic,
        "threshold": found.threshold,
    } | ({} if found.p_value is None else {"p_value": found.p_value})
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")
    with mlflow.start_run(run_name=os.environ.get("SCANFLOW_STEP", "detect")):
        mlflow.set_tags({"scanflow.run": os.environ.get("SCANFLOW_RUN", ""), "predicted_in": arguments.predicted_in})
        mlflow.log_params({"detector": arguments.detector, "reference_size": len(reference), "seed": arguments.seed})
        mlflow.log_metrics(metrics)
        for name in ("metrics.json", "outliers.npz", "picked.json", "picked.npz"):
            mlflow.log_artifact(str(folder / name))

    verdict = "drifted" if found.drifted else "no drift"
    print(f"{arguments.detector}: {verdict} ({found.statistic:.4g}, alarm above {found.threshold:.4g})")
    print(f"{len(found.outliers)} of {len(x)} pictures are outliers; {len(points)} samples selected for labelling")
    for name, value in metrics.items():
        sf.output(name, value)
    sf.output("columns", [asdict(one) for one in found.columns[:10]])
    sf.output("picked_path", (folder / "picked.npz").absolute())


if __name__ == "__main__":
    main()
