"""What stands for no value, and which numbers may be rounded ones."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest

from scanflow.arrays import EXACT_MAX, has_large, is_missing

NONE = [
    None,
    np.nan,
    np.float32("nan"),
    np.longdouble("nan"),
    np.datetime64("NaT"),
    np.timedelta64("NaT"),
    pd.NaT,
    pd.NA,
]
VALUES = ["", "nan", 0, False, 0.0, np.float32(0), np.int8(0), np.datetime64("2026"), dt.date(2026, 1, 1), [None]]


@pytest.mark.parametrize("value", NONE)
def test_a_value_that_is_missing_is_so_whoever_made_it(value: object) -> None:
    assert is_missing(value)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_is_empty_or_zero_is_not_missing(value: object) -> None:
    assert not is_missing(value)


@pytest.mark.parametrize("kind", ["float32", "float64", "Float64"])
def test_a_float_may_be_a_rounded_whole_number_from_where_these_have_gaps(kind: str) -> None:
    assert has_large(pd.Series([1.0, None, -EXACT_MAX], dtype=kind))
    assert not has_large(pd.Series([1.0, None], dtype=kind))
    assert not has_large(np.array([EXACT_MAX]))
