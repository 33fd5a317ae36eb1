"""Ready-made workflows for agents: a detection for the checker, a training for the planner. See docs/own-data.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from scanflow.app.executor import Executor
from scanflow.app.resources import Resources
from scanflow.app.workflow import Workflow
from scanflow.errors import InvalidError

Function: TypeAlias = Callable[..., Any] | str
"""A function defined in a file of the application, or its location: ``file.py:name``, ``package.module:name``."""


def detection(
    *,
    model: str,
    alias: str = "champion",
    name: str = "detector",
    detector: str = "default",
    options: Mapping[str, Any] | None = None,
    prepare: Function | None = None,
    input_name: str | None = None,
    budget: int = 600,
    evaluation_share: float = 0.3,
    reference_size: int = 2000,
    resources: Resources | None = None,
    seed: int = 1,
) -> Workflow:
    """Return the workflow that a checker runs: it compares new predictions with the data the model in use has learnt.

    That is the data :func:`retraining` first trained it on, and the windows it has learnt since. If the data drifted,
    points are selected for labelling, for training and for evaluation.

    Args:
        model: The registered model's name.
        alias: What names its version in use.
        name: The workflow's name.
        detector: One that is installed; ``default``: by the kind of data, tables or pictures.
        options: Of the detector.
        prepare: Makes what a file recorded of one input, (n, ...), into samples like those of the training data.
        input_name: Which input of the service; None: the only one, or all columns of a table.
        budget: The most points to be labelled for one window. Of 600, 180 are for evaluation: these see a gain of 10
            points in four cases of five, and 60 of 200 one of 20 points (docs/science.md).
        evaluation_share: The share of these that is drawn at random, for evaluation alone, 0 to 1. Keep it as it is
            for as long as the model is in use, and the same as in :func:`retraining`.
        reference_size: So many samples of what is known are compared with, drawn at random.
        resources: Of its step.
        seed: Of what is drawn.
    """
    parameters: dict[str, Any] = {
        "run_ids": [],
        "pending": [],  # the tracked runs of windows with drift that no model has learnt from yet
        "detector": detector,
        "options": dict(options or {}),
        "model_name": model,
        "model_uri": f"models:/{model}@{alias}",
        "prepare": "" if prepare is None else _locate_function(prepare, "prepare"),
        "input_name": input_name,
        "budget": budget,
        "evaluation_share": evaluation_share,
        "reference_size": reference_size,
        "seed": seed,
    }
    return _build_workflow(name, "detect", "scanflow.drift.detecting:detect", parameters, resources)


def retraining(
    *,
    fit: Function,
    model: str,
    data: Function | None = None,
    alias: str = "champion",
    name: str = "training",
    new_share: float = 0.4,
    train_size: int = 10_000,
    evaluation_share: float = 0.3,
    tolerance: float | None = None,
    resources: Resources | None = None,
    seed: int = 1,
) -> Workflow:
    """Return the workflow that a planner runs with labels; run by hand, without labels, it trains a first model.

    That one becomes the version in use at once. Trained by hand again, it is only registered: ``scanflow models
    promote`` puts it to use by a person's name. Each one that is trained with labels is evaluated beside the version
    in use, on points that neither has learnt from, and only registered.

    Args:
        fit: ``fit(x, y)`` or ``fit(x, y, model)``: returns a trained model of scikit-learn or Keras, or an
            ``mlflow.pyfunc.PythonModel``. ``x`` is a table or an array, as ``data`` gave it; ``model`` the one in use.
        model: The name to register models under.
        data: ``data()`` returns ``(x, y)``, to train a first model with. None: another workflow trains that.
        alias: What names the version in use.
        name: The workflow's name.
        new_share: The share of newly labelled points in what a model learns from, by repeating them, 0 to 1.
        train_size: So many old samples are learnt from again, drawn at random.
        evaluation_share: The share of all samples that is for evaluation alone, 0 to 1.
        tolerance: Where the target is a number: an answer is right that is off by no more than this.
        resources: Of its step.
        seed: Of what is drawn.
    """
    parameters = {
        "labels": "",
        "evaluate": "",  # the address of a challenger that is to be evaluated again, on more labels
        "fit": _locate_function(fit, "fit"),
        "data": "" if data is None else _locate_function(data, "data"),
        "model_name": model,
        "model_uri": f"models:/{model}@{alias}",
        "alias": alias,
        "new_share": new_share,
        "train_size": train_size,
        "evaluation_share": evaluation_share,
        "tolerance": tolerance,
        "seed": seed,
    }
    return _build_workflow(name, "train", "scanflow.drift.training:retrain", parameters, resources)


def _build_workflow(
    name: str, step: str, function: str, parameters: Mapping[str, Any], resources: Resources | None
) -> Workflow:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "MLFLOW_LOGGING_LEVEL": "ERROR"}
    node = Executor(
        name=step, function=function, parameters=parameters, env=quiet, resources=resources or Resources(cpu=1)
    )
    return Workflow(name=name, nodes=[node])


def _locate_function(function: Function, what: str) -> str:
    """Return a function's location, for a step to load it."""
    if isinstance(function, str):
        return function
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    file = getattr(sys.modules.get(module), "__file__", None)
    if not name.isidentifier() or file is None:
        raise InvalidError(
            f"{what}={function!r:.80} has no file that a step can load it from. Define the function in a file beside "
            f"the application, and give {what}='file.py:function'."
        )
    return f"{module}:{name}" if "." in module else f"{Path(file).name}:{name}"
