"""Small pictures, read back by an imaging library."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scanflow.drift.thumbnail import encode_thumbnail


def open_thumbnail(values: Any, **more: Any) -> Image.Image:
    png = encode_thumbnail(values, **more)
    assert png is not None
    image = Image.open(io.BytesIO(png))
    image.load()  # which checks every chunk's sum
    return image


def test_a_picture_is_the_same_when_it_is_read_back() -> None:
    grey = np.random.default_rng(1).integers(0, 256, (28, 20), dtype=np.uint8)
    colour = np.random.default_rng(1).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(open_thumbnail(grey)), grey)
    assert np.array_equal(np.asarray(open_thumbnail(grey[..., None] / 255.0)), grey)
    assert np.array_equal(np.asarray(open_thumbnail(grey.astype(float))), grey)
    assert np.array_equal(np.asarray(open_thumbnail(colour)), colour)
    assert np.array_equal(np.asarray(open_thumbnail(np.moveaxis(colour, 2, 0))), colour), "channels first"


def test_numbers_of_another_range_are_stretched_and_a_large_picture_is_thinned_out() -> None:
    pixels = np.asarray(open_thumbnail(np.linspace(-1.0, 1.0, 16).reshape(4, 4)))
    assert (pixels.min(), pixels.max()) == (0, 255)
    assert np.asarray(open_thumbnail(np.full((4, 4), np.nan))).max() == 0
    assert open_thumbnail(np.zeros((300, 200)), most=64).size == (40, 60)


@pytest.mark.parametrize("values", [np.zeros(64), np.zeros((2, 40)), np.zeros((5, 5, 7)), np.array([["a"] * 9] * 9)])
def test_what_is_no_picture_has_none(values: Any) -> None:
    assert encode_thumbnail(values) is None
