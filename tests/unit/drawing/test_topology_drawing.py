"""Drawings of machines: each CPU is there once, inside the drawing, with what runs on it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.drawing import svg
from scanflow.placement.topology import Cache, Core, NumaNode, Topology, uniform
from scanflow.placement.topology_drawing import FILLS, PlacedProcess, draw_topology
from tests.drawn_graphs import SVG


class DrawnCell(NamedTuple):
    text: str
    title: str
    fill: str | None


class DrawnMachine(NamedTuple):
    root: ET.Element
    cells: dict[int, DrawnCell]
    texts: list[str]


def read_machine(topology: Topology, *processes: PlacedProcess, width: float = svg.WIDTH) -> DrawnMachine:
    root = ET.fromstring(draw_topology(topology, processes, width=width))
    cells: dict[int, DrawnCell] = {}
    for group in root.iter(f"{SVG}g"):
        title = str(group.findtext(f"{SVG}title"))
        if match := re.match(r"CPU (\d+)", title):
            assert int(match[1]) not in cells
            rect = group.find(f"{SVG}rect")
            assert rect is not None
            cells[int(match[1])] = DrawnCell(str(group.findtext(f"{SVG}text")), title, rect.get("fill"))
    return DrawnMachine(root, cells, [str(text.text) for text in root.iter(f"{SVG}text")])


machines = st.builds(
    uniform,
    st.integers(1, 2),
    st.sampled_from([1, 4, 6, 64]),
    st.integers(1, 2),
    l3_group=st.sampled_from([None, 2, 8]),
    nodes_per_socket=st.just(1),
)


@settings(max_examples=30)
@given(machines, st.sampled_from([svg.WIDTH, svg.NARROW]), st.lists(st.sets(st.integers(0, 7)), max_size=3))
def test_each_cpu_is_drawn_once_with_what_runs_on_it(machine: Topology, width: float, bound: list[set[int]]) -> None:
    own = [PlacedProcess(f"p{place}", tuple(sorted(cpus & set(machine.cpus)))) for place, cpus in enumerate(bound)]
    drawn = read_machine(machine, *own, width=width)
    assert sorted(drawn.cells) == list(machine.cpus)
    for cpu, cell in drawn.cells.items():
        names = [process.name for process in own if cpu in process.cpus]
        assert all(name in cell.title for name in names)
        assert (cell.text == str(cpu)) == (not names)
        assert ("free" in cell.title) == (not names)
    *_, height = map(float, drawn.root.attrib["viewBox"].split())
    for rect in drawn.root.iter(f"{SVG}rect"):
        x, y = float(rect.attrib["x"]), float(rect.attrib["y"])
        assert 0 <= x <= x + float(rect.attrib["width"]) <= width
        assert 0 <= y <= y + float(rect.attrib["height"]) <= height
    for text in drawn.root.iter(f"{SVG}text"):
        size = float(text.attrib.get("font-size", svg.AXIS_FONT_PX))
        wide = svg.estimate_text_width(str(text.text), size) / (2 if text.attrib["text-anchor"] == "middle" else 1)
        assert float(text.attrib["x"]) + wide <= width + 1


def test_an_instance_has_a_label_and_a_colour_there_and_in_the_legend() -> None:
    first, second = PlacedProcess("serve/1", (0, 1)), PlacedProcess("serve/2", (2, 3), "/services/serve")
    drawn = read_machine(uniform(1, 4), first, second)
    assert [drawn.cells[cpu].text for cpu in range(4)] == ["a", "a", "b", "b"]
    assert [drawn.cells[cpu].fill for cpu in range(4)] == [FILLS[0], FILLS[0], FILLS[1], FILLS[1]]
    assert {"serve/1: CPUs 0-1", "serve/2: CPUs 2-3", "1 socket, 4 cores, 4 CPUs: 4 bound, 0 free"} <= set(drawn.texts)
    [link] = drawn.root.findall(f"{SVG}a")
    assert (link.attrib["href"], drawn.root.attrib["role"]) == ("/services/serve", "group")


def test_processes_on_the_same_cpus_share_a_label_and_several_on_one_are_said() -> None:
    same = [PlacedProcess(f"rank {rank}", (0, 1)) for rank in range(8)]
    drawn = read_machine(uniform(1, 4), *same, PlacedProcess("other", (1, 2)))
    assert [drawn.cells[cpu].text for cpu in range(4)] == ["a", "+", "b", "3"]
    assert drawn.cells[1].title == "CPU 1:  rank 0 to rank 7: CPUs 0-1; other: CPUs 1-2"
    assert any("+ several on one CPU." in text for text in drawn.texts)


def test_one_cpu_is_no_plural_and_numbers_are_explained_where_there_are_some() -> None:
    first, second = PlacedProcess("serve/1", (0,)), PlacedProcess("serve/2", (1,))
    drawn = read_machine(uniform(1, 2), first, second)
    assert {"serve/1: CPU 0", "serve/2: CPU 1"} <= set(drawn.texts)
    assert not any("Numbers" in text for text in drawn.texts), "none is free"
    assert any("Numbers are free CPUs." in text for text in read_machine(uniform(1, 2), first).texts)


def test_what_is_not_bound_is_in_the_legend_alone() -> None:
    drawn = read_machine(uniform(1, 2), PlacedProcess("free", ()), PlacedProcess("bound", (1,)))
    assert [drawn.cells[cpu].text for cpu in range(2)] == ["0", "a"]
    assert "free: any CPU" in drawn.texts


def test_slow_forbidden_and_offline_cpus_are_marked() -> None:
    machine = Topology(
        cores=(Core(cpus=(0, 1)), Core(cpus=(2,), tier=1)),
        nodes=(NumaNode(cpus=(0, 1, 2), memory_bytes=2**34),),
        caches=(Cache(level=3, cpus=(0, 1, 2), size_bytes=2**25),),
        allowed=(0, 2),
        offline=(5,),
    )
    drawn = read_machine(machine)
    assert [drawn.cells[cpu].text for cpu in range(3)] == ["0", "×", "2"]
    assert drawn.cells[2].title == "CPU 2 (a slower core): free"
    legend = " ".join(drawn.texts)
    assert "Dashed cores are slower. × not allowed for this process. Offline: CPU 5." in legend
    assert sum("stroke-dasharray" in rect.attrib for rect in drawn.root.iter(f"{SVG}rect")) == 1
    assert "socket 0 · 2 cores · node 0 · 16Gi · L3 32Mi" in drawn.texts


@pytest.mark.parametrize(("width", "most"), [(svg.WIDTH, 500), (svg.NARROW, 900)])
def test_a_big_machine_fits_a_screen_and_a_phone(width: float, most: float) -> None:
    drawn = read_machine(uniform(2, 64, 2, l3_group=8), width=width)
    assert len(drawn.cells) == 256
    assert float(drawn.root.attrib["viewBox"].split()[3]) < most


def test_hostile_names_stay_text() -> None:
    hostile: Any = "</title><script>alert(1)</script>"
    drawn = read_machine(uniform(1, 2, title=hostile), PlacedProcess(hostile, (0,), f"/{hostile}"))
    assert not list(drawn.root.iter(f"{SVG}script"))
    assert hostile in drawn.cells[0].title
