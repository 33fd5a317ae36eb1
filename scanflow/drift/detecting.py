"""The step of a detection: what was predicted since the last look, compared with what the model in use knows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from scanflow.drift.contract import MOST_COLUMNS
from scanflow.drift.detectors import catalogue
from scanflow.drift.detectors.critical import CriticalPoint, uncertainty_of
from scanflow.drift.detectors.port import Floats, Scores
from scanflow.drift.evaluation import right
from scanflow.drift.performance import LEAST, Calibration
from scanflow.drift.prediction_data import PredictionData, Prepare, collect, step_tracker
from scanflow.drift.samples import Samples, digests, firsts, is_table, joined, packed, rows
from scanflow.drift.selection import select
from scanflow.drift.slices import CLEAN, window_named
from scanflow.drift.table import DataTable, main_directions
from scanflow.drift.training_data import TrainingData
from scanflow.drift.two_sample import joint_features
from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge.labels import LABELS_FILE, OF_LABELS, read_json
from scanflow.knowledge.mlflow import models
from scanflow.knowledge.port import KnowledgeBase
from scanflow.modules import load_function
from scanflow.outputs import output, output_dir

DIRECTIONS = 16  # in which samples are told apart, so that those picked are of many kinds
TOLD = 20


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
    models.quiet()
    address, model_uri = model_uri, models.pinned(model_uri)
    app, team, run = (os.environ.get(f"SCANFLOW_{name}", "") for name in ("APP", "TEAM", "RUN"))
    folder, generator, tracker = output_dir(), np.random.default_rng(seed), step_tracker()
    data = TrainingData.load(tracker, app, team, model_name)
    prepared = user_function(prepare) if prepare else None
    read = partial(_predictions, tracker, like=data.x_reference, prepare=prepared, input_name=input_name)
    everything = read(run_ids)
    new = _distinct(everything)
    known = {CLEAN: data.x_reference, **_learnt(tracker, model_uri, read)}
    model = models.load(model_uri)
    guesses, probabilities = model.predict(new.x), model.probabilities(new.x)

    def score(regimes: Sequence[Samples]) -> Scores:
        drawn = [_drawn(missing_as_in(data.x_reference, one), reference_size, generator) for one in regimes]
        reference, numbers = joined(drawn), np.repeat(np.arange(len(drawn)), [len(one) for one in drawn])
        made = catalogue.make(detector, generator=generator, options=options)
        fitted = catalogue.fit(made, reference, regimes=numbers, predicted=model.probabilities(reference))
        return catalogue.score(fitted, missing_as_in(data.x_reference, new.x), predicted=probabilities)

    found = score([*known.values()])
    before = _pending(pending or [], read) if found.drifted else None
    same = before is not None and not score([*known.values(), before]).drifted
    points = _points(new, found, guesses, probabilities, budget, evaluation_share, generator)
    _write(folder, new.x, points)
    figures: dict[str, Any] = {
        "drifted": int(found.drifted),
        "n_newdata": len(everything.x),
        "n_anomalies": len(found.outliers),
        "n_picked": len(points),
        "n_evaluation": sum(one.purpose == "evaluate" for one in points),
        "n_left_out": new.n_left_out,
        "statistic": float(found.statistic),
        "threshold": float(found.threshold),
    } | ({} if found.p_value is None else {"p_value": float(found.p_value)})
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
    for key, value in {**figures, **_estimated(model, data, probabilities)}.items():
        output(key, value)
    output("model_uri", address)
    output("model_version", models.version_of(model_uri))
    output("same_drift", int(same))
    output("regimes", {} if found.drifted else dict(zip(known, found.regimes, strict=False)))
    output("columns", [asdict(one) for one in found.columns[:MOST_COLUMNS]])
    output("run_ids", run_ids)  # those that were left out too: they were looked at
    output("picked_path", (folder / "picked.npz").absolute())
    verdict = "drifted as before" if same else "drifted" if found.drifted else "no drift"
    print(f"{detector}: {verdict} ({found.statistic:.4g}, alarm above {found.threshold:.4g})")
    print(f"{len(found.outliers)} of {len(new.x)} samples are outliers; {len(points)} samples selected for labelling")
    if new.left_out:
        rest = [f"and {len(new.left_out) - TOLD} more files"] if len(new.left_out) > TOLD else []
        print(f"Left out, as they do not fit: {new.n_left_out:,}", *new.left_out[:TOLD], *rest, sep="\n  ")


def _estimated(model: models.FittedModel, data: TrainingData, probabilities: Any) -> dict[str, float]:
    """Return the accuracy to be expected of new predictions, by the model's scores, and that on clean data."""
    if probabilities is None or len(data.y_clean) < LEAST:
        return {}
    answers = right(model.predict(data.x_clean), data.y_clean, None)
    found = Calibration.of(model.probabilities(data.x_clean), answers).estimate(probabilities)
    estimate = {"estimated_accuracy": found.value, "estimated_low": found.low, "estimated_high": found.high}
    return {**estimate, "expected_accuracy": float(answers.mean())}


def user_function(locator: str) -> Any:
    """Return the function at ``file.py:name``, in the application's folder, or ``package.module:name``."""
    place = locator.partition(":")[0]
    return load_function(locator, Path(place).resolve() if place.endswith(".py") else None)


def points_learnt(tracker: KnowledgeBase, model_uri: str) -> list[dict[str, Any]]:
    """Return the labelled points that the version at an address has learnt from; none, if it is a first model."""
    labels = models.tags_of(model_uri).get(OF_LABELS)
    return read_json(tracker, labels, LABELS_FILE) if labels else []


def _predictions(
    tracker: KnowledgeBase, run_ids: Sequence[str], *, like: Samples, prepare: Prepare | None, input_name: str | None
) -> PredictionData:
    columns = [str(one) for one in like.columns] if is_table(like) else None
    found = collect(tracker, run_ids, input_name=input_name, prepare=prepare, columns=columns)
    if columns is None and found.x.shape[1:] != like.shape[1:]:
        raise InvalidError(
            f"The predictions have samples of the shape {found.x.shape[1:]}, the training data of {like.shape[1:]}. "
            "Make them alike: sf.drift.detection(prepare='file.py:function')"
        )
    return found if columns is not None else replace(found, x=_of_type(found.x, like.dtype))


def missing_as_in(like: Samples, x: Samples) -> Samples:
    """Return a table in which empty text is a missing value wherever ``like`` has none: a request can say it no other
    way. What is no table is returned as it is."""
    if not is_table(x):
        return x
    texts = [name for name in x.columns if x[name].dtype.kind == "O" and not (like[name] == "").any()]
    return x.assign(**{name: x[name].where(x[name] != "", None) for name in texts}) if texts else x


def _distinct(data: PredictionData) -> PredictionData:
    """Return pictures once each: the tests take samples as drawn independently, and what is sent again is not. Rows of
    tables may well be alike."""
    if is_table(data.x) or data.x.ndim < 3:
        return data
    first = firsts(digests(data.x))
    return replace(data, x=data.x[first], ids=[data.ids[at] for at in first])


def _of_type(x: Samples, dtype: Any) -> Samples:
    """Return an array of that type of number where nothing is lost by it."""
    with np.errstate(invalid="ignore"):
        other = x.astype(dtype)
    return other if np.array_equal(other, x) else x


def _learnt(
    tracker: KnowledgeBase, model_uri: str, read: Callable[[Sequence[str]], PredictionData]
) -> dict[str, Samples]:
    """Return the predictions of each window that the model in use has learnt from, as far as they are still kept, by
    the window's name."""
    windows: dict[str, set[str]] = {}
    for point in points_learnt(tracker, model_uri):
        windows.setdefault(str(point.get("run")), set()).add(str(point["id"]).rpartition(":")[0])
    found: dict[str, Samples] = {}
    for run, batches in sorted(windows.items()):
        try:
            found[window_named(run)] = _distinct(read(sorted(batches - {""}))).x
        except (NotFoundError, InvalidError) as error:
            print(f"What the model has learnt of run {run} is not compared with: {error}")
    return found


def _pending(run_ids: Sequence[str], read: Callable[[Sequence[str]], PredictionData]) -> Samples | None:
    """Return the predictions of windows in which drift was found before; None: there are none any more."""
    try:
        return _distinct(read(run_ids)).x if run_ids else None
    except (NotFoundError, InvalidError) as error:
        print(f"It is not compared with the drift of before: {error}")
        return None


def _drawn(x: Samples, most: int, generator: np.random.Generator) -> Samples:
    """Return ``most`` drawn at random: the first ones of a data set are seldom like the rest."""
    return x if len(x) <= most else rows(x, np.sort(generator.choice(len(x), most, replace=False)))


def _points(
    new: PredictionData,
    found: Scores,
    guesses: Any,
    probabilities: Any,
    budget: int,
    evaluation_share: float,
    generator: np.random.Generator,
) -> list[CriticalPoint]:
    """Return what should be labelled: nothing, while nothing has drifted."""
    if not found.drifted:
        return []
    return select(
        new.x,
        ids=new.ids,
        runs=[one.rpartition(":")[0] for one in new.ids],
        guesses=guesses.tolist(),
        strangeness=found.values,
        uncertainty=np.zeros(len(new.x)) if probabilities is None else uncertainty_of(probabilities),
        outliers=found.outliers,
        features=_features(new.x),
        most=budget,
        evaluation_share=evaluation_share,
        generator=generator,
    )


def _features(x: Samples) -> Floats:
    """Return where samples lie that are alike close together, (n, features)."""
    if not is_table(x):
        return main_directions(x.reshape(len(x), -1), DIRECTIONS)
    columns = DataTable.of(x).columns.values()
    return joint_features([(one, one.codes(rare=1)) for one in columns])[0].astype(np.float64)


def _write(folder: Path, x: Samples, points: Sequence[CriticalPoint]) -> None:
    chosen = [one.index for one in points]
    arrays = packed("x", rows(x, chosen)) | {
        "index": np.array(chosen, dtype=np.intp),
        "id": np.array([one.id for one in points], dtype=np.str_),
        "guess": np.array([one.guess for one in points]),
        "score": np.array([one.score for one in points]),
        "purpose": np.array([one.purpose for one in points], dtype=np.str_),
    }
    np.savez_compressed(folder / "picked.npz", **cast("dict[str, Any]", arrays))
    (folder / "picked.json").write_text(json.dumps([one.model_dump() for one in points]), encoding="utf-8")
