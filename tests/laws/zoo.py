"""Models as people bring them, and what each is asked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Save = Callable[[Path], None]


@dataclass(frozen=True, kw_only=True)
class Animal:
    """A model and the input that it is asked with: a table, or an array."""

    name: str
    save: Save
    asked: Any
    unasked: Sequence[str] = ()
    """Ways in which it cannot be asked, and refuses."""

    answer: Any = None
    """The right answer, where MLflow has none; None: MLflow's."""

    is_open: bool = False
    """Whether neither it nor its signature knows the names of its columns."""


def make_table(rows: int = 6, number: int = 1) -> pd.DataFrame:
    generator = np.random.default_rng(number)
    return pd.DataFrame(
        {
            "age": generator.integers(18, 90, rows),
            "income": np.round(generator.normal(3000, 900, rows), 2),
            "code": [f"{value:02d}" for value in generator.integers(0, 3, rows)],
        }
    )


def make_days(rows: int = 6) -> pd.DataFrame:
    days = pd.date_range("2024-01-01T06:30:00", periods=rows, freq="36h")
    return pd.DataFrame({"when": days, "amount": np.arange(rows) * 1.5})


TRAINED = make_table(40, 2)
TARGET = TRAINED["age"] * 3 + TRAINED["income"] / 100


def save_sklearn(model: Any, example: Any, folder: Path, **options: Any) -> None:
    from mlflow.models import infer_signature
    from mlflow.sklearn import save_model

    if example is not None:
        options["signature"] = infer_signature(example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_model(model, str(folder), pip_requirements=[], serialization_format="cloudpickle", **options)


def make_optional(required: str, optional: str) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    return ModelSignature(Schema([ColSpec("double", required), ColSpec("double", optional, required=False)]))


def save_function(function: Any, folder: Path, example: Any = None, **options: Any) -> None:
    from mlflow import pyfunc
    from mlflow.models import infer_signature

    if example is not None:
        options["signature"] = infer_signature(example, params=options.pop("params", None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyfunc.save_model(str(folder), python_model=function, pip_requirements=[], **options)


def list_estimators(number: int) -> list[Animal]:
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, PowerTransformer, StandardScaler

    numbers = TRAINED[["age", "income"]].astype(float)
    labels = (TARGET.median() < TARGET).astype(int)
    strict = make_column_transformer((OneHotEncoder(), ["code"]), remainder="passthrough")
    rows = make_table(number=number)
    asked = rows[["age", "income"]].astype(float)
    turned = numbers[["income", "age"]]

    def add_ratio(table: Any) -> Any:
        return table.assign(ratio=table["income"] / table["age"])

    def with_table(name: str, model: Any, example: Any = numbers, table: Any = asked, **options: Any) -> Animal:
        return Animal(name=name, save=lambda folder: save_sklearn(model, example, folder, **options), asked=table)

    linear = LinearRegression().fit(numbers, TARGET)
    logistic = make_pipeline(StandardScaler(), LogisticRegression()).fit(numbers, labels)
    array = LogisticRegression(max_iter=1000).fit(numbers.to_numpy() / 100, labels)
    return [
        with_table("linear", linear),
        replace(with_table("linear-other-order", linear, turned), answer=linear.predict(asked)),  # MLflow refuses it
        with_table("linear-unsigned", linear, None),
        with_table("one-column-unsigned", LinearRegression().fit(numbers[["age"]], TARGET), None, asked[["age"]]),
        with_table("logistic", logistic),
        with_table("probabilities", logistic, pyfunc_predict_fn="predict_proba"),
        with_table("log-probabilities", logistic, pyfunc_predict_fn="predict_log_proba"),
        with_table("bayes-joint", GaussianNB().fit(numbers, labels), pyfunc_predict_fn="predict_joint_log_proba"),
        with_table(
            "forest-words", RandomForestClassifier(5, random_state=1).fit(numbers, labels.map({0: "no", 1: "yes"}))
        ),
        with_table(
            "gaps",
            HistGradientBoostingRegressor().fit(numbers, TARGET),
            table=asked.assign(age=[np.nan, *asked["age"][1:]]),
        ),
        with_table("mixed-types", linear, numbers.astype({"age": int}), asked.astype({"age": int})),
        with_table("single-precision", linear, numbers.astype("float32"), asked.astype("float32")),
        with_table("one-hot-strict", make_pipeline(strict, LinearRegression()).fit(TRAINED, TARGET), TRAINED, rows),
        replace(
            with_table("one-hot-unsigned", make_pipeline(strict, LinearRegression()).fit(TRAINED, TARGET), None, rows),
            unasked=("command with csv",),  # nothing says that its codes are text
        ),
        with_table(
            "one-hot-example",
            make_pipeline(strict, LinearRegression()).fit(TRAINED, TARGET),
            TRAINED,
            rows,
            input_example=TRAINED[:2],
        ),
        with_table(
            "needs-frame", make_pipeline(FunctionTransformer(add_ratio), LinearRegression()).fit(numbers, TARGET)
        ),
        with_table("power", make_pipeline(PowerTransformer("box-cox"), LinearRegression()).fit(numbers, TARGET)),
        with_table("logarithm", make_pipeline(FunctionTransformer(np.log), LinearRegression()).fit(numbers, TARGET)),
        Animal(
            name="array",
            save=lambda folder: save_sklearn(array, numbers.to_numpy(), folder),
            asked=asked.to_numpy() / 100,
        ),
        Animal(
            name="array-unsigned", save=lambda folder: save_sklearn(array, None, folder), asked=asked.to_numpy() / 100
        ),
        Animal(
            name="words",
            save=lambda folder: save_sklearn(
                make_pipeline(CountVectorizer(), LogisticRegression()).fit(["good day", "bad day"] * 4, [1, 0] * 4),
                None,
                folder,
            ),
            asked=np.array(["good", "bad"], dtype=object),
            unasked=("seldon",),
        ),
    ]


def double_columns(model_input: Any) -> Any:
    return model_input[["age", "income"]] * 2


def refuse_zeros(model_input: Any) -> Any:
    if (model_input["age"] <= 1).any():
        raise ValueError("an age above 1 is needed")
    return model_input["age"].to_numpy()


def list_records(model_input: Any) -> Any:
    return [{"code": row["code"], "next": row["age"] + 1} for _, row in model_input.iterrows()]


def leave_gaps(model_input: Any) -> Any:
    return pd.DataFrame({"code": [None, *model_input["code"][1:]], "age": [None, *model_input["age"][1:]]})


def add_day(model_input: Any) -> Any:
    return pd.DataFrame({"next": model_input["when"] + pd.Timedelta(days=1), "hour": model_input["when"].dt.hour})


def list_days(model_input: Any) -> Any:
    return [moment.to_pydatetime() for moment in model_input["when"]]


def mix_kinds(model_input: Any) -> Any:
    return ["a", 1, None] * (len(model_input) // 3)


def list_gaps(model_input: Any) -> Any:
    return [1, None] * (len(model_input) // 2)


def nest_rows(model_input: Any) -> Any:
    return [{"at": {"x": int(age)}, "all": [1] * (place + 1)} for place, age in enumerate(model_input["age"])]


def list_ragged(model_input: Any) -> Any:
    return [[1] * (place + 1) for place in range(len(model_input))]


def stream_ages(model_input: Any) -> Any:
    yield from model_input["age"].tolist()


def sum_rows(model_input: Any) -> Any:
    return model_input.sum(axis=1)


def mask_ages(model_input: Any) -> Any:
    return np.ma.array(model_input["age"], mask=model_input["income"] > 3000)


def list_durations(model_input: Any) -> Any:
    return pd.DataFrame({"by": pd.to_timedelta(model_input["age"], unit="D"), "to": model_input["age"]})


def number_rows(model_input: Any) -> Any:
    return pd.Series(pd.array([2**60 + 1, *model_input["age"][1:-1], None], "Int64"))


def add_optional(model_input: Any) -> Any:
    return model_input["age"] + model_input.get("income", 100.0)


def measure_rows(model_input: Any) -> Any:
    return np.linalg.norm(model_input, axis=-1)


def count_characters(model_input: Any) -> Any:
    return [len(text) for text in model_input["day"]]


def describe_days(model_input: Any) -> Any:
    days = model_input["day"]
    return [f"{value} is a {type(value).__name__} of {days.dtype}" for value in days]


def list_types(model_input: Any) -> Any:
    return [str(value) for value in model_input["when"]]


def list_functions(number: int) -> list[Animal]:
    from mlflow.pyfunc.model import PythonModel

    table, days = make_table(number=number), make_days()
    numbers = table[["age", "income"]].astype(float)

    def animal(
        name: str,
        function: Any,
        asked: Any,
        *,
        example: Any = None,
        unasked: Sequence[str] = (),
        is_open: bool = False,
        **options: Any,
    ) -> Animal:
        return Animal(
            name=name,
            save=lambda folder: save_function(function, folder, example, **options),
            asked=asked,
            unasked=unasked,
            is_open=is_open,
        )

    class Scaled(PythonModel):  # type: ignore[misc]  # MLflow's has no types
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:  # noqa: ARG002 - MLflow's signature
            return model_input["age"] * (params or {"by": 1})["by"]

    arrays = {"a": np.ones((2, 3), np.float32), "b": np.zeros((2, 3), np.float32)}
    return [
        animal("double", double_columns, table, example=table),
        animal("double-other-order", double_columns, table, example=table[["code", "income", "age"]]),
        animal("double-unsigned", double_columns, table, is_open=True),
        animal("refuses-zeros", refuse_zeros, table, example=table),
        animal("records", list_records, table, example=table),
        animal("gaps-out", leave_gaps, table, example=table),
        animal("dates", add_day, days, example=days),
        animal("dates-listed", list_days, days, example=days),
        animal("mixed", mix_kinds, table, example=table),
        animal("missing", list_gaps, table, example=table),
        animal("nested", nest_rows, table, example=table),
        animal("ragged", list_ragged, table, example=table),
        animal("stream", stream_ages, table, example=table),
        animal("scaled", Scaled(), table, example=table, params={"by": 2}),
        animal("one-column-measured", measure_rows, numbers[["age"]] - 40, is_open=True),
        animal(
            "dates-as-text-unsigned",
            count_characters,
            table[["code"]].assign(day=" 2024-01-" + table["code"]),
            is_open=True,
        ),
        animal("sums", sum_rows, numbers, example=numbers),
        animal("masked", mask_ages, numbers, example=numbers),
        animal("durations", list_durations, table, example=table),
        animal("large-integers-with-gaps", number_rows, table, example=table),
        animal("optional-left-out", add_optional, numbers[["age"]], signature=make_optional("age", "income")),
        animal(
            "no-rows",
            sum_rows,
            numbers[:0],
            example=numbers,
            unasked=("client with records", "command with json", "seldon"),
        ),
        animal("dates-with-gaps", list_types, days.assign(when=[pd.NaT, *days["when"][1:]]), example=days),
        animal("array-doubled", lambda model_input: model_input * 2, np.ones((2, 3)), example=np.ones((1, 3))),
        animal(
            "arrays",
            lambda model_input: model_input["a"] - model_input["b"],
            arrays,
            example=arrays,
            unasked=("seldon",),
        ),
        animal(
            "one-named-array", lambda model_input: model_input["a"] * 2, {"a": arrays["a"]}, example={"a": arrays["a"]}
        ),
    ]


def list_typed(number: int) -> list[Animal]:
    """Functions with types, from which MLflow makes a signature."""
    from tests.laws.typed_functions import add, add_all, add_lists, list_years, measure

    records = make_table(number=number).to_dict("records")
    maps = np.array(['{"a": 1.5, "b": 2.0}', '{"a": 0.5}'], dtype=object)
    return [
        Animal(name="rows-typed", save=lambda folder: save_function(add, folder), asked=records),
        Animal(
            name="texts-typed",
            save=lambda folder: save_function(measure, folder),
            asked=np.array(["a", "abc"], dtype=object),
            unasked=("seldon",),
        ),
        Animal(
            name="lists-typed",
            save=lambda folder: save_function(add_lists, folder),
            asked=np.array(["[1.0, 2.0]", "[3.0]"], dtype=object),
            unasked=("seldon",),
        ),
        Animal(
            name="dates-typed",
            save=lambda folder: save_function(list_years, folder),
            asked=np.array(["2024-03-01T12:00:00", "2025-03-01T00:00:00"], dtype=object),
            answer=[2024, 2025],
            unasked=("seldon",),
        ),
        Animal(name="maps-typed", save=lambda folder: save_function(add_all, folder), asked=maps, unasked=("seldon",)),
    ]


def list_graphs(number: int) -> list[Animal]:
    """ONNX models, written by hand: one over a table's columns, and a classifier with ZipMap."""
    from onnx import TensorProto, helper

    def make_info(name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    def make_model(nodes: Any, inputs: Any, outputs: Any) -> Any:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
        return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=9)

    def save(model: Any, folder: Path, example: Any) -> None:
        from mlflow.models import infer_signature
        from mlflow.onnx import save_model

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save_model(model, str(folder), signature=infer_signature(example), pip_requirements=[])

    weights = helper.make_tensor("w", TensorProto.FLOAT, (2, 1), [1.0, 100.0])
    weighing = make_model(
        [helper.make_node("Constant", [], ["w"], value=weights), helper.make_node("MatMul", ["x", "w"], ["y"])],
        [make_info("x", [None, 2])],
        [make_info("y", [None, 1])],
    )
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    zipped = helper.make_node("ZipMap", ["x"], ["p"], domain="ai.onnx.ml", classlabels_int64s=[4, 7])
    best = helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0)
    outputs = [make_info("label", [None], TensorProto.INT64), helper.make_value_info("p", maps)]
    sharing = make_model([best, zipped], [make_info("x", [None, 2])], outputs)
    table: Any = make_table(number=number)[["age", "income"]].astype("float32")
    shares = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    right = table["age"].to_numpy() + 100 * table["income"].to_numpy()
    return [
        Animal(
            name="onnx-table",
            save=lambda folder: save(weighing, folder, table),
            asked=table,
            answer={"y": right.reshape(-1, 1)},
        ),
        Animal(
            name="onnx-zipmap",
            save=lambda folder: save(sharing, folder, shares),
            asked=shares,
            answer={"label": [1, 0], "p": [{"4": 0.25, "7": 0.75}, {"4": 0.5, "7": 0.5}]},
        ),
    ]


def list_animals(number: int = 1) -> list[Animal]:
    """Return the zoo; ``number`` chooses the tables that it is asked with."""
    return [*list_estimators(number), *list_functions(number), *list_typed(number), *list_graphs(number)]
