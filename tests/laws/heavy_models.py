"""Models of LightGBM, XGBoost, Keras and PyTorch, as people bring them; see :mod:`tests.laws.zoo`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.laws.zoo import TARGET, TRAINED, Animal, make_table, save_sklearn

NUMBERS: Any = TRAINED[["age", "income"]].astype(float)
MATRIX = NUMBERS.to_numpy()
LABELS: Any = (TARGET.median() < TARGET).astype(int)


def save_as(flavor: str, model: Any, example: Any, folder: Path, **options: Any) -> None:
    from mlflow.models import infer_signature

    signature = None if example is None else infer_signature(example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_model = import_module(f"mlflow.{flavor}").save_model
        save_model(model, path=str(folder), signature=signature, pip_requirements=[], **options)


def list_boosted(number: int) -> list[Animal]:
    """Gradient boosting, by the libraries' own models and by their estimators, in MLflow's flavor of each."""
    import lightgbm
    import xgboost
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    table = make_table(number=number)
    asked: Any = table[["age", "income"]].astype(float)
    array = asked.to_numpy()
    gaps = asked.assign(income=[np.nan, *asked["income"][1:]])
    turned, whole, single = NUMBERS[["income", "age"]], {"age": int}, "float32"
    few: Any = {"n_estimators": 5, "n_jobs": 1}
    small: Any = {**few, "min_child_samples": 2, "verbose": -1}
    spaces = {"age": "the age"}

    def make(name: str, flavor: str, model: Any, example: Any = NUMBERS, inputs: Any = asked) -> Animal:
        return Animal(name=name, save=partial(save_as, flavor, model, example), asked=inputs)

    def save(model: Any, example: Any, **options: Any) -> Any:
        return lambda folder: save_sklearn(model, example, folder, **options)

    options = {"objective": "binary", "verbose": -1, "num_threads": 1}
    grown = lightgbm.train(options, lightgbm.Dataset(NUMBERS, LABELS), 5)
    light = lightgbm.LGBMRegressor(**small).fit(NUMBERS, TARGET)
    light_words = lightgbm.LGBMClassifier(**small).fit(NUMBERS, LABELS.map({0: "no", 1: "yes"}))
    light_array = lightgbm.LGBMRegressor(**small).fit(MATRIX, TARGET)
    light_spaces = lightgbm.LGBMRegressor(**small).fit(NUMBERS.rename(columns=spaces), TARGET)
    codes = make_column_transformer((OneHotEncoder(), ["code"]), remainder="passthrough")
    piped = make_pipeline(codes, lightgbm.LGBMRegressor(**small)).fit(TRAINED, TARGET)

    lifted = xgboost.train({"objective": "binary:logistic", "nthread": 1}, xgboost.DMatrix(NUMBERS, LABELS), 5)
    extreme = xgboost.XGBRegressor(**few).fit(NUMBERS, TARGET)
    extreme_labels = xgboost.XGBClassifier(**few).fit(NUMBERS, LABELS)
    extreme_array = xgboost.XGBRegressor(**few).fit(MATRIX, TARGET)
    unsigned_spaces = make("lightgbm-spaces-unsigned", "lightgbm", light_spaces, None, asked.rename(columns=spaces))
    return [
        make("lightgbm-booster", "lightgbm", grown),
        make("lightgbm-booster-unsigned", "lightgbm", grown, None),
        make("lightgbm-gaps", "lightgbm", light, inputs=gaps),
        make("lightgbm-words", "lightgbm", light_words),
        make("lightgbm-whole", "lightgbm", light, NUMBERS.astype(whole), asked.astype(whole)),
        make("lightgbm-array", "lightgbm", light_array, MATRIX, array),
        make("lightgbm-array-unsigned", "lightgbm", light_array, None, array),
        make("lightgbm-spaces", "lightgbm", light_spaces, NUMBERS.rename(columns=spaces), asked.rename(columns=spaces)),
        replace(unsigned_spaces, is_open=True),  # it knows its columns with underscores instead of spaces
        Animal(name="lightgbm-array-as-sklearn", save=save(light_array, None), asked=array),
        Animal(
            name="lightgbm-as-sklearn",
            save=save(
                lightgbm.LGBMClassifier(**small).fit(NUMBERS, LABELS), NUMBERS, pyfunc_predict_fn="predict_proba"
            ),
            asked=asked,
        ),
        Animal(name="lightgbm-in-a-pipeline", save=save(piped, TRAINED), asked=table),
        make("xgboost-booster", "xgboost", lifted),
        make("xgboost-gaps", "xgboost", extreme, inputs=gaps),
        make("xgboost-classifier", "xgboost", extreme_labels),
        make("xgboost-unsigned", "xgboost", extreme_labels, None),
        make("xgboost-single", "xgboost", extreme_labels, NUMBERS.astype(single), asked.astype(single)),
        make("xgboost-array-unsigned", "xgboost", extreme_array, None, array),
        Animal(name="xgboost-as-sklearn", save=save(extreme_labels, NUMBERS), asked=asked),
        # MLflow hands the columns on in the order of the signature: LightGBM answers wrongly, and XGBoost refuses.
        replace(make("lightgbm-other-order", "lightgbm", light, turned), answer=light.predict(asked)),
        replace(make("xgboost-other-order", "xgboost", extreme, turned), answer=extreme.predict(asked)),
    ]


def list_networks(number: int) -> list[Animal]:
    """Networks of Keras, over arrays: MLflow saves none over columns."""
    import keras

    keras.utils.set_random_seed(1)
    matrix = make_table(number=number)[["age", "income"]].to_numpy().astype("float32")
    dense = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)])
    left, right = keras.Input((2,), name="left"), keras.Input((1,), name="right")
    joined = keras.Model([left, right], keras.layers.Concatenate(name="both")([left, right]))
    pair = {"left": matrix, "right": matrix[:, :1]}
    return [
        Animal(name="keras-array", save=partial(save_as, "keras", dense, matrix), asked=matrix),
        Animal(name="keras-unsigned", save=partial(save_as, "keras", dense, None), asked=matrix),
        Animal(name="keras-two-inputs", save=partial(save_as, "keras", joined, pair), asked=pair, unasked=("seldon",)),
    ]


UNTYPED = ("client with a list", "command", "seldon")
"""The ways whose numbers have no type: PyTorch takes no others than its weights'."""


def list_torch(number: int) -> list[Animal]:
    """Modules of PyTorch: over columns, arrays of several types and ranks; MLflow's pyfunc is the oracle."""
    torch: Any = import_module("torch")
    nn = torch.nn
    torch.manual_seed(1)
    torch.set_num_threads(1)
    table: Any = make_table(number=number)[["age", "income"]].astype(float)
    double = table.to_numpy()
    single = double.astype("float32")
    pictures = np.random.default_rng(number).random((4, 1, 6, 6), dtype="float32")
    words = np.random.default_rng(number).integers(0, 9, (4, 5))
    dense = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    classes = nn.Sequential(nn.Linear(2, 3), nn.Softmax(dim=1))
    seen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))
    read = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(15, 2))

    def make(name: str, model: Any, example: Any, inputs: Any, unasked: tuple[str, ...] = ()) -> Animal:
        # MLflow's default, a graph of torch.export, takes no other number of rows than its example's.
        save = partial(save_as, "pytorch", model.eval(), example, serialization_format="pickle")
        return Animal(name=f"torch-{name}", save=save, asked=inputs, unasked=unasked)

    return [
        make("array", dense, single, single),
        make("columns", dense, table, table),
        make("classes", classes, single, single),
        make("pictures", seen, pictures, pictures),
        make("whole", read, words, words),
        make("double", nn.Sequential(nn.Linear(2, 1)).double(), double, double),
        make("in-place", nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 1)), -single, -single),
        make("unsigned", dense, None, single, UNTYPED),
        make("pictures-unsigned", seen, None, pictures, UNTYPED),
        make("whole-unsigned", read, None, words),
        make("double-unsigned", nn.Sequential(nn.Linear(2, 1)).double(), None, double),
    ]
