"""Pairs of tables, drawn alike or not, by which drift tests are judged: (reference, current) of named columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = Mapping[str, NDArray[Any]]
Draw = Callable[[np.random.Generator, int, bool], Rows]
"""Draw so many rows, drifted or not."""


def _name_columns(values: NDArray[Any]) -> Rows:
    return {f"c{at}": values[:, at] for at in range(values.shape[1])}


def _factors(generator: np.random.Generator, n: int, columns: int = 50, factors: int = 5) -> NDArray[np.float64]:
    loadings = np.random.default_rng(7).normal(size=(factors, columns))
    loadings *= np.sqrt(0.5) / np.linalg.norm(loadings, axis=0)
    common = generator.normal(size=(n, factors)) @ loadings
    values: NDArray[np.float64] = common + generator.normal(size=(n, columns)) * np.sqrt(0.5)
    return values


def draw_all_shifted(g: np.random.Generator, n: int, drifted: bool) -> Rows:
    return _name_columns(g.normal(size=(n, 50)) + 0.1 * drifted)


def _make_one_shifted(by: float) -> Draw:
    def draw(g: np.random.Generator, n: int, drifted: bool) -> Rows:
        values = g.normal(size=(n, 50))
        values[:, 7] += by * drifted
        return _name_columns(values)

    return draw


def variance(g: np.random.Generator, n: int, drifted: bool) -> Rows:
    return _name_columns(g.normal(size=(n, 50)) * (np.sqrt(1.5) if drifted else 1.0))


def independent_of_others(g: np.random.Generator, n: int, drifted: bool) -> Rows:
    values = _factors(g, n)
    if drifted:
        values[:, 7] = g.permutation(values[:, 7])
    return _name_columns(values)


def scales(g: np.random.Generator, n: int, drifted: bool) -> Rows:
    values = g.normal(size=(n, 50))
    values[:, 0] += 5 * drifted
    return _name_columns(values * np.geomspace(1e-2, 1e4, 50))


def _draw_mixed(g: np.random.Generator, n: int, kind: str | None) -> Rows:
    common = g.normal(size=n)
    columns: dict[str, NDArray[Any]] = {f"n{at}": 0.5 * common + g.normal(size=n) for at in range(6)}
    columns["income"] = np.exp(0.5 * g.normal(size=n)) * 1000
    columns["count"] = g.poisson(3, size=n).astype(float)
    columns["flag"] = (g.random(n) < (0.10 if kind == "flag" else 0.03)).astype(float)
    shares = [0.35, 0.20, 0.15, 0.30] if kind == "categories" else [0.50, 0.20, 0.15, 0.15]
    columns["category"] = g.choice(["a", "b", "c", "d"], size=n, p=shares)
    columns["pair"] = 0.9 * columns["n5"] + 0.4 * g.normal(size=n)
    if kind == "shift":
        columns["n2"] = columns["n2"] + 0.25 * np.sqrt(1.25)
    if kind == "independent":
        columns["pair"] = g.permutation(columns["pair"])
    if kind == "missing":
        columns["n3"] = np.where(g.random(n) < 0.05, np.nan, columns["n3"])
    return columns


def _mixed_draw(kind: str) -> Draw:
    return lambda g, n, drifted: _draw_mixed(g, n, kind if drifted else None)


def draw_correlated(g: np.random.Generator, n: int, drifted: bool) -> Rows:
    values = g.normal(size=(n, 10))
    if drifted:
        values = np.sqrt(0.7) * values + np.sqrt(0.3) * g.normal(size=(n, 1))
    return _name_columns(values)


DRIFTS: Mapping[str, Draw] = {
    "50 columns, all +0.1 sd": draw_all_shifted,
    "1 of 50 +0.5 sd": _make_one_shifted(0.5),
    "1 of 50 +1 sd": _make_one_shifted(1.0),
    "variance x1.5 in all": variance,
    "1 of 50 made independent of the others": independent_of_others,
    "scales 1e-2 to 1e4, smallest column +5 sd": scales,
    "mixed table of 11 columns, one +0.25 sd": _mixed_draw("shift"),
    "category mix .50/.15 to .35/.30": _mixed_draw("categories"),
    "flag 3 % to 10 %": _mixed_draw("flag"),
    "two columns made independent": _mixed_draw("independent"),
    "10 columns, correlation 0 to .3": draw_correlated,
    "missing rate 0 to 5 % in one column": _mixed_draw("missing"),
}
