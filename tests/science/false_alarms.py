"""How often a detector alarms at data that have not drifted: of every kind, by batches of 50 and more.

``python -m tests.science.false_alarms 1000`` prints the table of docs/science.md, a line when it is known; names of
``KINDS`` after it, those alone. ``SCANFLOW_SCIENCE_DATA`` names MNIST's file; else pictures are scikit-learn's digits.

Each batch is first compared with 199 divisions at the level 0.05, and only what alarms there with 999 at 0.01: what is
among the first 10 of 1,000 is not beyond the tenth of 200, but for once in 30,000 times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
from scipy import stats

from scanflow.drift.detectors.autoencoder import Autoencoder, FittedAutoencoder
from scanflow.drift.detectors.prior import ClassPrior
from scanflow.drift.detectors.table_detector import TableDetector
from scanflow.drift.segments import compare_by
from scanflow.drift.table import DataTable
from tests.science.drifts import DRIFTS, Rows
from tests.science.retrained_models import load_samples

LEVEL, LIKELY = 0.01, 0.05
REFERENCE, SIZES = 1000, (50, 200, 500)

Made = Callable[[float, int], bool]
"""Whether there is an alarm at a level, with so many divisions."""

Kind = Callable[[np.random.Generator, int], Made]
"""Draw a reference, and a batch of so many rows as it."""


def alarms(kind: str, n: int, seed: int) -> bool:
    table = KINDS[kind](np.random.default_rng([seed, n]), n)
    return table(LIKELY, 199) and table(LEVEL, 999)


def _make_scored_check(reference: Any, batch: Any, regimes: Any = None) -> Made:
    return lambda level, permutations: (
        TableDetector(level=level, permutations=permutations).fit(reference, regimes=regimes).score(batch).drifted
    )


def _table(name: str, generator: np.random.Generator, n: int) -> Made:
    return _make_scored_check(*(DRIFTS[name](generator, count, False) for count in (REFERENCE, n)))


def _heavy(generator: np.random.Generator, n: int) -> Made:
    return _make_scored_check(
        *({f"c{at}": generator.standard_t(1.5, size=count) for at in range(3)} for count in (REFERENCE, n))
    )


def _categories(generator: np.random.Generator, n: int) -> Made:
    def draw(count: int) -> Rows:
        common = generator.random(count)
        return {
            f"c{at}": np.floor(np.where(generator.random(count) < 0.4, common, generator.random(count)) * levels)
            for at, levels in enumerate([2, 2, 2, 3, 3, 5, 5, 8, 8, 12])
        }

    return _make_scored_check(draw(REFERENCE), draw(n))


def _prior(generator: np.random.Generator, n: int) -> Made:
    shares = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.06, 0.04, 0.03, 0.015, 0.005])
    reference, new = (generator.choice(10, count, p=shares) for count in (REFERENCE, n))
    return lambda level, permutations: (
        ClassPrior(level=level, permutations=permutations).fit(reference).score(new).drifted
    )


def _regimes(share: float, generator: np.random.Generator, n: int) -> Made:
    clean, moved = DRIFTS["mixed table of 11 columns, one +0.25 sd"], DRIFTS["category mix .50/.15 to .35/.30"]
    other = round(share * n)
    parts = [clean(generator, REFERENCE, False), moved(generator, REFERENCE // 2, True)]
    batch = [moved(generator, other, True), clean(generator, n - other, False)]
    reference, current = (
        {name: np.concatenate([arrays[name] for arrays in part]) for name in part[0]} for part in (parts, batch)
    )
    return _make_scored_check(reference, current, regimes=np.repeat([0, 1], [REFERENCE, REFERENCE // 2]))


def _segments(generator: np.random.Generator, n: int) -> Made:
    reference, batch = (
        DataTable.from_data({"place": generator.choice(list("abcde"), count), "x": generator.normal(size=count)})
        for count in (REFERENCE, n)
    )

    def check_within_places(level: float, permutations: int) -> bool:
        whole, within = compare_by(reference, batch, "place", level=level)
        return whole.drifted or any(column.comparison is not None and column.comparison.drifted for column in within)

    return check_within_places


@cache
def _network() -> tuple[FittedAutoencoder, Any, Mapping[str, Any]]:
    """Return an autoencoder that learnt from some pictures, the other ones, and what it makes of these."""
    x = load_samples().x
    learnt, others = np.split(np.random.default_rng(1).permutation(len(x)), [min(1200, len(x) // 4)])
    fitted = Autoencoder(generator=np.random.default_rng(2), held_share=0.1).fit(x[learnt])
    return fitted, x[others], fitted.pictures.build_table(x[others], None)


def _split_rows(count: int, generator: np.random.Generator, n: int) -> tuple[Any, Any]:
    order = generator.permutation(count)
    return order[: min(REFERENCE, count - 500)], order[-n:]


def _autoencoder(generator: np.random.Generator, n: int) -> Made:
    _, others, arrays = _network()
    reference, batch = _split_rows(len(others), generator, n)
    return _make_scored_check(*({name: values[rows] for name, values in arrays.items()} for rows in (reference, batch)))


def _pictures(generator: np.random.Generator, n: int) -> Made:
    x = load_samples().x
    return _make_scored_check(*(x[rows] for rows in _split_rows(len(x), generator, n)))


KINDS: Mapping[str, Kind] = {
    "mixed table of 11 columns": partial(_table, "mixed table of 11 columns, one +0.25 sd"),
    "10 columns": partial(_table, "10 columns, correlation 0 to .3"),
    "10 columns of categories": _categories,
    "3 columns, heavy tails (t, 1.5 degrees)": _heavy,
    "50 columns": partial(_table, "50 columns, all +0.1 sd"),
    "50 columns that depend on each other": partial(_table, "1 of 50 made independent of the others"),
    "predicted classes (`prior`), 30 to 0.5 %": _prior,
    "two known regimes, all of the first": partial(_regimes, 0.0),
    "two known regimes, 30 % of the second": partial(_regimes, 0.3),
    "two known regimes, all of the second": partial(_regimes, 1.0),
    "a number in 5 categories, `--by` them": _segments,
    "pictures, by `autoencoder`": _autoencoder,
    "pictures, by `table`": _pictures,
}


def interval(count: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Clopper and Pearson)."""
    return float(stats.beta.ppf(0.025, count, of - count + 1)) if count else 0.0, float(
        stats.beta.ppf(0.975, count + 1, of - count)
    )


def main(repetitions: int, names: list[str]) -> None:
    print("| data |", " | ".join(f"n = {n}" for n in SIZES), "| all, with its 95 % interval |")
    print("|---|" + "---|" * (len(SIZES) + 1), flush=True)
    for name in names:
        counts = [sum(alarms(name, n, seed) for seed in range(repetitions)) for n in SIZES]
        low, high = interval(sum(counts), of := repetitions * len(SIZES))
        shares = " | ".join(f"{100 * count / repetitions:.1f} %" for count in counts)
        whole = f"{100 * sum(counts) / of:.2f} % ({100 * low:.1f} to {100 * high:.1f} %, of {of:,})"
        print(f"| {name} | {shares} | {whole} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or list(KINDS))
