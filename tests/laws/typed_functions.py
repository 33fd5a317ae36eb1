"""Functions whose types MLflow reads: it needs the types themselves, not their text."""

from datetime import datetime

from mlflow.pyfunc.utils import pyfunc
from pydantic import BaseModel


class Row(BaseModel):
    age: int
    income: float
    code: str = "00"


@pyfunc  # type: ignore[untyped-decorator]  # MLflow's has no types
def add(model_input: list[Row]) -> list[float]:
    return [row.age + row.income for row in model_input]


@pyfunc  # type: ignore[untyped-decorator]  # MLflow's has no types
def measure(model_input: list[str]) -> list[int]:
    return [len(text) for text in model_input]


@pyfunc  # type: ignore[untyped-decorator]  # MLflow's has no types
def add_all(model_input: list[dict[str, float]]) -> list[float]:
    return [sum(row.values()) for row in model_input]


@pyfunc  # type: ignore[untyped-decorator]  # MLflow's has no types
def add_lists(model_input: list[list[float]]) -> list[float]:
    return [sum(values) for values in model_input]


@pyfunc  # type: ignore[untyped-decorator]  # MLflow's has no types
def list_years(model_input: list[datetime]) -> list[int]:
    return [moment.year for moment in model_input]
