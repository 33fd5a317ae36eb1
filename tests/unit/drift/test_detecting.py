"""What of new predictions a detection compares."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from scanflow.drift.detecting import drop_repeated_pictures, restore_missing, restore_times
from scanflow.drift.prediction_data import PredictionData
from scanflow.drift.samples import compute_digests
from scanflow.drift.table import DataTable
from scanflow.drift.two_sample import compare


def test_pictures_that_were_sent_again_count_once_and_alike_rows_of_tables_each() -> None:
    ids = [f"run:{at}" for at in range(6)]
    pictures = np.repeat(np.arange(3, dtype=np.uint8), 2)[[0, 2, 4, 1, 3, 5]].reshape(6, 1, 1) * np.ones(
        (8, 8), np.uint8
    )
    once = drop_repeated_pictures(PredictionData(x=pictures, ids=ids))
    assert once.ids == ids[:3]
    assert np.array_equal(once.x, pictures[:3])
    flags = PredictionData(x=pd.DataFrame({"flag": [0, 0, 1, 0, 1, 1]}), ids=ids)
    assert drop_repeated_pictures(flags) is flags


def test_empty_text_is_a_missing_value_unless_the_training_data_has_it() -> None:
    cities = np.array(["Vic", "Girona", None, "Olot"], object)
    frame = pd.DataFrame({"city": np.tile(cities, 100), "note": np.tile(["", "a"], 200), "n": np.arange(400.0)})
    sent = frame.assign(city=frame["city"].where(frame["city"].notna(), ""))

    restored = restore_missing(frame, sent)

    assert restored["city"].isna().tolist() == frame["city"].isna().tolist()
    assert restored["note"].tolist() == frame["note"].tolist()
    assert not compare(DataTable.from_data(frame), DataTable.from_data(restored)).drifted
    assert compare(DataTable.from_data(frame), DataTable.from_data(sent)).drifted
    pictures = np.zeros((3, 8, 8))
    assert restore_missing(pictures, pictures) is pictures


def test_a_column_may_have_the_name_of_an_argument() -> None:
    """``self`` is one of each method: ``DataFrame.assign`` refuses it."""
    days = pd.date_range("2026-01-01", periods=2)
    frame = pd.DataFrame({"self": ["yes", None], "data": days, 7: ["a", None]})
    sent = pd.DataFrame({"self": ["yes", ""], "data": days.astype(str), 7: ["a", ""]})
    restored = restore_missing(frame, restore_times(frame, sent))
    assert restored.isna().to_numpy().tolist() == frame.isna().to_numpy().tolist()
    assert restored["data"].tolist() == days.tolist()
    assert sent["self"].tolist() == ["yes", ""], "what was sent is left alone"


@pytest.mark.parametrize(
    "write", [str, pd.Timestamp.isoformat, lambda day: day.strftime("%Y-%m-%d"), lambda day: f"{day.isoformat()}Z"]
)
def test_date_times_that_were_sent_as_text_are_those_of_the_training_data(write: Callable[[pd.Timestamp], str]) -> None:
    days = pd.Series(np.tile(pd.date_range("2026-01-01", periods=12, freq="MS"), 40))
    days[7] = pd.NaT
    frame = pd.DataFrame({"day": days, "n": np.random.default_rng(0).normal(size=480)})
    sent = frame.assign(day=["" if day is pd.NaT else write(day) for day in days])
    assert compare(DataTable.from_data(frame), DataTable.from_data(sent)).drifted, "what it is about"

    restored = restore_times(frame, sent)

    assert restored["day"].isna().tolist() == days.isna().tolist()
    assert not compare(DataTable.from_data(frame), DataTable.from_data(restored)).drifted
    assert compute_digests(restored) == compute_digests(frame), "a row is not in training and in evaluation"
    later = frame.assign(day=days + pd.DateOffset(years=1))
    assert compare(DataTable.from_data(frame), DataTable.from_data(restore_times(frame, later))).drifted


def test_a_column_with_a_text_that_is_no_time_stays_text(capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame({"day": pd.date_range("2026-01-01", periods=3), "note": ["a", "b", "c"]})
    sent = frame.assign(day=["2026-01-01", "soon", "2026-01-03"])
    restored = restore_times(frame, sent)
    assert restored["day"].tolist() == sent["day"].tolist()
    assert "'day' is compared as text" in capsys.readouterr().out
    assert restore_times(frame, frame) is frame
