"""What of new predictions a detection compares."""

from __future__ import annotations

import numpy as np
import pandas as pd

from scanflow.drift.detecting import _distinct
from scanflow.drift.prediction_data import PredictionData


def test_pictures_that_were_sent_again_count_once_and_alike_rows_of_tables_each() -> None:
    ids = [f"run:{at}" for at in range(6)]
    pictures = np.repeat(np.arange(3, dtype=np.uint8), 2)[[0, 2, 4, 1, 3, 5]].reshape(6, 1, 1) * np.ones(
        (8, 8), np.uint8
    )
    once = _distinct(PredictionData(x=pictures, ids=ids))
    assert once.ids == ids[:3]
    assert np.array_equal(once.x, pictures[:3])
    flags = PredictionData(x=pd.DataFrame({"flag": [0, 0, 1, 0, 1, 1]}), ids=ids)
    assert _distinct(flags) is flags
