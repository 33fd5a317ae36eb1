"""The training step: trains a first model, or a challenger from labels, compared with the model in use."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.contract import TOLERANCE, Purpose, read_purpose
from scanflow.drift.detecting import MAX_LISTED, load_learnt_points, load_user_function
from scanflow.drift.evaluation import (
    check_target,
    compare_answers,
    compare_models,
    convert_labels,
    split_by_window,
    split_points,
)
from scanflow.drift.prediction_data import samples_of, step_tracker
from scanflow.drift.samples import Samples, compute_digests, concatenate_samples, list_first_occurrences, take_rows
from scanflow.drift.slices import CLEAN, CURRENT, Slice
from scanflow.drift.training_data import TrainingData
from scanflow.errors import InvalidError
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.labelled_points import LABELS_FILE, OF_LABELS, read_json
from scanflow.knowledge.mlflow import mlflow_models
from scanflow.outputs import output

_MAX_BATCHES = 1000


def retrain(
    fit: str,
    model_name: str,
    labels: str = "",
    model_uri: str = "",
    evaluate: str = "",
    data: str = "",
    alias: str = "champion",
    new_share: float = 0.4,
    train_size: int = 10_000,
    evaluation_share: float = 0.3,
    tolerance: float | None = None,
    seed: int = 1,
) -> None:
    """See :func:`scanflow.drift.workflows.retraining`."""
    mlflow_models.limit_logs()
    app, team = os.environ.get("SCANFLOW_APP", ""), os.environ.get("SCANFLOW_TEAM", "")
    np.random.seed(seed)  # what scikit-learn draws from unless it is told
    generator, tracker, learn = np.random.default_rng(seed), step_tracker(), load_user_function(fit)
    tags = {
        "scanflow.run": os.environ.get("SCANFLOW_RUN", ""),
        "scanflow.step": os.environ.get("SCANFLOW_STEP", "train"),
        **({} if tolerance is None else {TOLERANCE: f"{tolerance:g}"}),
    }
    if not labels:
        _train_first(tracker, app, team, learn, data, model_name, alias, evaluation_share, tolerance, tags)
        return
    address = model_uri or f"models:/{model_name}@{alias}"
    in_use = mlflow_models.resolve_version(address)
    training_data = TrainingData.load(tracker, app, team, model_name, in_use=in_use)
    check_target(training_data.y_train, tolerance)
    points, batch_ids = _load_labelled_points(tracker, app, team, labels)
    labelled = LabelledPoints.build(
        samples_of(tracker, points), points, batch_ids, training_data, evaluation_share, tolerance
    )
    example, y = training_data.x_train, training_data.y_train
    if evaluate:
        challenger = mlflow_models.load(evaluate)
    else:
        new_x, new_y = labelled.take(labelled.train)
        if not len(new_y):
            raise InvalidError(
                f"Of {len(points)} labelled points none can be used for training: they are for evaluation, or have "
                "labels that the model does not know."
            )
        example, y = _mix_samples(training_data, new_x, new_y, train_size, new_share, generator)
        print(f"Training on {len(y):,} samples, with {len(new_y):,} newly labelled")
        challenger = mlflow_models.FittedModel(_call_fit(learn, example, y, mlflow_models.load(address).native))
    champion = mlflow_models.load(address)  # not the one that fit() was given, which it may have taught in place
    learnt = {str(point.get("run")) for point in load_learnt_points(tracker, address)}
    parts = labelled.group_by_slice(learnt, _get_newest_window(tracker, points))
    slices = [
        compare_models(name, part_x, part_y, champion=champion, challenger=challenger, tolerance=tolerance)
        for name, (part_x, part_y) in parts.items()
        if len(part_y) or name == CURRENT
    ]
    before, after = (_compute_accuracy(slices[0], who) for who in ("champion", "challenger"))
    metrics = {"champion_accuracy": before, "challenger_accuracy": after}
    version = mlflow_models.resolve_version(evaluate) if evaluate else None
    if version is None:
        version = mlflow_models.register(
            challenger.native,
            model_name,
            x=take_rows(example, np.arange(min(8, len(y)))),
            tags=tags | {OF_LABELS: labels, "accuracy": f"{after:.4f}", "champion": address},
            params={"learnt_from": len(y), "newly_labelled": len(labelled.train), "seed": seed},
            metrics=metrics,
        )
    outputs = {"version": version, "champion_version": in_use, "labels": labels}
    for name, value in {**metrics, **outputs, "n_left_out": len(labelled.wrong)}.items():
        output(name, value)
    output("slices", [asdict(part) for part in slices])
    _print_slices(slices)
    print(f"Registered as models:/{model_name}/{version}; the champion is unchanged")


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledPoints:
    """Labelled points (n,), split into those for training and those for evaluation."""

    x: Samples
    y: NDArray[Any]
    windows: Sequence[str]
    digests: Sequence[str]
    train: NDArray[np.intp]
    evaluate: NDArray[np.intp]
    wrong: Sequence[int]
    """Indices of points with an invalid label."""

    clean: tuple[Samples, NDArray[Any]]

    @classmethod
    def build(
        cls,
        x: Samples,
        points: Sequence[Mapping[str, Any]],
        batch_ids: set[str],
        data: TrainingData,
        share: float,
        tolerance: float | None,
    ) -> LabelledPoints:
        """Split the points; only those with ids in ``batch_ids`` are for training."""
        y, wrong = convert_labels([point["label"] for point in points], data.y_train, tolerance)
        _print_wrong_labels(points, wrong)
        trained, clean, own = set(compute_digests(data.x_train)), compute_digests(data.x_clean), compute_digests(x)
        purposes: list[Purpose] = [read_purpose(point) for point in points]
        train, evaluate = split_points(own, purposes, share=share, trained=trained, clean=set(clean))
        unseen = [digest not in trained for digest in clean]
        return cls(
            x=x,
            y=y,
            windows=[str(point.get("run")) for point in points],
            digests=own,
            train=np.array([at for at in train if at not in wrong and points[at]["id"] in batch_ids], np.intp),
            evaluate=np.setdiff1d(evaluate, wrong),
            wrong=wrong,
            clean=(take_rows(data.x_clean, unseen), data.y_clean[unseen]),
        )

    def take(self, at: NDArray[np.intp]) -> tuple[Samples, NDArray[Any]]:
        return take_rows(self.x, at), self.y[at]

    def group_by_slice(self, learnt: set[str], newest: str) -> dict[str, tuple[Samples, NDArray[Any]]]:
        """Return the points of each slice by its name, the current window's first."""
        windows = [self.windows[int(at)] for at in self.evaluate]
        by_window = split_by_window(windows, learnt, newest)
        own = np.array(self.digests)
        parts = {name: self.evaluate[at] for name, at in by_window.items()}
        # What came in several windows counts once: it is one point, however often it was labelled.
        once = {name: at[list_first_occurrences(own[at])] for name, at in parts.items()}
        return {name: self.take(at) for name, at in once.items()} | {CLEAN: self.clean}


def _train_first(
    tracker: KnowledgeBase,
    app: str,
    team: str,
    learn: Callable[..., Any],
    data: str,
    model_name: str,
    alias: str,
    evaluation_share: float,
    tolerance: float | None,
    tags: Mapping[str, str],
) -> None:
    if not data:
        raise InvalidError(
            "There are no labels to train on. To train a first model, set its data: "
            "sf.drift.retraining(fit=..., data=...)"
        )
    training_data = TrainingData.split(*load_user_function(data)(), evaluation_share=evaluation_share)
    check_target(training_data.y_train, tolerance)
    model = mlflow_models.FittedModel(_call_fit(learn, training_data.x_train, training_data.y_train, None))
    accuracy = (
        float(compare_answers(model.predict(training_data.x_clean), training_data.y_clean, tolerance).mean())
        if len(training_data.y_clean)
        else 0.0
    )
    version = mlflow_models.register(
        model.native,
        model_name,
        x=take_rows(training_data.x_train, np.arange(min(8, len(training_data.y_train)))),
        tags={**tags, "accuracy": f"{accuracy:.4f}"},
        params={"learnt_from": len(training_data.y_train), "evaluated_by": len(training_data.y_clean)},
        metrics={"accuracy": accuracy},
    )
    in_use = _find_version(tracker, model_name, alias)
    is_first = in_use in {None, version}  # the same, where this step was interrupted
    if is_first or not TrainingData.exists(tracker, app, team, model_name):
        training_data.save(tracker, app, team, model_name, version=version)
    if is_first:
        tracker.set_model_alias(model_name, alias, version)
    output("version", version)
    output("accuracy", accuracy)
    n_train, n_clean = len(training_data.y_train), len(training_data.y_clean)
    print(f"Learnt from {n_train:,} samples; {accuracy:.1%} of {n_clean:,} others are right")
    if is_first:
        print(f"Registered as models:/{model_name}@{alias} (version {version})")
        return
    output("champion_version", in_use)
    print(f"Registered as models:/{model_name}/{version}. It was compared with nothing, so that version {in_use} stays")
    print(f"@{alias}. Put it to use by name: scanflow models promote {model_name} {version} --why TEXT")


def _find_version(tracker: KnowledgeBase, name: str, alias: str) -> int | None:
    """Return the version that the alias names; None: there is none yet."""
    return next((model.version for model in tracker.list_model_versions(name) if alias in model.aliases), None)


def _call_fit(learn: Callable[..., Any], x: Samples, y: NDArray[Any], model: Any) -> Any:
    """Call the user's ``fit(x, y)`` or ``fit(x, y, model)``, where ``model`` is the champion, or None at first."""
    try:
        inspect.signature(learn).bind(x, y, model)
    except TypeError:
        return learn(x, y)
    return learn(x, y, model)


def _load_labelled_points(
    tracker: KnowledgeBase, app: str, team: str, labels: str
) -> tuple[list[dict[str, Any]], set[str]]:
    """Load all labelled points with their newest labels; return them, and the ids of those in the run ``labels``."""
    batch = read_json(tracker, labels, LABELS_FILE)
    if not batch:
        raise InvalidError(f"The tracked run {labels!r} has no labelled points.")
    points: dict[str, dict[str, Any]] = {}
    for run in reversed(tracker.search_runs(app, team, "tags.`scanflow.kind` = 'labels'", limit=_MAX_BATCHES)):
        if run.run_id != labels:
            points |= {str(point["id"]): point for point in read_json(tracker, run.run_id, LABELS_FILE)}
    points |= {str(point["id"]): point for point in batch}
    return list(points.values()), {point["id"] for point in batch}


def _get_newest_window(tracker: KnowledgeBase, points: Sequence[Mapping[str, Any]]) -> str:
    windows = {str(point["data"]["tracked"]): str(point.get("run")) for point in points}
    return windows[max(windows, key=lambda tracked: str(tracker.get_run(tracked).ended_at))]


def _mix_samples(
    data: TrainingData, x: Samples, y: NDArray[Any], size: int, share: float, generator: np.random.Generator
) -> tuple[Samples, NDArray[Any]]:
    """Mix old and new samples; new ones are repeated up to about the share ``share``, each at least once."""
    if not 0 < share < 1:
        raise InvalidError(f"new_share={share} is not a share. Give more than 0, and less than 1.")
    old = generator.permutation(len(data.y_train))[:size]
    again = np.resize(generator.permutation(len(y)), max(len(y), round(len(old) * share / (1 - share))))
    mixed_x = concatenate_samples([take_rows(data.x_train, old), take_rows(x, again)])
    mixed_y = np.concatenate([data.y_train[old], y[again]])
    order = generator.permutation(len(mixed_y))
    return take_rows(mixed_x, order), mixed_y[order]


def _compute_accuracy(part: Slice, who: str) -> float:
    return float(getattr(part, f"{who}_right")) / part.n if part.n else 0.0


def _print_wrong_labels(points: Sequence[Mapping[str, Any]], wrong: Sequence[int]) -> None:
    if not wrong:
        return
    print(f"Left out {len(wrong)} of {len(points)} points, because the model does not know their labels:")
    for at in wrong[:MAX_LISTED]:
        print(f"  {points[at]['id']} is labelled {points[at]['label']!r}")
    print("Correct a label: scanflow labels --give ID=LABEL --replace")


def _print_slices(slices: Sequence[Slice]) -> None:
    print(f"{'slice':32}{'n':>6}{'champion':>10}{'challenger':>12}")
    for part in slices:
        champion, challenger = (_compute_accuracy(part, who) for who in ("champion", "challenger"))
        print(f"{part.name:32}{part.n:6}{champion:10.3f}{challenger:12.3f}")
