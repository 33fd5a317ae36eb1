"""Date-times for a model: which are its own, and which it cannot have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scanflow_serving.model_inputs import ModelInputs
from scanflow_serving.problems import ProblemError
from scanflow_serving.signature import NodeSignature, TensorSpec

INPUTS = ModelInputs(NodeSignature((TensorSpec("at", "BYTES", (-1,), content="datetime"),), table=True))


def convert(*values: Any, dtype: str = "O") -> list[str]:
    columns = INPUTS.read_columns({"at": np.array(values, dtype)})
    assert columns is not None
    return [str(value)[:16] for value in columns["at"]]


def test_the_first_and_the_last_moments_that_pandas_counts_are_taken() -> None:
    assert convert("1677-09-22", "2262-04-11T10:00", "NaT") == ["1677-09-22T00:00", "2262-04-11T10:00", "NaT"]
    assert convert("2024-03-01", "NaT", dtype="M8[D]") == ["2024-03-01T00:00", "NaT"]


@pytest.mark.parametrize("moment", ["9999-12-31", "0001-01-01", "1677-09-20", "2262-04-12"])
@pytest.mark.parametrize("dtype", ["O", "M8[s]"])
def test_moments_beyond_are_refused_and_not_turned_into_others(moment: str, dtype: str) -> None:
    with pytest.raises(ProblemError, match=f"{moment}.* is beyond the date-times.*1677-09-21 to 2262-04-11"):
        convert("2024-03-01", moment, dtype=dtype)


@pytest.mark.parametrize("word", ["now", "Today", " now"])
def test_words_that_are_another_moment_with_each_request_are_refused(word: str) -> None:
    with pytest.raises(ProblemError, match="is not a date and time without a time zone"):
        convert(word)
