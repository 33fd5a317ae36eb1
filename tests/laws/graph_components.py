"""What components of a graph do to their inputs and return, for the law of graphs. Any value goes in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import numpy as np


def to_rows(value: Any) -> Any:
    """Return whatever a component before returned as an array of rows; an array as it is."""
    if isinstance(value, dict):
        return to_rows(next(iter(value.values())))
    array = np.asarray(value, dtype=float)
    return array.reshape(-1, 1) if array.ndim < 2 else array


class Behaviour:
    """A component's memory, and what it does."""

    def __init__(self, kind: str) -> None:
        self.do = getattr(self, kind)
        self.out = np.zeros((64, 64))
        self.table = np.array([[0.0, 1.0], [2.0, 3.0]])
        self.row = [5.0, 6.0]
        self.answer: dict[str, Any] = {"rows": None}
        self.listed: list[Any] = []
        self.buffer: Any = None

    def add(self, value: Any) -> Any:
        return to_rows(value) + 1

    def change(self, value: Any) -> Any:
        rows = to_rows(value)
        rows *= 2
        return rows

    def change_and_sum(self, value: Any) -> Any:
        rows = to_rows(value)
        rows *= 10
        return rows.sum(axis=1)

    def change_containers(self, value: Any) -> Any:
        if isinstance(value, dict):
            value["more"] = np.ones(1)
        elif isinstance(value, list):
            value.append(7.0)
        return value

    def echo(self, value: Any) -> Any:
        return value

    def view(self, value: Any) -> Any:
        return to_rows(value)[:, ::-1]

    def fill_buffer(self, value: Any) -> Any:
        rows = to_rows(value)[:64, :64]
        self.out[: rows.shape[0], : rows.shape[1]] = rows * 3
        return self.out[: rows.shape[0], : rows.shape[1]]

    def fill_mapping(self, value: Any) -> Any:
        self.answer["rows"] = to_rows(value) + 5
        return self.answer

    def fill_list(self, value: Any) -> Any:
        self.listed[:] = to_rows(value).sum(axis=1).tolist()
        return self.listed

    def give_table(self, _value: Any) -> Any:
        return self.table

    def label_and_length(self, value: Any) -> Any:
        rows = to_rows(value)
        return [float(rows.sum()), float(len(rows))]

    def repeat_row(self, value: Any) -> Any:
        return [self.row] * len(to_rows(value))

    def scalar(self, value: Any) -> Any:
        return float(to_rows(value).sum())

    def mapping(self, value: Any) -> Any:
        rows = to_rows(value)
        return {"rows": rows, "sums": rows.sum(axis=1)}

    def centre(self, value: Any) -> Any:
        rows = to_rows(value)
        return rows - rows.mean(axis=0) if len(rows) else rows

    def accumulate(self, value: Any) -> Any:
        return np.cumsum(to_rows(value), axis=0)

    def pick(self, value: Any) -> Any:
        rows = to_rows(value)
        return rows[rows[:, 0] > 2]

    def keep(self, value: Any) -> Any:
        if self.buffer is not None:
            self.buffer *= 0
        self.buffer = to_rows(value)
        return self.buffer

    # -- of COMBINERs and ROUTERs

    def listed_sums(self, values: Sequence[Any]) -> Any:
        return [float(to_rows(value).sum()) for value in values]

    def change_and_join(self, values: Sequence[Any]) -> Any:
        for value in values:
            rows = to_rows(value)
            rows -= 3
        return {f"part{place}": to_rows(value) for place, value in enumerate(values)}

    def first(self, values: Sequence[Any]) -> Any:
        return values[0]

    def choose(self, value: Any) -> Any:
        rows = to_rows(value)
        self.out[0, 0] = int(abs(rows.sum())) % 2
        rows *= 100
        return int(self.out[0, 0])

    def all(self, value: Any) -> Any:
        rows = to_rows(value)
        rows -= 1000
        return -1


COMBINING: Final = ("listed_sums", "change_and_join", "first")
ROUTING: Final = ("choose", "all")
CHANGING: Final = ("change", "change_and_sum", "change_containers")
PLAIN: Final = (
    "add",
    "change",
    "change_and_sum",
    "change_containers",
    "echo",
    "view",
    "fill_buffer",
    "fill_mapping",
    "fill_list",
    "give_table",
    "label_and_length",
    "repeat_row",
    "scalar",
    "mapping",
    "centre",
    "accumulate",
    "pick",
    "keep",
)


class Component:
    def __init__(self, kind: str, *, blocking: bool = True) -> None:
        self.behaviour = Behaviour(kind)
        self.blocking = blocking

    def predict(self, value: Any) -> Any:
        return self.behaviour.do(value)

    transform_input = transform_output = route = aggregate = predict


class AsyncComponent:
    def __init__(self, kind: str, *, blocking: bool = True) -> None:
        self.behaviour = Behaviour(kind)
        self.blocking = blocking

    async def predict(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return self.behaviour.do(value)

    transform_input = transform_output = route = aggregate = predict
