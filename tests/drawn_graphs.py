"""Reads drawings of graphs: their boxes, edges and labels, with the widths of texts as the drawing estimates them."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree import ElementTree as ET

from markupsafe import Markup

from scanflow.drawing import svg

SVG = "{http://www.w3.org/2000/svg}"


class DrawnText(NamedTuple):
    text: str
    left: float
    right: float
    top: float
    bottom: float


class DrawnBox(NamedTuple):
    title: str
    left: float
    right: float
    texts: list[DrawnText]

    @property
    def lines(self) -> list[str]:
        return [text.text for text in self.texts]

    @property
    def number(self) -> int:
        match = re.match(r"(\d+) nodes", self.title)
        return int(match[1]) if match else 1


class Drawn(NamedTuple):
    root: ET.Element
    boxes: list[DrawnBox]
    edges: dict[str, ET.Element]
    """By their tooltips."""

    labels: list[DrawnText]


def read_graph(drawing: Markup) -> Drawn:
    root = ET.fromstring(drawing)
    groups = [element for element in root if element.tag in {f"{SVG}g", f"{SVG}a"}]
    edges = {
        str(group.findtext(f"{SVG}title")): group
        for group in groups
        if group.find(f"{SVG}path[@stroke-width]") is not None and group.find(f"{SVG}text") is None
    }
    boxes = [_read_box(group) for group in groups if group.find(f"{SVG}text") is not None]
    return Drawn(root, boxes, edges, [_read_text(element) for element in root if element.tag == f"{SVG}text"])


def _read_box(group: ET.Element) -> DrawnBox:
    spans = [(float(rect.attrib["x"]), float(rect.attrib["width"])) for rect in group.iter(f"{SVG}rect")]
    xs = [edge for left, width in spans for edge in (left, left + width)]
    for polygon in group.iter(f"{SVG}polygon"):
        xs += [float(corner.partition(",")[0]) for corner in polygon.attrib["points"].split()]
    texts = [_read_text(text) for text in group.iter(f"{SVG}text")]
    return DrawnBox(str(group.findtext(f"{SVG}title")), min(xs), max(xs), texts)


def _read_text(element: ET.Element) -> DrawnText:
    size = float(element.attrib.get("font-size", svg.AXIS_FONT_PX))
    text = "".join(element.itertext())
    gaps = sum(float(span.attrib["dx"]) for span in element)
    width = svg.estimate_text_width(text, size) + gaps
    x, y = float(element.attrib["x"]), float(element.attrib["y"])
    left = x - width / 2 if element.attrib.get("text-anchor") == "middle" else x
    return DrawnText(text, left, left + width, y - size * 0.8, y + size * 0.2)
