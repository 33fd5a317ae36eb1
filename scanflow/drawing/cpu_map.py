"""What runs on which CPU: boxes with groups of cores in them, such as those of a socket, a cache or a NUMA node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scanflow.drawing import svg

WIDEST_CELL_PX, NARROWEST_CELL_PX, CELL_HEIGHT_PX = 30, 17, 17.0
CORE_GAP_PX, PADDING_PX, TITLE_PX, GAP_PX = 2.0, 6.0, 20.0, 6.0
LABEL_FONT_PX, NUMBER_FONT_PX = 11, 8.5
LABEL_INK = "#111111"
"""The ink on colours of their own, which are the same in light and dark."""

MOST_CELLS = 2048
"""With more CPUs than that, each box is a line: its name, and how many of its CPUs are used."""

SUMMARY_WIDTH_PX, SUMMARY_HEIGHT_PX = 166.0, 44.0


class CpuBox(NamedTuple):
    """A CPU: what is on it, or its number if it is free."""

    text: str
    words: str
    """Its tooltip."""

    colour: str = ""
    """A name of :data:`svg.COLOURS`, or a light colour as ``#RRGGBB``; empty: the CPU is free."""

    outline: bool = False


class CoreBox(NamedTuple):
    """The CPUs of a core: one, or its siblings."""

    cpus: Sequence[CpuBox]
    is_slow: bool = False


class CoreGroup(NamedTuple):
    """Cores that are drawn together, with what they share written above them."""

    name: str
    cores: Sequence[CoreBox]


class CpuPanel(NamedTuple):
    """A machine, or a socket of it."""

    name: str
    words: str
    """Its tooltip."""

    groups: Sequence[CoreGroup]
    facts: Sequence[str] = ()
    """What stands beside the name as far as there is room, the most important first."""

    unbound: Sequence[CpuBox] = ()
    """What runs on any of its CPUs."""

    @property
    def cpus(self) -> list[CpuBox]:
        return [cpu for group in self.groups for core in group.cores for cpu in core.cpus]

    @property
    def drawn_groups(self) -> list[CoreGroup]:
        groups = [*self.groups, CoreGroup("on any CPU", [CoreBox([cpu]) for cpu in self.unbound])]
        return [group for group in groups if group.cores]


class _Area(NamedTuple):
    x: float
    y: float
    width: float
    height: float


def draw_cpu_map(panels: Sequence[CpuPanel], y: float, *, width: float = svg.WIDTH) -> tuple[svg.Element, float]:
    """Draw panels from ``y`` down, beside each other as far as there is room. Return where they end, too."""
    cpus = [cpu for panel in panels for cpu in [*panel.cpus, *panel.unbound]]
    if len(cpus) > MOST_CELLS:
        areas = _arrange([(SUMMARY_WIDTH_PX, SUMMARY_HEIGHT_PX)] * len(panels), 1.0, y, width - 1)
        drawn = [_draw_summary(panel, area) for panel, area in zip(panels, areas, strict=True)]
    else:
        labels = (svg.estimate_text_width(cpu.text, LABEL_FONT_PX) for cpu in cpus if cpu.colour)
        least = max(NARROWEST_CELL_PX, min(WIDEST_CELL_PX, int(max(labels, default=0.0)) + 1))
        sizes = [_Sizes(float(size), width) for size in range(WIDEST_CELL_PX, least - 1, -1)]
        choices = [(_arrange(map(size.measure_panel, panels), 1.0, y, width - 1), size) for size in sizes]
        areas, size = min(choices, key=lambda choice: _get_end(choice[0], y))
        drawn = [size.draw_panel(panel, area) for panel, area in zip(panels, areas, strict=True)]
    return svg.join_elements(drawn), _get_end(areas, y)


def _get_end(areas: Sequence[_Area], y: float) -> float:
    return max((area.y + area.height for area in areas), default=y)


def _arrange(sizes: Iterable[tuple[float, float]], left: float, y: float, right: float) -> list[_Area]:
    """Return places of these sizes, beside each other as long as they fit."""
    areas, x, end = list[_Area](), left, y
    for wide, high in sizes:
        if x > left and x + wide > right:
            x, y = left, end + GAP_PX
        areas.append(_Area(x, y, wide, high))
        x, end = x + wide + GAP_PX, max(end, y + high)
    return areas


class _Sizes:
    """Measures and draws with cells of one width, in drawings of one width."""

    def __init__(self, cell_px: float, width: float) -> None:
        self._cell_px, self._room = cell_px, width - 2 - 2 * PADDING_PX

    def measure_panel(self, panel: CpuPanel) -> tuple[float, float]:
        areas = self._arrange_groups(panel, 0.0, TITLE_PX)
        title = svg.estimate_text_width(self._format_title(panel))
        wide = max([title, *(area.x + area.width for area in areas)])
        return wide + 2 * PADDING_PX, _get_end(areas, TITLE_PX) + PADDING_PX

    def draw_panel(self, panel: CpuPanel, area: _Area) -> svg.Element:
        x, y = area.x + PADDING_PX, area.y
        parts = [_draw_frame(area, "soft"), _draw_title(self._format_title(panel), x, y)]
        for group, place in zip(panel.drawn_groups, self._arrange_groups(panel, x, y + TITLE_PX), strict=True):
            parts.append(self._draw_group(group, place))
        return svg.draw_titled(panel.words, *parts)

    def _format_title(self, panel: CpuPanel) -> str:
        titles = (" · ".join([panel.name, *panel.facts[:count]]) for count in range(len(panel.facts), 0, -1))
        fitting = (title for title in titles if svg.estimate_text_width(title) <= self._room)
        return next(fitting, svg.shorten_text(panel.name, self._room))

    def _arrange_groups(self, panel: CpuPanel, x: float, y: float) -> list[_Area]:
        return _arrange(map(self._measure_group, panel.drawn_groups), x, y, x + self._room)

    def _measure_group(self, group: CoreGroup) -> tuple[float, float]:
        columns = self._count_columns(group)
        rows = -(-len(group.cores) // columns)
        wide = columns * (self._cell_px + CORE_GAP_PX) - CORE_GAP_PX
        high = rows * (_get_core_height(group) + CORE_GAP_PX) - CORE_GAP_PX
        if not group.name:
            return wide, high
        title = min(svg.estimate_text_width(group.name, LABEL_FONT_PX), self._room - 2 * PADDING_PX)
        return max(wide, title) + 2 * PADDING_PX, high + TITLE_PX + PADDING_PX

    def _count_columns(self, group: CoreGroup) -> int:
        """Return the cores beside each other: as many as fit, but the same number in each row."""
        most = max(1, int((self._room - 2 * PADDING_PX + CORE_GAP_PX) // (self._cell_px + CORE_GAP_PX)))
        rows = -(-len(group.cores) // most)
        return max(1, -(-len(group.cores) // max(1, rows)))

    def _draw_group(self, group: CoreGroup, area: _Area) -> svg.Element:
        x, y, parts = area.x, area.y, list[svg.Element]()
        if group.name:
            x, y = x + PADDING_PX, y + TITLE_PX
            title = svg.shorten_text(group.name, area.width - 2 * PADDING_PX, LABEL_FONT_PX)
            text = svg.draw_text(title, x, area.y + 14, "soft", anchor="start", font_size=LABEL_FONT_PX)
            parts = [_draw_frame(area, "line"), text]
        columns = self._count_columns(group)
        for number, core in enumerate(group.cores):
            row, column = divmod(number, columns)
            left, top = column * (self._cell_px + CORE_GAP_PX), row * (_get_core_height(group) + CORE_GAP_PX)
            parts.append(self._draw_core(core, x + left, y + top))
        return svg.join_elements(parts)

    def _draw_core(self, core: CoreBox, x: float, y: float) -> svg.Element:
        cells = [self._draw_cpu(cpu, x, y + place * CELL_HEIGHT_PX) for place, cpu in enumerate(core.cpus)]
        area = _Area(x, y, self._cell_px, len(core.cpus) * CELL_HEIGHT_PX)
        dashes = {"stroke_dasharray": "3 2"} if core.is_slow else {}
        return svg.join_elements([*cells, _draw_frame(area, "soft", **dashes)])

    def _draw_cpu(self, cpu: CpuBox, x: float, y: float) -> svg.Element:
        place = {"x": x, "y": y, "width": self._cell_px, "height": CELL_HEIGHT_PX}
        middle = x + self._cell_px / 2
        if not cpu.colour:
            back = svg.draw_element("rect", **place, fill_opacity="0", **svg.paint("paper"))
            return svg.draw_titled(
                cpu.words, back, svg.draw_text(cpu.text, middle, y + 12, "soft", font_size=NUMBER_FONT_PX)
            )
        if cpu.colour.startswith("#"):
            colours, ink = {"fill": cpu.colour}, LABEL_INK
        elif cpu.outline:
            colours, ink = {"stroke_width": "2", **svg.paint("paper", stroke=cpu.colour)}, "ink"
        else:
            colours, ink = {"stroke_width": "1", **svg.paint(cpu.colour, stroke="paper")}, "paper"
        label = draw_label(svg.shorten_text(cpu.text, self._cell_px, LABEL_FONT_PX), middle, y + 13, ink)
        return svg.draw_titled(cpu.words, svg.draw_element("rect", **place, **colours), label)


def draw_label(text: str, x: float, y: float, ink: str = LABEL_INK) -> svg.Element:
    """Draw what is on a CPU; ``ink``: a name of :data:`svg.COLOURS`, or a colour."""
    colours = {"fill": ink} if ink.startswith("#") else svg.paint(ink)
    about = {"text_anchor": "middle", "font_size": LABEL_FONT_PX, "font_weight": "bold"}
    return svg.draw_element("text", svg.escape_text(text), x=x, y=y, **about, **colours)


def _get_core_height(group: CoreGroup) -> float:
    return max((len(core.cpus) for core in group.cores), default=1) * CELL_HEIGHT_PX


def _draw_frame(area: _Area, colour: str, **more: str) -> svg.Element:
    return svg.draw_element("rect", **area._asdict(), rx=4, **more, **svg.paint(stroke=colour))


def _draw_title(text: str, x: float, y: float) -> svg.Element:
    return svg.draw_text(text, x, y + 15, "ink", anchor="start")


def _draw_summary(panel: CpuPanel, area: _Area) -> svg.Element:
    cpus, x, y = panel.cpus, area.x + PADDING_PX, area.y
    used, room = sum(bool(cpu.colour) for cpu in cpus), area.width - 2 * PADDING_PX
    bar = {"x": x, "y": y + 20, "height": 6.0}
    counts = f"{used:,} of {len(cpus):,} CPUs" if cpus else f"{len(panel.unbound):,} on any CPU"
    parts = [
        _draw_frame(area, "soft"),
        _draw_title(svg.shorten_text(panel.name, room), x, y),
        svg.draw_element("rect", **bar, width=room, **svg.paint("line")),
        svg.draw_element("rect", **bar, width=room * used / max(1, len(cpus)), **svg.paint("blue")),
        svg.draw_text(counts, x, y + 38, "soft", anchor="start"),
    ]
    return svg.draw_titled(panel.words, *parts)
