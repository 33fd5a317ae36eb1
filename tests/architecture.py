"""The order of the modules, as the contracts of import-linter have it: a picture and a table for the page on it.

``REGENERATE_GOLDEN=1 pytest tests/unit/test_architecture.py`` writes both again.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parents[1]
PAGE = CHECKOUT / "docs" / "architecture.md"
PICTURE = CHECKOUT / "docs" / "layers.svg"
START, END = "<!-- from the contracts in pyproject.toml -->\n", "<!-- end -->\n"

ROOTS = {
    "scanflow_client": "client",
    "scanflow_agents": "agents",
    "scanflow_server": "server",
    "scanflow_serving": "server",
    "scanflow": "",
}
"""The import packages, and the folder of each."""

HEIGHT, GAP, MARGIN, WIDTH = 22, 4, 12, 1080
"""The height of a box, and of what is between boxes, and the width of the picture, in px."""

Layers = list[list[str]]
"""From the top: the members of each layer. A member imports what is in the layers below its own."""


class Box(NamedTuple):
    x: float
    y: float
    width: float
    text: str


def read_layers() -> dict[str, Layers]:
    """Return the layers of each package of the contracts. A row has the members that may not import one another."""
    contracts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return {
        contract["containers"][0]: [re.findall(r"\w+", row) for row in contract["layers"]]
        for contract in contracts
        if contract["type"] == "layers" and "containers" in contract
    }


def find_source(package: str, member: str) -> Path:
    folder = CHECKOUT / ROOTS[package] / package
    return next(path for path in (folder / f"{member}.py", folder / member / "__init__.py") if path.is_file())


def read_purpose(package: str, member: str) -> str:
    """Return the first sentence of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(find_source(package, member).read_text(encoding="utf-8"))) or ""
    return re.split(r"\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0]


def format_table(layers: Mapping[str, Layers]) -> str:
    rows = [
        f"| {number} | `{package}.{member}` | {read_purpose(package, member)} |"
        for package in ROOTS
        for number, row in enumerate(layers[package], start=1)
        for member in row
    ]
    return "\n".join(["| row | module or package | what it is |", "|---|---|---|", *rows, ""])


def place_boxes(package: str, rows: Layers, x: float, y: float, width: float) -> Iterator[Box]:
    """Yield a box for each member, and before them one for the package: rows from the top, members side by side."""
    yield Box(x, y, width, package)
    for row in rows:
        y += HEIGHT + GAP
        share = (width - GAP * (len(row) - 1)) / len(row)
        for column, member in enumerate(row):
            yield Box(x + column * (share + GAP), y, share, member)


def draw_box(box: Box, heads: Mapping[str, Layers]) -> str:
    fill, ink = ("#4a6fa5", "white") if box.text in heads else ("#eef3fb", "#222")
    x, y, width, text = box
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{HEIGHT}" rx="4" fill="{fill}" stroke="#4a6fa5"/>'
        f'<text x="{x + width / 2:.0f}" y="{y + 15:.0f}" text-anchor="middle" fill="{ink}">{escape(text)}</text>'
    )


def draw(layers: Mapping[str, Layers]) -> str:
    """Return the picture: the programs side by side, each above the library that it imports, and rows from the top."""
    programs = [package for package in ROOTS if package != "scanflow"]
    width = (WIDTH - MARGIN * (len(programs) + 1)) / len(programs)
    floor = MARGIN + (1 + max(len(layers[name]) for name in programs)) * (HEIGHT + GAP) + 2 * MARGIN
    boxes = [
        box
        for column, name in enumerate(programs)
        for box in place_boxes(name, layers[name], MARGIN + column * (width + MARGIN), MARGIN, width)
    ]
    boxes += place_boxes("scanflow", layers["scanflow"], MARGIN, floor, WIDTH - 2 * MARGIN)
    height = max(box.y for box in boxes) + HEIGHT + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif"'
        ' font-size="12" role="img" aria-label="Who imports whom: a module imports what is in rows below its own">'
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>'
    )
    return "\n".join([head, *(draw_box(box, layers) for box in boxes), "</svg>\n"])
