"""Colours that stand beside each other differ for the colour-blind, and what they say is said by a mark, too.

The colours of people without one kind of cone are simulated as by Machado, Oliveira and Fernandes (2009), with the
matrices for a severity of 1; differences are those of CIE 1976 in L*a*b*.
"""

from __future__ import annotations

from itertools import combinations
from math import dist

import pytest

from scanflow.drawing.states import STATE_LOOKS
from scanflow.drawing.svg import COLOURS, SHAPES, STYLE, draw_marker

Vector = tuple[float, float, float]
SIGHT: dict[str, tuple[Vector, Vector, Vector]] = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
LEAST = 15.0
"""A difference of 2.3 can just be noticed side by side; those of points and bars apart from each other need more."""

PAINTS = [name for name in COLOURS if name not in ("paper", "line")]


def read_linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def see(colour: str, sight: str) -> Vector:
    """Return a colour's L*a*b* as it is seen."""
    linear = read_linear(colour)
    red, green, blue = (
        min(max(sum(weight * part for weight, part in zip(row, linear, strict=True)), 0.0), 1.0) for row in SIGHT[sight]
    )
    ratios = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    x, y, z = (ratio ** (1 / 3) if ratio > 0.008856 else 7.787 * ratio + 16 / 116 for ratio in ratios)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_any_two_colours_differ_for_whoever_looks(sight: str, theme: int) -> None:
    seen = {name: see(COLOURS[name][theme], sight) for name in PAINTS}
    alike = {
        (first, second): round(dist(seen[first], seen[second]), 1)
        for first, second in combinations(PAINTS, 2)
        if dist(seen[first], seen[second]) < LEAST
    }
    assert alike == {}


def test_the_simulation_knows_what_the_colour_blind_confuse() -> None:
    red, green = see("#c22f3d", "deuteranopia"), see("#4f7a2a", "deuteranopia")
    assert dist(red, green) < LEAST
    assert dist(see("#c22f3d", "all cones"), see("#4f7a2a", "all cones")) > 80


def test_a_state_is_said_by_its_mark_alone() -> None:
    colours: dict[str, set[str]] = {}
    for look in STATE_LOOKS.values():
        colours.setdefault(look.mark, set()).add(look.colour)
    assert all(len(own) == 1 for own in colours.values()), "one mark has one meaning"
    assert all(len(mark) == 1 for mark in colours)


def test_shapes_differ() -> None:
    drawn = {draw_marker(shape, 0, 0, "ink") for shape in SHAPES}
    assert len(drawn) == len(SHAPES)


def test_what_is_printed_is_dark_on_white() -> None:
    assert STYLE.startswith("@media screen and (prefers-color-scheme: dark){")
    assert STYLE.count("@media") == 1
    assert all(f"fill:{dark}" in STYLE for _, dark in COLOURS.values())
