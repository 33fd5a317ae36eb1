"""What every detector promises: quiet without drift, an alarm with it, in any order; and clear words on bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.drift.detectors import catalogue
from scanflow.drift.detectors.detector_port import Detector, Floats, Scores
from scanflow.drift.detectors.prior import ClassPrior
from scanflow.drift.detectors.table_detector import TableDetector
from scanflow.errors import InvalidError, NotFoundError

Draw = Callable[[np.random.Generator, int], Any]


def points(generator: np.random.Generator, count: int) -> Floats:
    return generator.normal(size=(count, 12)) / np.sqrt(1 + np.arange(12))


def draw_moved(generator: np.random.Generator, count: int) -> Floats:
    return points(generator, count) + 0.4


def wider(generator: np.random.Generator, count: int) -> Floats:
    return points(generator, count) * 1.6


def pictures(generator: np.random.Generator, count: int) -> Floats:
    return generator.normal(size=(count, 5)) @ np.random.default_rng(9).normal(size=(5, 400))


def noisy(generator: np.random.Generator, count: int) -> Floats:
    return pictures(generator, count) + generator.normal(size=(count, 400))


def rows(generator: np.random.Generator, count: int) -> Any:
    age = generator.normal(40, 10, count)
    return pd.DataFrame(
        {
            "age": np.where(generator.random(count) < 0.1, np.nan, age),
            "pay": np.exp(age / 20) * 1e4,
            "city": generator.choice(["Rome", "Oslo", "Graz"], count, p=[0.6, 0.3, 0.1]),
            "member": generator.random(count) < 0.1,
        }
    )


def of_other_cities(generator: np.random.Generator, count: int) -> Any:
    return rows(generator, count).assign(city=generator.choice(np.array(["Rome", "Lima", None], object), count))


def digits(generator: np.random.Generator, count: int) -> Any:
    return generator.integers(0, 10, count)


def mostly_ones(generator: np.random.Generator, count: int) -> Any:
    return np.where(generator.random(count) < 0.15, 1, digits(generator, count))


def make_detector(name: str, **options: Any) -> Detector:
    return catalogue.make(name, generator=np.random.default_rng(3), options=options)


CASES: list[tuple[str, Draw, Draw]] = [
    ("table", points, draw_moved),
    ("mmd", points, wider),
    ("table", rows, of_other_cities),
    ("table", pictures, noisy),
    ("prior", digits, mostly_ones),
]
KINDS = [("table", points), ("table", rows), ("table", pictures), ("prior", digits)]


def list_results(scores: Scores) -> tuple[object, ...]:
    return scores.values.tolist(), scores.statistic, scores.threshold, scores.p_value, scores.columns


@pytest.mark.parametrize(("name", "reference", "drifted"), CASES)
def test_drift_raises_an_alarm(name: str, reference: Draw, drifted: Draw) -> None:
    fitted = make_detector(name).fit(reference(np.random.default_rng(0), 800))

    for seed in range(1, 4):
        scores = fitted.score(drifted(np.random.default_rng(seed), 400))

        assert scores.drifted
        assert scores.p_value is not None
        assert scores.p_value <= 0.01


@pytest.mark.parametrize(("name", "draw"), KINDS)
def test_without_drift_alarms_are_as_rare_as_they_should_be(name: str, draw: Draw) -> None:
    alarms = 0
    for seed in range(30):
        generator = np.random.default_rng(seed)
        fitted = make_detector(name, level=0.05, permutations=99).fit(draw(generator, 100))
        alarms += fitted.score(draw(generator, 30)).drifted

    assert alarms <= 6  # of 30 at a level of 5 %; more than that is one chance in 1,000


@pytest.mark.parametrize(("name", "draw"), KINDS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=3)
def test_the_order_of_a_batch_only_orders_its_values(name: str, draw: Draw, seed: int) -> None:
    generator = np.random.default_rng(seed)
    fitted = make_detector(name, permutations=499).fit(draw(generator, 100))
    batch = draw(generator, 60)
    order = generator.permutation(60)

    plain = fitted.score(batch)
    shuffled = fitted.score(batch.iloc[order] if isinstance(batch, pd.DataFrame) else batch[order])

    assert shuffled.values == pytest.approx(plain.values[order], rel=1e-6)
    assert shuffled.p_value == pytest.approx(plain.p_value, rel=1e-6)
    assert shuffled.drifted == plain.drifted


@pytest.mark.parametrize(("name", "draw"), KINDS)
def test_scoring_again_says_the_same_and_so_does_a_saved_detector(name: str, draw: Draw, tmp_path: Path) -> None:
    regimes = np.arange(200) % 2
    fitted = catalogue.fit(make_detector(name), draw(np.random.default_rng(0), 200), regimes=regimes, predicted=None)
    batch = draw(np.random.default_rng(1), 80)
    fitted.save(tmp_path / "detector")
    fitted.save(tmp_path / "detector")

    loaded = catalogue.load(tmp_path / "detector")

    assert (
        list_results(fitted.score(batch))
        == list_results(catalogue.score(loaded, batch, predicted=None))
        == list_results(loaded.score(batch))
    )


@pytest.mark.parametrize(("name", "draw"), KINDS)
def test_too_little_data_is_refused_with_what_to_do(name: str, draw: Draw) -> None:
    fitted = make_detector(name).fit(draw(np.random.default_rng(0), 100))

    with pytest.raises(InvalidError, match=r"batch has 9 rows.*Wait for more data"):
        fitted.score(draw(np.random.default_rng(1), 9))
    with pytest.raises(InvalidError, match=r"reference has 19 .*least 20 are needed.*training data"):
        make_detector(name).fit(draw(np.random.default_rng(0), 19))


@pytest.mark.parametrize(
    ("detector", "words"),
    [
        (TableDetector(level=0.5), "level=0.5"),
        (TableDetector(permutations=99), "permutations=500"),
        (TableDetector(outlier_share=1.0), "outlier_share=1.0"),
        (TableDetector(columns=["a", "b"]), "2 names for 1 columns"),
        (ClassPrior(level=-1), "level=-1"),
    ],
)
def test_options_that_cannot_be_are_refused(detector: Detector, words: str) -> None:
    with pytest.raises(InvalidError, match=words.replace(".", r"\.")):
        detector.fit(digits(np.random.default_rng(0), 100))


def test_names_and_options_that_are_not_known_are_reported() -> None:
    generator = np.random.default_rng(0)

    with pytest.raises(NotFoundError, match=r"no detector 'tabel'\. Did you mean 'table'"):
        catalogue.make("tabel", generator=generator)
    with pytest.raises(InvalidError, match=r"does not accept these options.*'speed'"):
        catalogue.make("table", generator=generator, options={"speed": 1})
    assert all(catalogue.make(name, generator=generator) for name in catalogue.list_detectors())


def test_what_is_no_saved_detector_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="No detector is saved in"):
        catalogue.load(tmp_path)
    for text, message in [
        ("{", "is not JSON"),
        ("{}", "does not name its kind"),
        ('{"kind": "magic"}', "no detector 'magic'"),
    ]:
        (tmp_path / "detector.json").write_text(text)
        with pytest.raises((InvalidError, NotFoundError), match=message):
            catalogue.load(tmp_path)
    (tmp_path / "detector.json").write_text('{"kind": "table"}')
    (tmp_path / "detector.npz").write_bytes(b"PK, but no more")
    with pytest.raises(InvalidError, match="cannot be read"):
        catalogue.load(tmp_path)
    np.savez(tmp_path / "detector.npz", regimes=np.ones(2))
    with pytest.raises(InvalidError, match="lacks 'names'"):
        catalogue.load(tmp_path)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (np.zeros((5, 28, 28)), "autoencoder"),
        (np.zeros((5, 32, 32, 3)), "autoencoder"),
        (np.zeros((5, 784)), "table"),
        (np.zeros((5, 24, 3)), "table"),
        (rows(np.random.default_rng(0), 5), "table"),
        ({"x": [1, 2]}, "table"),
    ],
)
def test_the_default_depends_on_the_kind_of_data(data: Any, name: str) -> None:
    assert catalogue.choose_detector(data) == name


def test_the_default_of_a_table_fits_one_and_the_autoencoder_says_what_to_use() -> None:
    generator = np.random.default_rng(0)
    data = rows(generator, 200)

    assert catalogue.make("default", generator=generator).fit(data).score(of_other_cities(generator, 100)).drifted
    for table in (data, points(generator, 200)):
        with pytest.raises(InvalidError, match="Use the detector 'table'"):
            catalogue.make("autoencoder", generator=generator).fit(table)


# Each one's own


def test_the_columns_that_drifted_are_named_with_what_they_were() -> None:
    generator = np.random.default_rng(0)
    fitted = TableDetector().fit(rows(generator, 500))

    scores = fitted.score(of_other_cities(generator, 300))

    worst = scores.columns[0]
    assert worst.name == "city"
    assert (worst.reference["Rome"], worst.current["Rome"]) == pytest.approx((0.6, 0.5), abs=0.08)
    assert worst.current["missing"] > 0.2 > worst.reference["missing"] == 0
    assert {column.name for column in scores.columns if column.test in ("ks", "chi2", "missing")} == {"city"}
    assert not TableDetector(least_effect=0.9).fit(rows(generator, 500)).score(of_other_cities(generator, 300)).drifted


def test_strange_rows_are_found_whatever_is_strange_about_them() -> None:
    generator = np.random.default_rng(0)
    fitted = TableDetector().fit(rows(generator, 1000))
    batch = rows(generator, 100)
    batch.loc[4, "city"] = "Lima"
    batch.loc[50, "pay"] = 1e9
    batch.loc[70, ["age", "pay"]] = [60.0, 4e4]  # old, with a young one's pay

    scores = fitted.score(batch)

    assert {4, 50, 70} <= set(scores.outliers.tolist())
    assert len(scores.outliers) <= 10


def test_a_number_of_its_own_makes_no_row_strange() -> None:
    generator = np.random.default_rng(3)
    x = {"v": generator.normal(size=1000), "order": np.array([f"order {at}" for at in range(1000)], object)}
    new = {"v": generator.normal(size=500), "order": np.array([f"order {at}" for at in range(5000, 5500)], object)}
    scores = TableDetector().fit(x).score(new)
    assert not scores.drifted
    assert len(scores.outliers) <= 20
    new["v"][7] = 30.0
    assert 7 in TableDetector().fit(x).score(new).outliers


def test_names_are_given_to_arrays_and_read_from_named_fields() -> None:
    generator = np.random.default_rng(0)
    plain, other = generator.normal(size=(2, 200, 2))
    other[:, 1] += 2
    fields = np.dtype([("age", float), ("pay", float)])
    named = [np.array(list(map(tuple, column)), fields) for column in (plain, other)]

    assert [column.name for column in TableDetector(columns=("age", "pay")).fit(plain).score(other).columns] == ["pay"]
    assert [column.name for column in TableDetector().fit(named[0]).score(named[1]).columns] == ["pay"]
    with pytest.raises(InvalidError, match="lacks 'pay'"):
        TableDetector().fit(named[0]).score({"age": plain[:, 0]})


def test_a_constant_column_does_no_harm() -> None:
    reference = np.ones((50, 4))
    fitted = TableDetector().fit(reference)
    assert not fitted.score(reference[:20]).drifted
    assert fitted.score(reference[:20] * 3).drifted


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_known_regimes_and_their_mixtures_are_no_drift_and_a_third_is(share: float) -> None:
    generator = np.random.default_rng(5)
    reference = np.concatenate([points(generator, 600), draw_moved(generator, 300)])
    fitted = TableDetector().fit(reference, regimes=np.repeat([0, 1], [600, 300]))
    new = round(share * 200)

    mixed = fitted.score(np.concatenate([draw_moved(generator, new), points(generator, 200 - new)]))
    other = fitted.score(
        np.concatenate([draw_moved(generator, new), wider(generator, 200 - new), draw_moved(generator, 40) * 2])
    )

    assert not mixed.drifted
    assert mixed.regimes == pytest.approx((1 - share, share), abs=0.15)
    assert other.drifted


def test_regimes_are_given_one_for_each_row() -> None:
    with pytest.raises(InvalidError, match="3 regimes for 50 rows"):
        TableDetector().fit(np.arange(50.0), regimes=np.zeros(3))


def test_classes_that_are_new_are_the_outliers() -> None:
    fitted = ClassPrior().fit(np.repeat([0, 1], 100))

    scores = fitted.score(np.array([0] * 40 + [1] * 40 + [7] * 20))

    assert scores.drifted
    assert scores.outliers.tolist() == list(range(80, 100))
    assert [column.name for column in scores.columns] == ["class"]


def test_the_class_prior_reads_classes_from_scores_and_wants_whole_numbers() -> None:
    scores = np.eye(3)[np.arange(60) % 3]
    fitted = ClassPrior().fit(np.zeros((60, 5)), predicted=scores)
    assert not fitted.score(np.zeros((30, 5)), predicted=scores[:30]).drifted
    assert fitted.score(np.zeros((30, 5)), predicted=scores[:1].repeat(30, axis=0)).drifted
    with pytest.raises(InvalidError, match="contains fractions"):
        ClassPrior().fit(np.linspace(0, 1, 50))
    with pytest.raises(InvalidError, match=r"scores.argmax\(axis=1\)"):
        ClassPrior().fit(np.ones((50, 10)))
