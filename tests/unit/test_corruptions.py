"""The tutorial's corruptions: what they promise, and, where the real ones are at hand, how like those they are."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("SCANFLOW_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
KINDS = ("shot_noise", "rotate", "fog", "stripe", "motion_blur", "translate", "canny_edges")
needs_data = pytest.mark.skipif(not (DATA / "mnist_c_2k.npz").is_file(), reason="MNIST-C is not at hand")


@pytest.fixture(scope="module")
def corruptions() -> ModuleType:
    path = REPOSITORY / "tutorials" / "mnist" / "corruptions.py"
    spec = importlib.util.spec_from_file_location("tutorial_corruptions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    with np.load(DATA / "mnist_10k.npz") as clean, np.load(DATA / "mnist_c_2k.npz") as drifted:
        arrays = {name: clean[name] for name in ("x_train", "y_train", "x_test", "y_test")}
        return arrays | {name: drifted[name] for name in KINDS}


def strokes(count: int = 30) -> Any:
    generator = np.random.default_rng(0)
    x = np.zeros((count, 28, 28), dtype=np.uint8)
    for picture in x:
        column, row = generator.integers(8, 18, 2)
        picture[6:22, column : column + 3] = 255
        picture[row : row + 3, 7:21] = 200
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_stay_pictures_and_the_same_seed_gives_the_same(kind: str, corruptions: ModuleType) -> None:
    x = strokes()

    drifted, again, other = (corruptions.corrupt(x, kind, seed=seed) for seed in (1, 1, 2))

    assert tuple(corruptions.KINDS) == KINDS
    assert (drifted.shape, drifted.dtype) == (x.shape, np.uint8)
    assert np.array_equal(x, strokes())
    assert not np.shares_memory(drifted, x)
    assert (drifted != x).any(axis=(1, 2)).all()
    assert np.array_equal(drifted, again)
    assert np.array_equal(drifted, other) == (kind in {"stripe", "canny_edges"})  # in these there is no chance
    flat = np.stack([np.zeros((28, 28), dtype=np.uint8), np.full((28, 28), 255, dtype=np.uint8)])
    for few in (strokes(0), flat):
        assert corruptions.corrupt(few, kind, seed=1).shape == few.shape


def test_a_mixture_has_all_kinds_and_says_which(corruptions: ModuleType) -> None:
    x = strokes(200)

    drifted, kinds = corruptions.mixed(x, seed=5)
    again, kinds_again = corruptions.mixed(x, seed=5)

    assert set(kinds) == set(KINDS)
    assert np.array_equal(drifted, again)
    assert np.array_equal(kinds, kinds_again)
    inverted = kinds == "stripe"
    assert np.array_equal(drifted[inverted], corruptions.corrupt(x[inverted], "stripe", seed=0))


@pytest.mark.parametrize("x", [np.zeros((2, 28, 28)), np.zeros((28, 28), dtype=np.uint8)])
def test_what_are_no_pictures_is_refused(x: Any, corruptions: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"Pictures must be \(n, 28, 28\) of uint8"):
        corruptions.corrupt(x, "fog", seed=1)
    with pytest.raises(ValueError, match=r"'snow' is not known\. Use one of shot_noise"):
        corruptions.corrupt(strokes(), "snow", seed=1)


# Beside the real ones


@needs_data
@pytest.mark.parametrize("kind", KINDS)
def test_they_look_like_the_real_ones(kind: str, corruptions: ModuleType, real: dict[str, Any]) -> None:
    drifted, theirs = corruptions.corrupt(real["x_test"], kind, seed=3), real[kind]

    def likeness(first: Any, other: Any) -> float:
        return float(np.corrcoef(first.ravel(), other.ravel())[0, 1])

    def roughness(x: Any) -> float:
        return float(np.abs(np.diff(x.astype(float), axis=2)).mean())

    assert drifted.mean() == pytest.approx(theirs.mean(), rel=0.06)
    assert drifted.std() == pytest.approx(theirs.std(), rel=0.06)
    assert roughness(drifted) == pytest.approx(roughness(theirs), rel=0.06)
    assert (drifted == 0).mean() == pytest.approx((theirs == 0).mean(), abs=0.02)
    assert likeness(drifted.mean(axis=0), theirs.mean(axis=0)) > 0.98
    if kind == "fog":  # the real pictures all have the same corner of a sky each, ours any part of it
        assert drifted.mean(axis=(1, 2)).std() == pytest.approx(theirs.mean(axis=(1, 2)).std(), rel=0.15)
    else:
        assert likeness(drifted.std(axis=0), theirs.std(axis=0)) > 0.98
