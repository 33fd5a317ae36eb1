"""Generates drifted digits: seven corruptions of MNIST-C (Mu and Gilmer, 2019), with NumPy alone.

They are of the same kinds and strengths as the originals, not the same bytes. All take and give pictures (n, 28, 28),
uint8, from 0 (black) to 255 (white), and a generator; the same seed gives the same pictures.

    drifted = corrupt(x, "fog", seed=7)
    drifted, kinds = mixed(x, seed=7)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Pictures = NDArray[np.uint8]
Floats = NDArray[np.float64]

SIDE = 28
PHOTONS = 3  # of a white pixel
ROTATED_RAD = 0.4
MOVED_PX = 3
FOG = 3.0  # how many times brighter than the digit
FOG_DECAY = 2.0  # how much smoother each finer detail is than the one before
SKY_PX, PICTURES_A_SKY = 256, 32
STRIPE = slice(7, 21)  # what is left as it is
BLUR_PX, BLUR_SIGMA_PX = 12, 2.8
BLUR_DEG = 45.0
EDGE_SIGMA_PX, EDGE_LOW, EDGE_HIGH = 1.0, 0.1, 0.2


class NotPicturesError(ValueError):
    """Invalid pictures; the message says what is wrong and what to do."""


def shot_noise(x: Pictures, generator: np.random.Generator) -> Pictures:
    """Shot noise: the brightness of each pixel is a Poisson count."""
    return bytes_of(generator.poisson(x / 255.0 * PHOTONS) / PHOTONS)


def rotate(x: Pictures, generator: np.random.Generator) -> Pictures:
    """Turned to the left or to the right, around the centre."""
    angle = ROTATED_RAD * either(generator, len(x))
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    down, right = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    centre = (SIDE - 1) / 2
    return bytes_of(sampled(x / 255.0, centre + cos * down + sin * right, centre - sin * down + cos * right))


def fog(x: Pictures, generator: np.random.Generator) -> Pictures:
    """A bright fractal cloud in front of the digit, so that what is left of it is pale."""
    top = x.max(axis=(1, 2), keepdims=True) / 255.0
    return bytes_of((x / 255.0 + FOG * cloud(len(x), generator)) * top / (top + FOG))


def stripe(x: Pictures, _: np.random.Generator) -> Pictures:
    """Inverted, but for a stripe in the middle."""
    inverted = 255 - x
    inverted[:, :, STRIPE] = x[:, :, STRIPE]
    return inverted


def motion_blur(x: Pictures, generator: np.random.Generator) -> Pictures:
    """Smeared to one side, along a line of up to 45 degrees."""
    angle = np.deg2rad(generator.uniform(-BLUR_DEG, BLUR_DEG, len(x)))[:, None, None]
    weights = np.exp(-(np.arange(BLUR_PX) ** 2) / (2 * BLUR_SIGMA_PX**2))
    down, right = np.mgrid[:SIDE, :SIDE].astype(np.float64)
    smeared = np.zeros(x.shape)
    for step, weight in enumerate(weights / weights.sum()):
        smeared += weight * sampled(x / 255.0, down - step * np.sin(angle), right + step * np.cos(angle))
    return bytes_of(smeared)


def translate(x: Pictures, generator: np.random.Generator) -> Pictures:
    """Moved along a diagonal, to any of the four corners."""
    down, right = either(generator, len(x))[:, None], either(generator, len(x))[:, None]
    padded = np.pad(x, ((0, 0), (MOVED_PX, MOVED_PX), (MOVED_PX, MOVED_PX)))
    rows, columns = (MOVED_PX * (1 - sign) + np.arange(SIDE) for sign in (down, right))
    moved: Pictures = padded[np.arange(len(x))[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved


def canny_edges(x: Pictures, _: np.random.Generator) -> Pictures:
    """Only the edges, one pixel wide (Canny, 1986)."""
    smooth = blurred(x / 255.0)
    padded = np.pad(smooth, ((0, 0), (1, 1), (1, 1)), mode="edge")
    across = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    along = padded[:, :, :-2] + 2 * padded[:, :, 1:-1] + padded[:, :, 2:]
    right, down = across[:, :, 2:] - across[:, :, :-2], along[:, 2:] - along[:, :-2]
    steepness = np.hypot(right, down)
    ridge = steepest(steepness, right, down)
    found = ridge & (steepness >= EDGE_HIGH)
    while True:  # weak edges count where they go on from strong ones
        grown = ridge & (steepness >= EDGE_LOW) & spread(found)
        if (grown == found).all():
            return (found * 255).astype(np.uint8)
        found = grown


KINDS: dict[str, Callable[[Pictures, np.random.Generator], Pictures]] = {
    function.__name__: function for function in (shot_noise, rotate, fog, stripe, motion_blur, translate, canny_edges)
}


def corrupt(x: Pictures, kind: str, *, seed: int) -> Pictures:
    """Return a copy of the pictures (n, 28, 28), uint8, with one of :data:`KINDS` of corruption."""
    check(x)
    if kind not in KINDS:
        raise NotPicturesError(f"kind={kind!r} is not known. Use one of {', '.join(KINDS)}.")
    return KINDS[kind](x, np.random.default_rng(seed)) if len(x) else x.copy()


def mixed(x: Pictures, *, seed: int, kinds: Sequence[str] = tuple(KINDS)) -> tuple[Pictures, NDArray[np.str_]]:
    """Return the pictures, each with a corruption drawn from ``kinds``, and which (n,)."""
    check(x)
    drawn = np.random.default_rng(seed).choice(np.array(kinds, dtype=np.str_), len(x))
    drifted = x.copy()
    for number, kind in enumerate(kinds):
        drifted[drawn == kind] = corrupt(x[drawn == kind], kind, seed=seed + 1 + number)
    return drifted, drawn


def check(x: Pictures) -> None:
    if x.dtype != np.uint8 or x.ndim != 3 or x.shape[1:] != (SIDE, SIDE):
        raise NotPicturesError(f"Pictures must be (n, 28, 28) of uint8; these are {x.shape} of {x.dtype}.")


def bytes_of(x: Floats) -> Pictures:
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)


def either(generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    return generator.integers(0, 2, count) * 2 - 1


def sampled(x: Floats, down: Floats, right: Floats) -> Floats:
    """Return the brightness at positions (n, 28, 28) between pixels, by linear interpolation; black outside."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    down, right = np.clip(down + 1, 0, SIDE + 0.999), np.clip(right + 1, 0, SIDE + 0.999)
    row, column = down.astype(np.intp), right.astype(np.intp)
    below, beside = down - row, right - column
    picture = np.arange(len(x))[:, None, None]
    upper = padded[picture, row, column] * (1 - beside) + padded[picture, row, column + 1] * beside
    lower = padded[picture, row + 1, column] * (1 - beside) + padded[picture, row + 1, column + 1] * beside
    result: Floats = upper * (1 - below) + lower * below
    return result


def cloud(count: int, generator: np.random.Generator) -> Floats:
    """Return clouds (count, 28, 28), each a piece of a sky: within it brightness varies little, between them much."""
    skies = np.stack([sky(generator) for _ in range(-(-count // PICTURES_A_SKY))])
    top, left = generator.integers(0, SKY_PX, (2, count, 1))
    rows, columns = (top + np.arange(SIDE)) % SKY_PX, (left + np.arange(SIDE)) % SKY_PX
    which = np.arange(count)[:, None, None] // PICTURES_A_SKY
    clouds: Floats = skies[which, rows[:, :, None], columns[:, None, :]]
    return clouds


def sky(generator: np.random.Generator) -> Floats:
    """Return a (256, 256) fractal from 0 to 1 by the diamond-square algorithm; its opposite edges match."""
    whole = np.zeros((SKY_PX, SKY_PX))
    step, roughness = SKY_PX, 1.0
    while step >= 2:
        half = step // 2

        def rough(total: Floats, amount: float = roughness) -> Floats:
            return total / 4 + amount * generator.uniform(-1, 1, total.shape)

        corners = whole[::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        whole[half::step, half::step] = rough(pairs + np.roll(pairs, -1, axis=1))
        middles = whole[half::step, half::step]
        whole[::step, half::step] = rough(
            middles + np.roll(middles, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        )
        whole[half::step, ::step] = rough(
            middles + np.roll(middles, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        )
        step, roughness = half, roughness / FOG_DECAY
    low, high = whole.min(), whole.max()
    between: Floats = (whole - low) / (high - low)
    return between


def blurred(x: Floats) -> Floats:
    reach = int(4 * EDGE_SIGMA_PX)
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * EDGE_SIGMA_PX**2))
    weights /= weights.sum()
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach)))
    rows = sum(weight * padded[:, at : at + SIDE] for at, weight in enumerate(weights))
    assert isinstance(rows, np.ndarray)
    both = sum(weight * rows[:, :, at : at + SIDE] for at, weight in enumerate(weights))
    assert isinstance(both, np.ndarray)
    return both


def steepest(steepness: Floats, right: Floats, down: Floats) -> NDArray[np.bool_]:
    """Return where the gradient is largest along its direction (non-maximum suppression)."""
    length = np.where(steepness > 0, steepness, 1.0)
    rows, columns = np.mgrid[:SIDE, :SIDE].astype(np.float64)
    ahead = sampled(steepness, rows + down / length, columns + right / length)
    behind = sampled(steepness, rows - down / length, columns - right / length)
    return (steepness >= ahead) & (steepness > behind) & (steepness > 0)


def spread(found: NDArray[np.bool_]) -> NDArray[np.bool_]:
    padded = np.pad(found, ((0, 0), (1, 1), (1, 1)))
    wide = padded[:, :-2] | padded[:, 1:-1] | padded[:, 2:]
    grown: NDArray[np.bool_] = wide[:, :, :-2] | wide[:, :, 1:-1] | wide[:, :, 2:]
    return grown
