"""What every detector promises: quiet without drift, an alarm with it, in any order; and clear words on bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.drift.detectors import catalogue
from scanflow.drift.detectors.ks import KS
from scanflow.drift.detectors.mmd import MMD
from scanflow.drift.detectors.port import Detector, Floats, Scores
from scanflow.drift.detectors.prior import ClassPrior
from scanflow.drift.detectors.psi import PSI
from scanflow.errors import InvalidError, NotFoundError

Draw = Callable[[np.random.Generator, int], Any]

FEATURES = 40


def points(generator: np.random.Generator, count: int) -> Floats:
    """Normal ones in 40 dimensions, of which few matter, as in pictures."""
    return generator.normal(size=(count, FEATURES)) / np.sqrt(1 + np.arange(FEATURES))


def moved(generator: np.random.Generator, count: int) -> Floats:
    return points(generator, count) + 0.4


def wider(generator: np.random.Generator, count: int) -> Floats:
    return points(generator, count) * 1.6


def digits(generator: np.random.Generator, count: int) -> Any:
    return generator.integers(0, 10, count)


def mostly_ones(generator: np.random.Generator, count: int) -> Any:
    return np.where(generator.random(count) < 0.15, 1, digits(generator, count))


def made(name: str, level: float = 0.01) -> Detector:
    options: dict[str, Any] = {"level": level} | ({} if name == "prior" else {"components": 8})
    return catalogue.make(name, generator=np.random.default_rng(3), options=options)


CASES: list[tuple[str, Draw, Draw]] = [
    ("ks", points, moved),
    ("ks", points, wider),
    ("psi", points, moved),
    ("psi", points, wider),
    ("mmd", points, moved),
    ("mmd", points, wider),
    ("prior", digits, mostly_ones),
]
KINDS = [("ks", points), ("psi", points), ("mmd", points), ("prior", digits)]


def told(scores: Scores) -> tuple[object, ...]:
    return scores.values.tolist(), scores.statistic, scores.threshold, scores.p_value, scores.outlier_threshold


@pytest.mark.parametrize(("name", "reference", "drifted"), CASES)
def test_drift_raises_an_alarm(name: str, reference: Draw, drifted: Draw) -> None:
    fitted = made(name).fit(reference(np.random.default_rng(0), 800))

    for seed in range(1, 4):
        scores = fitted.score(drifted(np.random.default_rng(seed), 400))

        assert scores.drifted
        assert scores.p_value is not None
        assert scores.p_value <= 0.01


@pytest.mark.parametrize(("name", "draw"), KINDS)
def test_without_drift_alarms_are_as_rare_as_they_should_be(name: str, draw: Draw) -> None:
    alarms = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        detector = MMD(generator=generator, level=0.05, permutations=20, components=8) if name == "mmd" else None
        fitted = (detector or made(name, 0.05)).fit(draw(generator, 300))
        alarms += fitted.score(draw(generator, 150)).drifted

    assert alarms <= 12  # of 100 at a level of 5 %; more than that is one chance in 700


@pytest.mark.parametrize(("name", "draw"), KINDS)
def test_a_small_batch_without_drift_raises_no_alarm(name: str, draw: Draw) -> None:
    fitted = made(name).fit(draw(np.random.default_rng(0), 500))

    assert sum(fitted.score(draw(np.random.default_rng(seed), 12)).drifted for seed in range(40)) <= 3


@pytest.mark.parametrize(("name", "draw"), KINDS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_the_order_of_a_batch_only_orders_its_values(name: str, draw: Draw, seed: int) -> None:
    generator = np.random.default_rng(seed)
    fitted = made(name).fit(draw(generator, 200))
    batch = draw(generator, 60)
    order = generator.permutation(60)

    plain, shuffled = fitted.score(batch), fitted.score(batch[order])

    assert shuffled.values == pytest.approx(plain.values[order], rel=1e-9)
    assert shuffled.statistic == pytest.approx(plain.statistic, rel=1e-6, abs=1e-12)
    assert shuffled.p_value == pytest.approx(plain.p_value, rel=1e-6)
    assert shuffled.drifted == plain.drifted
    assert sorted(order[shuffled.outliers]) == sorted(plain.outliers)


@pytest.mark.parametrize(("name", "draw"), KINDS)
def test_scoring_again_says_the_same_and_so_does_a_saved_detector(name: str, draw: Draw, tmp_path: Path) -> None:
    fitted = made(name).fit(draw(np.random.default_rng(0), 200))
    batch = draw(np.random.default_rng(1), 80)
    fitted.save(tmp_path / "detector")
    fitted.save(tmp_path / "detector")

    loaded = catalogue.load(tmp_path / "detector")

    assert told(fitted.score(batch)) == told(fitted.score(batch)) == told(loaded.score(batch))


@pytest.mark.parametrize(("name", "draw"), KINDS)
def test_bad_batches_and_references_are_refused_with_what_to_do(name: str, draw: Draw) -> None:
    reference = draw(np.random.default_rng(0), 100)
    fitted = made(name).fit(reference)
    good = reference[:10].astype(float)
    spoilt = good.copy()
    spoilt[3] = np.nan

    for batch, said in [
        (good[:0], r"has 0 samples.*Wait for more data"),
        (spoilt, r"1 of the batch's 10 samples have NaN.*first number 3"),
        (np.ones((10, 3)), "the shape"),
        (np.array(["one", "two"]), "Convert it to floats"),
        (np.array(1.0), "one number"),
    ]:
        with pytest.raises(InvalidError, match=said):
            fitted.score(batch)
    with pytest.raises(InvalidError, match=r"at least 20 are needed.*training data"):
        made(name).fit(draw(np.random.default_rng(0), 19))


@pytest.mark.parametrize(
    ("detector", "words"),
    [
        (KS(level=0.5), "level=0.5"),
        (KS(components=0), "components=0"),
        (KS(outlier_share=1.0), "outlier_share=1.0"),
        (PSI(bins=1), "bins=1"),
        (PSI(alarm_above=0), "alarm_above=0"),
        (PSI(level=0), "level=0"),
        (MMD(generator=np.random.default_rng(0), permutations=50), "permutations=99 or more"),
        (MMD(generator=np.random.default_rng(0), level=2), "level=2"),
        (MMD(generator=np.random.default_rng(0), most=1), "most=1"),
        (ClassPrior(level=-1), "level=-1"),
        (ClassPrior(test="t"), "test='t'"),  # type: ignore[arg-type]  # what a JSON file may say
    ],
)
def test_options_that_cannot_be_are_refused(detector: Detector, words: str) -> None:
    with pytest.raises(InvalidError, match=words.replace(".", r"\.")):
        detector.fit(digits(np.random.default_rng(0), 100))


def test_names_and_options_that_are_not_known_are_told() -> None:
    generator = np.random.default_rng(0)

    with pytest.raises(NotFoundError, match=r"no detector 'kss'\. Did you mean 'ks'"):
        catalogue.make("kss", generator=generator)
    with pytest.raises(InvalidError, match=r"cannot have these options.*'speed'"):
        catalogue.make("ks", generator=generator, options={"speed": 1})
    assert all(catalogue.make(name, generator=generator) for name in catalogue.names())


def test_what_is_no_saved_detector_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="No detector is saved in"):
        catalogue.load(tmp_path)
    for text, said in [("{", "is not JSON"), ("{}", "which kind"), ('{"kind": "magic"}', "no detector 'magic'")]:
        (tmp_path / "detector.json").write_text(text)
        with pytest.raises((InvalidError, NotFoundError), match=said):
            catalogue.load(tmp_path)
    (tmp_path / "detector.json").write_text('{"kind": "ks"}')
    (tmp_path / "detector.npz").write_bytes(b"PK, but no more")
    with pytest.raises(InvalidError, match="cannot be read"):
        catalogue.load(tmp_path)
    np.savez(tmp_path / "detector.npz", centre=np.ones(2))
    with pytest.raises(InvalidError, match="lacks 'shape'"):
        catalogue.load(tmp_path)


# Each one's own


def test_few_outliers_are_found_where_there_are_some() -> None:
    fitted = KS(components=8).fit(points(np.random.default_rng(0), 1000))
    batch = points(np.random.default_rng(1), 100)
    batch[[4, 50]] += 5

    scores = fitted.score(batch)

    assert {4, 50} <= set(scores.outliers.tolist())
    assert len(scores.outliers) <= 8
    assert scores.values[[4, 50]].min() > scores.outlier_threshold


def test_what_the_reference_never_does_is_seen_outside_its_directions() -> None:
    generator = np.random.default_rng(0)
    flat = np.zeros((400, FEATURES))
    flat[:, :5] = generator.normal(size=(400, 5))
    batch = flat[:100].copy()
    batch[:, 20] += 0.5

    scores = KS(components=5).fit(flat).score(batch)

    assert scores.drifted
    assert scores.by_feature is not None
    assert scores.by_feature.shape == (6,)
    assert scores.by_feature.argmax() == 5  # the sixth feature: what the five directions leave out


def test_an_alarm_can_be_kept_for_what_matters() -> None:
    generator = np.random.default_rng(0)
    reference, batch = generator.normal(size=(4000, 1)), generator.normal(size=(4000, 1)) + 0.15

    plain, calm = KS().fit(reference).score(batch), KS(alarm_above=0.2).fit(reference).score(batch)

    assert plain.drifted
    assert not calm.drifted
    assert calm.threshold == 0.2


def test_the_index_of_a_known_change_is_known() -> None:
    reference = np.repeat(np.arange(2.0), 500)[:, None]
    batch = np.repeat(np.arange(2.0), [100, 300])[:, None]

    scores = PSI(bins=2).fit(reference).score(batch)

    assert scores.statistic == pytest.approx((0.25 - 0.5) * np.log(0.5) + (0.75 - 0.5) * np.log(1.5), rel=0.02)


def test_constant_features_do_no_harm() -> None:
    reference = np.ones((50, 4))

    for name in ("ks", "psi", "mmd"):
        fitted = made(name).fit(reference)
        assert not fitted.score(reference[:20]).drifted
        assert fitted.score(reference[:20] * 3).drifted


def test_mmd_sees_a_dependence_that_no_single_feature_shows() -> None:
    generator = np.random.default_rng(0)
    reference = generator.normal(size=(400, 2))
    other = generator.normal(size=(400, 1))
    batch = np.column_stack([other, other])

    assert MMD(generator=generator).fit(reference).score(batch).drifted
    assert not KS().fit(reference).score(batch).drifted


def test_mmd_needs_two_samples_and_compares_no_more_than_it_was_told() -> None:
    detector = MMD(generator=np.random.default_rng(0), most=50, components=4)
    fitted = detector.fit(points(np.random.default_rng(1), 400))

    with pytest.raises(InvalidError, match="MMD needs 2"):
        fitted.score(points(np.random.default_rng(0), 1))
    assert fitted.points.shape[0] == 50
    assert len(fitted.score(moved(np.random.default_rng(2), 400)).values) == 400


@pytest.mark.parametrize("test", ["chi-square", "g"])
def test_the_class_prior_is_that_of_scipy(test: str) -> None:
    stats = pytest.importorskip("scipy.stats")
    old, new = digits(np.random.default_rng(0), 300), mostly_ones(np.random.default_rng(1), 200)
    table = [np.bincount(old, minlength=10), np.bincount(new, minlength=10)]
    theirs = stats.chi2_contingency(table, lambda_="log-likelihood" if test == "g" else None)

    scores = ClassPrior(test="g" if test == "g" else "chi-square").fit(old).score(new)

    assert scores.statistic == pytest.approx(float(theirs.statistic))
    assert scores.p_value == pytest.approx(float(theirs.pvalue))


def test_classes_that_come_too_often_are_the_outliers_also_new_ones() -> None:
    fitted = ClassPrior().fit(np.repeat([0, 1], 100))

    scores = fitted.score(np.array([0] * 40 + [1] * 40 + [7] * 20))

    assert scores.drifted
    assert scores.outliers.tolist() == list(range(80, 100))


def test_the_class_prior_wants_classes() -> None:
    with pytest.raises(InvalidError, match="holds fractions"):
        ClassPrior().fit(np.linspace(0, 1, 50))
    with pytest.raises(InvalidError, match=r"scores.argmax\(axis=1\)"):
        ClassPrior().fit(np.ones((50, 10)))
