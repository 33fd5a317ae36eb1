"""The study's image workload with Pillow: blur, two noises, enhance, negate, normalize, reduce noise, swirl, wave.

It takes about a second of one core for an image of 3 MiB, as the original does with ImageMagick.
"""

from __future__ import annotations

import io
import math

from PIL import Image, ImageChops, ImageFilter, ImageOps

SWIRL_DEGREES = 37
CELLS = 64
AMPLITUDE, LENGTH = 25, 150
NOISE = 50
GREY = 128


def transform(png: bytes) -> bytes:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image = image.filter(ImageFilter.GaussianBlur(0.5))
    image = ImageChops.overlay(image, _noise(image.size))
    image = ImageChops.add(image, _noise(image.size), 1, -GREY)
    image = image.filter(ImageFilter.SMOOTH_MORE)
    image = ImageOps.invert(image)
    image = ImageOps.autocontrast(image, cutoff=(2, 1))
    image = image.filter(ImageFilter.MedianFilter(3))
    image = _wave(_swirl(image))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def picture(side: int = 1024) -> bytes:
    """Return a square PNG of smooth colours under noise: 2.9 MiB at the default size, and the same every time."""
    import numpy as np

    y, x = np.mgrid[0:side, 0:side] / side
    smooth = np.stack([np.sin(9 * x + 4 * y), np.cos(7 * x * y), np.sin(5 * y - 3 * x)], -1) * 90 + GREY
    pixels = smooth + np.random.default_rng(1).normal(0, 40, smooth.shape)
    out = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype("uint8")).save(out, "PNG")
    return out.getvalue()


def _noise(size: tuple[int, int]) -> Image.Image:
    return Image.merge("RGB", [Image.effect_noise(size, NOISE) for _ in range(3)])


def _swirl(image: Image.Image) -> Image.Image:
    width, height = image.size
    middle_x, middle_y = width / 2, height / 2
    radius = max(middle_x, middle_y)

    def source(x: float, y: float) -> tuple[float, float]:
        right, down = x - middle_x, y - middle_y
        share = math.hypot(right, down) / radius
        if share >= 1:
            return x, y
        angle = math.radians(SWIRL_DEGREES) * (1 - share) ** 2
        cosine, sine = math.cos(angle), math.sin(angle)
        return cosine * right - sine * down + middle_x, sine * right + cosine * down + middle_y

    def cell(row: int, column: int) -> tuple[tuple[int, int, int, int], tuple[float, ...]]:
        left, right = width * row // CELLS, width * (row + 1) // CELLS
        top, bottom = height * column // CELLS, height * (column + 1) // CELLS
        corners = (source(left, top), source(left, bottom), source(right, bottom), source(right, top))
        return (left, top, right, bottom), tuple(value for corner in corners for value in corner)

    mesh = [cell(row, column) for row in range(CELLS) for column in range(CELLS)]
    return image.transform(image.size, Image.Transform.MESH, mesh, Image.Resampling.BILINEAR)


def _wave(image: Image.Image) -> Image.Image:
    width, height = image.size[0], image.size[1] + 2 * AMPLITUDE

    def column(x: int) -> tuple[tuple[int, int, int, int], tuple[float, ...]]:
        top = -AMPLITUDE * (1 + math.sin(2 * math.pi * x / LENGTH))
        return (x, 0, x + 1, height), (x, top, x, top + height, x + 1, top + height, x + 1, top)

    mesh = [column(x) for x in range(width)]
    return image.transform((width, height), Image.Transform.MESH, mesh, Image.Resampling.BILINEAR)
