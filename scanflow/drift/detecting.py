"""The detection step: compares new predictions with the regimes that the model in use was trained on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.column_types import convert_to_same_kind
from scanflow.drift.contract import MAX_COLUMNS
from scanflow.drift.detectors import catalogue
from scanflow.drift.detectors.detector_port import Floats, Scores
from scanflow.drift.evaluation import compare_answers
from scanflow.drift.performance import MIN_SAMPLES, Calibration
from scanflow.drift.prediction_data import PredictionData, Prepare, collect, step_tracker
from scanflow.drift.samples import (
    Samples,
    compute_digests,
    concatenate_samples,
    is_table,
    list_first_occurrences,
    pack_samples,
    take_rows,
)
from scanflow.drift.selection import CriticalPoint, ScoredSamples, compute_uncertainty, select
from scanflow.drift.slices import CLEAN, format_window_name
from scanflow.drift.table import DataTable, project_on_main_directions
from scanflow.drift.training_data import TrainingData
from scanflow.drift.two_sample import compute_joint_features
from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.labelled_points import LABELS_FILE, OF_LABELS, read_json
from scanflow.knowledge.mlflow import mlflow_models
from scanflow.modules import load_function
from scanflow.outputs import output, output_dir
from scanflow.tables.columns import replace_columns

DIRECTIONS = 16  # in which samples are told apart, so that those picked are of many kinds
MAX_LISTED = 20


def detect(
    run_ids: list[str],
    model_name: str,
    model_uri: str,
    detector: str = "default",
    options: dict[str, Any] | None = None,
    prepare: str = "",
    input_name: str | None = None,
    budget: int = 600,
    evaluation_share: float = 0.3,
    reference_size: int = 2000,
    seed: int = 1,
    pending: list[str] | None = None,
) -> None:
    """See :func:`scanflow.drift.workflows.detection`."""
    mlflow_models.limit_logs()
    address, model_uri = model_uri, mlflow_models.pin_version(model_uri)
    app, team, run = (os.environ.get(f"SCANFLOW_{name}", "") for name in ("APP", "TEAM", "RUN"))
    folder, generator, tracker = output_dir(), np.random.default_rng(seed), step_tracker()
    in_use = mlflow_models.resolve_version(model_uri)
    data = TrainingData.load(tracker, app, team, model_name, in_use=in_use)
    prepare_function = load_user_function(prepare) if prepare else None
    read = partial(
        _collect_predictions, tracker, like=data.x_reference, prepare=prepare_function, input_name=input_name
    )
    everything = read(run_ids)
    new = drop_repeated_pictures(everything)
    known_regimes = {CLEAN: data.x_reference, **_load_learnt_windows(tracker, model_uri, read)}
    model = mlflow_models.load(model_uri)
    guesses, probabilities = model.predict(new.x), model.predict_probabilities(new.x)

    def score(regimes: Sequence[Samples]) -> Scores:
        drawn = [
            _draw_samples(restore_missing(data.x_reference, regime), reference_size, generator) for regime in regimes
        ]
        reference, numbers = (
            concatenate_samples(drawn),
            np.repeat(np.arange(len(drawn)), [len(samples) for samples in drawn]),
        )
        instance = catalogue.make(detector, generator=generator, options=options)
        fitted = catalogue.fit(instance, reference, regimes=numbers, predicted=model.predict_probabilities(reference))
        return catalogue.score(fitted, restore_missing(data.x_reference, new.x), predicted=probabilities)

    scores = score([*known_regimes.values()])
    before = _load_pending_windows(pending or [], read) if scores.drifted else None
    same = before is not None and not score([*known_regimes.values(), before]).drifted
    points = _select_points(new, scores, guesses, probabilities, budget, evaluation_share, generator)
    _write_points(folder, new.x, points)
    figures: dict[str, Any] = {
        "drifted": int(scores.drifted),
        "n_newdata": len(everything.x),
        "n_samples": len(new.x),
        "n_anomalies": len(scores.outliers),
        "n_picked": len(points),
        "n_evaluation": sum(point.purpose == "evaluate" for point in points),
        "n_left_out": new.n_left_out,
        "statistic": float(scores.statistic),
        "threshold": float(scores.threshold),
    } | ({} if scores.p_value is None else {"p_value": float(scores.p_value)})
    tags = {
        "scanflow.run": run,
        "scanflow.step": os.environ.get("SCANFLOW_STEP", "detect"),
        "scanflow.model": model_name,
    }
    tracker.log_run(
        app,
        team,
        name="detect",
        tags=tags,
        params={"detector": detector, "model": model_uri},
        metrics=figures,
        artifacts=folder,
    )
    for key, value in {**figures, **_estimate_accuracy(model, data, probabilities)}.items():
        output(key, value)
    output("model_uri", address)
    output("model_version", in_use)
    output("same_drift", int(same))
    output("regimes", {} if scores.drifted else dict(zip(known_regimes, scores.regimes, strict=False)))
    output("columns", [asdict(column) for column in scores.columns[:MAX_COLUMNS]])
    output("run_ids", run_ids)  # those that were left out too: they were looked at
    output("picked_path", (folder / "picked.npz").absolute())
    verdict = "drifted as before" if same else "drifted" if scores.drifted else "no drift"
    print(f"{detector}: {verdict} ({scores.statistic:.4g}, alarm above {scores.threshold:.4g})")
    print(f"{len(scores.outliers)} of {len(new.x)} samples are outliers; {len(points)} samples selected for labelling")
    if new.left_out:
        rest = [f"and {len(new.left_out) - MAX_LISTED} more files"] if len(new.left_out) > MAX_LISTED else []
        print(f"Skipped, because they do not fit: {new.n_left_out:,}", *new.left_out[:MAX_LISTED], *rest, sep="\n  ")


def _estimate_accuracy(model: mlflow_models.FittedModel, data: TrainingData, probabilities: Any) -> dict[str, float]:
    """Estimate the accuracy on new predictions from the model's scores, and return it with that on clean data."""
    if probabilities is None or len(data.y_clean) < MIN_SAMPLES:
        return {}
    answers = compare_answers(model.predict(data.x_clean), data.y_clean, None)
    accuracy = Calibration.fit(model.predict_probabilities(data.x_clean), answers).estimate(probabilities)
    estimate = {"estimated_accuracy": accuracy.value, "estimated_low": accuracy.low, "estimated_high": accuracy.high}
    return {**estimate, "expected_accuracy": float(answers.mean())}


def load_user_function(locator: str) -> Any:
    """Load the function at ``file.py:name``, in the application's folder, or at ``package.module:name``."""
    place = locator.partition(":")[0]
    return load_function(locator, Path(place).resolve() if place.endswith(".py") else None)


def load_learnt_points(tracker: KnowledgeBase, model_uri: str) -> list[dict[str, Any]]:
    """Return the labelled points a model version was trained on; none for a first model."""
    labels = mlflow_models.get_version_tags(model_uri).get(OF_LABELS)
    return read_json(tracker, labels, LABELS_FILE) if labels else []


def _collect_predictions(
    tracker: KnowledgeBase, run_ids: Sequence[str], *, like: Samples, prepare: Prepare | None, input_name: str | None
) -> PredictionData:
    columns = [str(name) for name in like.columns] if is_table(like) else None
    predictions = collect(tracker, run_ids, input_name=input_name, prepare=prepare, columns=columns)
    if columns is None and predictions.x.shape[1:] != like.shape[1:]:
        shape = predictions.x.shape[1:]
        raise InvalidError(
            f"The predictions have samples of the shape {shape}, the training data of {like.shape[1:]}. "
            "Convert them to one shape: sf.drift.detection(prepare='file.py:function')"
        )
    if columns is not None:
        return replace(predictions, x=restore_times(like, predictions.x))
    return replace(predictions, x=_cast_if_exact(predictions.x, like.dtype))


def restore_times(like: Samples, x: Samples) -> Samples:
    """Return a table whose texts are date-times in the columns in which ``like`` has these: requests have no other way
    to encode them. A column with a text that is none stays as it is."""
    times: dict[str, NDArray[Any]] = {}
    for name in x.columns:
        if like[name].dtype.kind == "M" and x[name].dtype.kind == "O":
            texts = x[name].where(x[name] != "", None).to_numpy()
            _, times[name], note = convert_to_same_kind(str(name), like[name].to_numpy(), texts)
            if times[name].dtype.kind == "O":
                print(note)
    return replace_columns(x, times)


def restore_missing(like: Samples, x: Samples) -> Samples:
    """Replace empty text by missing values in columns where ``like`` has no empty text: requests have no other way to
    encode them. Arrays are returned unchanged."""
    if not is_table(x):
        return x
    texts = [name for name in x.columns if x[name].dtype.kind == "O" and not (like[name] == "").any()]
    return replace_columns(x, {name: x[name].where(x[name] != "", None) for name in texts})


def drop_repeated_pictures(data: PredictionData) -> PredictionData:
    """Drop repeated pictures: the tests assume independent samples, and one that is sent again is not. Tables keep
    equal rows."""
    if is_table(data.x) or data.x.ndim < 3:
        return data
    first = list_first_occurrences(compute_digests(data.x))
    return replace(data, x=data.x[first], ids=[data.ids[at] for at in first])


def _cast_if_exact(x: Samples, dtype: Any) -> Samples:
    """Cast an array to a dtype if all values stay equal; else return it unchanged."""
    with np.errstate(invalid="ignore"):
        other = x.astype(dtype)
    return other if np.array_equal(other, x) else x


def _load_learnt_windows(
    tracker: KnowledgeBase, model_uri: str, read: Callable[[Sequence[str]], PredictionData]
) -> dict[str, Samples]:
    """Return the predictions of each window that the model in use was trained on, by slice name, where they still
    exist."""
    windows: dict[str, set[str]] = {}
    for point in load_learnt_points(tracker, model_uri):
        windows.setdefault(str(point.get("run")), set()).add(str(point["id"]).rpartition(":")[0])
    samples: dict[str, Samples] = {}
    for run, batches in sorted(windows.items()):
        try:
            samples[format_window_name(run)] = drop_repeated_pictures(read(sorted(batches - {""}))).x
        except (NotFoundError, InvalidError) as error:
            print(f"The samples that the model learnt from run {run} are not compared: {error}")
    return samples


def _load_pending_windows(run_ids: Sequence[str], read: Callable[[Sequence[str]], PredictionData]) -> Samples | None:
    """Return the predictions of earlier windows with drift that no model has learnt; None: none exist any more."""
    try:
        return drop_repeated_pictures(read(run_ids)).x if run_ids else None
    except (NotFoundError, InvalidError) as error:
        print(f"The drift is not compared with earlier drift: {error}")
        return None


def _draw_samples(x: Samples, most: int, generator: np.random.Generator) -> Samples:
    """Draw at most ``most`` samples at random: the first ones of a data set are seldom representative."""
    return x if len(x) <= most else take_rows(x, np.sort(generator.choice(len(x), most, replace=False)))


def _select_points(
    new: PredictionData,
    scores: Scores,
    guesses: Any,
    probabilities: Any,
    budget: int,
    evaluation_share: float,
    generator: np.random.Generator,
) -> list[CriticalPoint]:
    """Select the points to label; none without drift."""
    if not scores.drifted:
        return []
    samples = ScoredSamples(
        ids=new.ids,
        runs=[sample_id.rpartition(":")[0] for sample_id in new.ids],
        guesses=guesses.tolist(),
        strangeness=scores.values,
        uncertainty=np.zeros(len(new.x)) if probabilities is None else compute_uncertainty(probabilities),
        outliers=scores.outliers,
        features=_compute_features(new.x),
    )
    return select(new.x, samples, most=budget, evaluation_share=evaluation_share, generator=generator)


def _compute_features(x: Samples) -> Floats:
    """Return features (n, d) in which similar samples are close."""
    if not is_table(x):
        return project_on_main_directions(x.reshape(len(x), -1), DIRECTIONS)
    columns = DataTable.from_data(x).columns.values()
    return compute_joint_features([(column, column.compute_codes(rare=1)) for column in columns])[0].astype(np.float64)


def _write_points(folder: Path, x: Samples, points: Sequence[CriticalPoint]) -> None:
    chosen = [point.index for point in points]
    arrays = pack_samples("x", take_rows(x, chosen)) | {
        "index": np.array(chosen, dtype=np.intp),
        "id": np.array([point.id for point in points], dtype=np.str_),
        "guess": np.array([point.guess for point in points]),
        "score": np.array([point.score for point in points]),
        "purpose": np.array([point.purpose for point in points], dtype=np.str_),
    }
    np.savez_compressed(folder / "picked.npz", **cast("dict[str, Any]", arrays))
    (folder / "picked.json").write_text(json.dumps([point.model_dump() for point in points]), encoding="utf-8")
