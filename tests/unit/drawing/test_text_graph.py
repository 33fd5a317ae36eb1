"""Graphs in characters: who follows the drawn lines with a finger finds each edge, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.drawing.states import STATE_LOOKS, UNKNOWN_STATE
from scanflow.drawing.text_graph import StyledText, draw_text_graph, make_ascii
from tests.unit.drawing.test_layered_layout import Graph, graphs

Edge = tuple[str, str]
LEFT, RIGHT, UP, DOWN = "left", "right", "up", "down"
SIDES = {
    "│": {UP, DOWN},
    "─": {LEFT, RIGHT},
    "┌": {RIGHT, DOWN},
    "┐": {LEFT, DOWN},
    "└": {RIGHT, UP},
    "┘": {LEFT, UP},
    "├": {UP, DOWN, RIGHT},
    "┤": {UP, DOWN, LEFT},
    "┬": {LEFT, RIGHT, DOWN},
    "┴": {LEFT, RIGHT, UP},
    "┼": {LEFT, RIGHT, UP, DOWN},
}
BOX = re.compile(r"\[ *\* (n[\dn,]+) *\]|\* (n[\dn,]+)")


def label(members: Sequence[str]) -> StyledText:
    return StyledText(f"* {','.join(members)}")


def draw(graph: Graph, width: int | None = None, *, ascii_only: bool = False) -> list[str]:
    drawn = draw_text_graph(graph, label, width=width, ascii_only=ascii_only)
    return ["".join(part.text for part in line) for line in drawn]


def list_edges(graph: Graph, groups: Sequence[str]) -> list[Edge]:
    """Return the edges between groups of nodes."""
    group = {name: names for names in groups for name in names.split(",")}
    edges = {(group[parent], group[name]) for name, parents in graph.items() for parent in parents}
    return sorted((parent, name) for parent, name in edges if parent != name)


class Tracer:
    """Follows lines from below each label: down, and to the left and right, but never up."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.boxes = {
            (row, column): match[1] or match[2]
            for row, line in enumerate(lines)
            for match in BOX.finditer(line)
            for column in range(match.start(), match.end())
        }

    def get(self, row: int, column: int) -> str:
        line = self.lines[row] if row < len(self.lines) else ""
        return line[column] if 0 <= column < len(line) and (row, column) not in self.boxes else " "

    def get_sides(self, row: int, column: int) -> set[str]:
        """Return the sides of a character; of a corner of ASCII, those on which a line goes on."""
        character = self.get(row, column)
        if character != "+":
            return SIDES.get({"|": "│", "-": "─"}.get(character, character), set())
        beside = {LEFT: self._skip(row, column, -1), RIGHT: self._skip(row, column, 1)}
        sides = {side for side, other in beside.items() if other in {"-", "+"}}
        sides |= {UP} if self.get(row - 1, column) == "|" else set()
        return sides | ({DOWN} if self.get(row + 1, column) == "|" else set())

    def _skip(self, row: int, column: int, step: int) -> str:
        """Return the next character of a row that is not a line down a column."""
        column += step
        while self.get(row, column) == "|":
            column += step
        return self.get(row, column)

    def trace(self) -> list[Edge]:
        return sorted(
            {(name, end) for (row, column), name in self.boxes.items() for end in self._follow(row + 1, column, DOWN)}
        )

    def _follow(self, row: int, column: int, way: str) -> Iterator[str]:
        if way == DOWN and (row, column) in self.boxes:
            yield self.boxes[row, column]
            return
        sides = self.get_sides(row, column)
        if way != DOWN and sides == {UP, DOWN}:  # a line that is crossed
            sides = {LEFT, RIGHT}
        if {DOWN: UP, LEFT: RIGHT, RIGHT: LEFT}[way] not in sides:
            return
        steps = {DOWN: (row + 1, column), LEFT: (row, column - 1), RIGHT: (row, column + 1)}
        for side in sides & steps.keys():
            if {side, way} != {LEFT, RIGHT}:
                yield from self._follow(*steps[side], side)


def read_tree(lines: Sequence[str]) -> list[Edge]:
    """Return the edges of a tree: a node depends on that above it, unless all that it depends on is named below it."""
    parents: dict[str, list[str]] = {}
    above: list[tuple[int, str]] = []
    for line in re.sub(r"(,|after)\n +", r"\1 ", "\n".join(lines)).replace("* ", "").splitlines():
        indent, words = len(line) - len(line.lstrip()), line.split(maxsplit=1)
        if words[0] == "after":
            parents[above[-1][1]] = words[1].split(", ")
            continue
        above = [*(entry for entry in above if entry[0] < indent), (indent, words[0])]
        parents[words[0]] = [above[-2][1]] if len(above) > 1 else []
    return sorted((parent, name) for name, its_parents in parents.items() for parent in its_parents)


@pytest.mark.parametrize("ascii_only", [False, True])
@given(graph=graphs(12))
def test_each_edge_can_be_followed_from_label_to_label_and_there_is_no_other(graph: Graph, ascii_only: bool) -> None:
    tracer = Tracer(draw(graph, ascii_only=ascii_only))
    assert sorted(set(tracer.boxes.values())) == sorted(graph)
    assert tracer.trace() == list_edges(graph, list(graph)), "\n".join(tracer.lines)


@given(graph=graphs(12), width=st.integers(12, 60))
def test_what_is_drawn_fits_and_shows_each_node_and_edge_of_the_folded_graph(graph: Graph, width: int) -> None:
    lines = draw(graph, width)
    assert all(len(line) <= width for line in lines)
    tracer = Tracer(lines)
    groups = sorted(set(tracer.boxes.values()))
    assert sorted(name for group in groups for name in group.split(",")) == sorted(graph)
    is_tree = len(tracer.boxes) == sum(len(f"* {group}") for group in groups) and not set("".join(lines)) & set("│─")
    edges = read_tree(lines) if is_tree else tracer.trace()
    assert edges == list_edges(graph, groups), "\n".join(lines)


def test_a_diamond_looks_like_one() -> None:
    diamond: Graph = {"n1": [], "n2": ["n1"], "n3": ["n1"], "n4": ["n2", "n3"]}
    assert draw(diamond) == ["    * n1", "  ┌───┴──┐", "* n2   * n3", "  └───┬──┘", "    * n4"]


def test_lines_of_parents_with_other_children_do_not_meet() -> None:
    graph: Graph = {"n1": [], "n2": [], "n3": ["n1"], "n4": ["n1", "n2"]}
    assert draw(graph) == ["   * n1   * n2", "  ┌──┴──┐   │", "* n3   [* n4]"]


def test_what_is_alike_is_folded_before_a_graph_becomes_a_tree() -> None:
    models = [f"n{number}" for number in range(10, 22)]
    graph: Graph = {"n1": [], **{name: ["n1"] for name in models}, "n2": models}
    lines = draw_text_graph(graph, lambda members: StyledText(f"{members[0]} x{len(members)}"), width=40)
    assert ["".join(part.text for part in line).strip() for line in lines] == ["n1 x1", "│", "n10 x12", "│", "n2 x1"]


def test_a_line_is_soft_where_all_that_it_leads_to_is() -> None:
    labels = {"n1": "ink", "n2": "soft", "n3": "green"}
    lines = draw_text_graph(
        {"n1": [], "n2": ["n1"], "n3": ["n1"]}, lambda members: StyledText(members[0], labels[members[0]])
    )
    assert [part.colour for part in lines[1] if part.text.strip()] == ["ink"]
    lines = draw_text_graph({"n1": [], "n2": ["n1"]}, lambda members: StyledText(members[0], labels[members[0]]))
    assert [part.colour for part in lines[1] if part.text.strip()] == ["soft"]


def test_each_mark_of_a_state_has_its_own_in_ascii() -> None:
    marks = {look.mark for look in [*STATE_LOOKS.values(), UNKNOWN_STATE]}
    ascii_marks = {make_ascii(mark) for mark in marks}
    assert len(ascii_marks) == len(marks)
    assert all(mark.isascii() for mark in ascii_marks)


def test_in_ascii_no_line_is_beside_another_as_corners_do_not_say_where_they_lead() -> None:
    forks: Graph = {"n1": [], "n2": ["n1"], "n3": ["n1"], "n4": [], "n5": ["n4"], "n6": ["n4"]}
    assert sum("┌" in line for line in draw(forks)) == 1
    assert sum("+" in line for line in draw(forks, ascii_only=True)) == 2
