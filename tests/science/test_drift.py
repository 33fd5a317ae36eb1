"""What the comparison of tables sees, and how often it is wrong, beside what people would use instead.

The quick form runs with the suite. The long one (``SCANFLOW_SCIENCE=long``) has the repetitions that figures need, and
``python -m tests.science.test_drift 40`` prints the table of docs/science.md, on all cores, with so many of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import pytest
from scipy import stats

from scanflow.drift.table import DataTable
from scanflow.drift.two_sample import compare
from tests.science.drifts import DRIFTS, Rows
from tests.science.false_alarms import KINDS, alarms

LONG = os.environ.get("SCANFLOW_SCIENCE") == "long"
LEVEL = 0.01
pytestmark = pytest.mark.science
REFERENCE, CURRENT = 1000, 500


def pair(name: str, seed: int) -> tuple[Rows, Rows]:
    generator = np.random.default_rng(seed)
    return DRIFTS[name](generator, REFERENCE, False), DRIFTS[name](generator, CURRENT, True)


def detect_with_scanflow(reference: Rows, current: Rows) -> bool:
    return compare(DataTable.from_data(reference), DataTable.from_data(current), level=LEVEL).drifted


def customers(generator: np.random.Generator, n: int, *, default: float = 0.0) -> Rows:
    """Return a table in which a share of the ages is one that a form has filled in."""
    age = np.where(generator.random(n) < default, 40.0, generator.integers(18, 90, n))
    return {"age": age, "income": generator.normal(30, 8, n), "debt": generator.exponential(3, n)}


@pytest.mark.parametrize(("share", "of_8"), [(0.05, 7), (0.10, 8)])
def test_a_default_that_a_form_fills_in_is_seen_and_named(share: float, of_8: int) -> None:
    named = 0
    for seed in range(8):
        generator = np.random.default_rng(seed)
        reference, current = customers(generator, REFERENCE), customers(generator, CURRENT, default=share)
        columns = compare(DataTable.from_data(reference), DataTable.from_data(current), level=LEVEL).drifted_columns
        named += [(column.name, column.test, *column.current) for column in columns[:1]] == [("age", "value", "40")]
    assert named >= of_8


def _p_values(reference: Rows, current: Rows) -> np.ndarray:
    """Return SciPy's p-value of each column: Kolmogorov-Smirnov for numbers, chi square for others."""
    p_values = []
    for name, before in reference.items():
        after = current[name]
        if before.dtype.kind == "f" and len(np.unique(before)) > 10:
            p_values.append(stats.ks_2samp(before[~np.isnan(before)], after[~np.isnan(after)])[1])
            continue
        levels = sorted({*map(str, before), *map(str, after)})
        counts = [[(side.astype(str) == level).sum() for level in levels] for side in (before, after)]
        p_values.append(stats.chi2_contingency(np.array(counts))[1] if len(levels) > 1 else 1.0)
    return np.array(p_values)


def per_column(reference: Rows, current: Rows) -> bool:
    p = _p_values(reference, current)
    return bool(p.min() <= LEVEL / len(p))


def half_of_columns(reference: Rows, current: Rows) -> bool:
    """Evidently's rule for tables: an alarm where half of the columns differ at 0.05."""
    return bool((_p_values(reference, current) < 0.05).mean() >= 0.5)


def _as_numbers(reference: Rows, current: Rows) -> np.ndarray:
    """Return both as people prepare them for MMD or a classifier: standardised, one-hot, missing values as the mean."""
    columns = []
    for name, before in reference.items():
        both = np.concatenate([before, current[name]])
        if both.dtype.kind == "f":
            spread = np.nanstd(both)
            columns.append(np.nan_to_num((both - np.nanmean(both)) / (spread or 1)))
        else:
            columns.extend((both == level).astype(float) for level in np.unique(both))
    return np.stack(columns, axis=1)


def mmd(reference: Rows, current: Rows, permutations: int = 200) -> bool:
    """Gretton et al. (2012): a Gaussian kernel as wide as the median distance, the biased estimate, permutations."""
    points, new = _as_numbers(reference, current), len(next(iter(current.values())))
    squares = (points**2).sum(axis=1)
    apart = np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0)
    kernel = np.exp(-apart / (2 * np.median(apart[apart > 0])))
    signs = np.full(len(points), -1 / (len(points) - new))
    signs[-new:] = 1 / new
    drawn = np.random.default_rng(0).permuted(np.tile(signs, (permutations, 1)), axis=1)
    statistics = np.einsum("ij,jk,ik->i", (both := np.vstack([signs, drawn])), kernel, both, optimize=True)
    return bool((statistics[1:] >= statistics[0]).sum() + 1 <= LEVEL * (permutations + 1))


def c2st(reference: Rows, current: Rows) -> bool:
    """A classifier two-sample test (Lopez-Paz and Oquab, 2017): does a random forest tell halves of both apart?"""
    from sklearn.ensemble import RandomForestClassifier

    points, new = _as_numbers(reference, current), len(next(iter(current.values())))
    order = np.random.default_rng(0)
    old_rows, new_rows = order.permutation(len(points) - new)[:new], len(points) - new + order.permutation(new)
    half = new // 2
    learnt, rest = (np.concatenate([old_rows[at], new_rows[at]]) for at in (slice(0, half), slice(half, new)))
    is_new = np.arange(len(points)) >= len(points) - new
    forest = RandomForestClassifier(100, random_state=0, n_jobs=1).fit(points[learnt], is_new[learnt])
    right = int((forest.predict(points[rest]) == is_new[rest]).sum())
    return bool(stats.binomtest(right, len(rest), alternative="greater").pvalue <= LEVEL)


CONTENDERS: Mapping[str, Callable[[Rows, Rows], bool]] = {
    "scanflow": detect_with_scanflow,
    "SciPy per column": per_column,
    "Evidently's rule": half_of_columns,
    "MMD": mmd,
    "C2ST": c2st,
}


def _detect(contender: str, name: str, seed: int) -> bool:
    return CONTENDERS[contender](*pair(name, seed))


def power(contender: str, name: str, repetitions: int, *, over: object = map) -> float:
    detections: Iterable[bool] = over(partial(_detect, contender, name), range(repetitions))  # type: ignore[operator]
    return float(np.mean(list(detections)))


def seldom(value: int, repetitions: int) -> bool:
    """Return whether so many alarms are as 0.5 to 2 % give, but for once in ten thousand times."""
    low, high = stats.binom.ppf([5e-5], repetitions, 0.005)[0], stats.binom.ppf([1 - 5e-5], repetitions, 0.02)[0]
    return bool(low <= value <= high)


@pytest.mark.parametrize("name", DRIFTS)
def test_every_drift_is_seen_about_as_often_as_the_best_peer_sees_it(name: str) -> None:
    repetitions = 40 if LONG else 2
    own = power("scanflow", name, repetitions)
    assert own >= 0.5
    if LONG:
        assert own >= max(power(peer, name, repetitions) for peer in list(CONTENDERS)[1:]) - 0.05


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [50, 500])
def test_data_without_drift_seldom_alarm(kind: str, n: int) -> None:
    if "autoencoder" in kind:
        pytest.importorskip("tensorflow")
    repetitions = 500 if LONG else 8
    assert seldom(sum(alarms(kind, n, seed) for seed in range(repetitions)), repetitions)


def print_power(over: object, repetitions: int) -> None:
    print("| drift |", " | ".join(CONTENDERS), "|\n|---|" + "---|" * len(CONTENDERS))
    means = dict.fromkeys(CONTENDERS, 0.0)
    for name in DRIFTS:
        powers = {contender: power(contender, name, repetitions, over=over) for contender in CONTENDERS}
        means = {contender: means[contender] + value / len(DRIFTS) for contender, value in powers.items()}
        print(f"| {name} |", " | ".join(f"{value:.2f}" for value in powers.values()), "|", flush=True)
    print("| mean |", " | ".join(f"{value:.2f}" for value in means.values()), "|\n")


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for the processes that are begun
    with ProcessPoolExecutor() as pool:
        print_power(partial(pool.map, chunksize=4), int(sys.argv[1]))
