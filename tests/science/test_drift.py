"""What the comparison of tables sees, and how often it is wrong, beside what people would use instead.

The quick form runs with the suite. The long one (``SCANFLOW_SCIENCE=long``) has the repetitions that figures need, and
``python -m tests.science.test_drift`` prints the table of docs/drift.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from scipy import stats

from scanflow.drift.table import DataTable
from scanflow.drift.two_sample import compare
from tests.science.drifts import DRIFTS, Rows

LONG = os.environ.get("SCANFLOW_SCIENCE") == "long"
LEVEL = 0.01
REFERENCE, CURRENT = 1000, 500


def pair(name: str, seed: int, *, drifted: bool, n: int = CURRENT) -> tuple[Rows, Rows]:
    generator = np.random.default_rng(seed)
    return DRIFTS[name](generator, REFERENCE, False), DRIFTS[name](generator, n, drifted)


def ours(reference: Rows, current: Rows) -> bool:
    return compare(DataTable.of(reference), DataTable.of(current), level=LEVEL).drifted


def _p_values(reference: Rows, current: Rows) -> np.ndarray:
    """Return SciPy's p-value of each column: Kolmogorov-Smirnov for numbers, chi square for others."""
    found = []
    for name, before in reference.items():
        after = current[name]
        if before.dtype.kind == "f" and len(np.unique(before)) > 10:
            found.append(stats.ks_2samp(before[~np.isnan(before)], after[~np.isnan(after)])[1])
            continue
        levels = sorted({*map(str, before), *map(str, after)})
        counts = [[(side.astype(str) == level).sum() for level in levels] for side in (before, after)]
        found.append(stats.chi2_contingency(np.array(counts))[1] if len(levels) > 1 else 1.0)
    return np.array(found)


def per_column(reference: Rows, current: Rows) -> bool:
    p = _p_values(reference, current)
    return bool(p.min() <= LEVEL / len(p))


def half_of_columns(reference: Rows, current: Rows) -> bool:
    """Evidently's rule for tables: an alarm where half of the columns differ at 0.05."""
    return bool((_p_values(reference, current) < 0.05).mean() >= 0.5)


CONTENDERS: Mapping[str, Callable[[Rows, Rows], bool]] = {
    "scanflow drift check": ours,
    "SciPy per column, Bonferroni": per_column,
    "Evidently's rule": half_of_columns,
}


def power(contender: str, name: str, repetitions: int, *, drifted: bool = True, n: int = CURRENT) -> float:
    found = [CONTENDERS[contender](*pair(name, seed, drifted=drifted, n=n)) for seed in range(repetitions)]
    return float(np.mean(found))


@pytest.mark.parametrize("name", DRIFTS)
def test_every_drift_is_seen_about_as_often_as_the_best_peer_sees_it(name: str) -> None:
    repetitions = 40 if LONG else 2
    own = power("scanflow drift check", name, repetitions)
    assert own >= 0.5
    if LONG:
        assert own >= max(power(peer, name, repetitions) for peer in list(CONTENDERS)[1:]) - 0.05


@pytest.mark.parametrize("name", ["10 columns, correlation 0 to .3", "flag 3 % to 10 %"])
@pytest.mark.parametrize("n", [50, 500])
def test_data_without_drift_seldom_alarms(name: str, n: int) -> None:
    repetitions = 1000 if LONG else 10
    alarms = power("scanflow drift check", name, repetitions, drifted=False, n=n) * repetitions
    # So many that 0.5 to 2 % would give less than once in ten thousand times.
    assert stats.binom.ppf(5e-5, repetitions, 0.005) <= alarms <= stats.binom.ppf(1 - 5e-5, repetitions, 0.02)


def main(repetitions: int = 40) -> None:
    print("| drift |", " | ".join(CONTENDERS), "|\n|---|" + "---|" * len(CONTENDERS))
    means = dict.fromkeys(CONTENDERS, 0.0)
    for name in DRIFTS:
        found = {contender: power(contender, name, repetitions) for contender in CONTENDERS}
        means = {contender: means[contender] + value / len(DRIFTS) for contender, value in found.items()}
        print(f"| {name} |", " | ".join(f"{value:.2f}" for value in found.values()), "|", flush=True)
    print("| mean |", " | ".join(f"{value:.2f}" for value in means.values()), "|")


if __name__ == "__main__":
    main()
