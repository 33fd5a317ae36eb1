"""Lines between two rows of a drawing in characters: each leads down a column, along a track and down again.

Lines of different nets never touch. Where they cross, one is along a track and the other down a column.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

APART = 2
"""Columns between two nets on one track, at least."""

_Place = TypeVar("_Place", bound=Hashable)


class Net(NamedTuple):
    """A line that leads from each of its columns above to each of its columns below."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    @property
    def first(self) -> int:
        return min(*self.sources, *self.targets)

    @property
    def last(self) -> int:
        return max(*self.sources, *self.targets)


class Group(NamedTuple, Generic[_Place]):
    """Places above that lead to the same places below, so that one net can stand for all of their links."""

    sources: tuple[_Place, ...]
    targets: frozenset[_Place]


class RoutedChannel(NamedTuple, Generic[_Place]):
    """Nets, the track of each (None: it is straight), and the column in which each enters a place below."""

    nets: tuple[Net, ...]
    tracks: tuple[int | None, ...]
    entries: Mapping[_Place, Sequence[int]]

    @property
    def height(self) -> int:
        """The number of tracks."""
        return 1 + max((track for track in self.tracks if track is not None), default=-1)


def group_sources(links: Mapping[_Place, Sequence[_Place]]) -> list[Group[_Place]]:
    """Return the places above by the places below that they lead to."""
    groups: dict[frozenset[_Place], list[_Place]] = {}
    for place, below in links.items():
        if below:
            groups.setdefault(frozenset(below), []).append(place)
    return [Group(tuple(sources), below) for below, sources in groups.items()]


def route(
    groups: Sequence[Group[_Place]], exits: Mapping[_Place, int], extents: Mapping[_Place, range], *, apart: int = APART
) -> RoutedChannel[_Place]:
    """Return the net of each group.

    ``exits``: the column in which a line leaves a place above; no two are next to each other. ``extents``: the columns
    of each place below, in which lines may enter it: two for each net that enters it, and one more.
    """
    sources = [tuple(exits[place] for place in group.sources) for group in groups]
    targets: list[list[int]] = [[] for _ in groups]
    entries: dict[_Place, list[int]] = {}
    used_columns = set(exits.values())
    for place, extent in extents.items():
        entering = [number for number, group in enumerate(groups) if place in group.targets]
        entering.sort(key=lambda number: sum(sources[number]) / len(sources[number]))
        entries[place] = _choose_columns([sources[number] for number in entering], extent, used_columns)
        for number, column in zip(entering, entries[place], strict=True):
            targets[number].append(column)
    nets = tuple(Net(above, tuple(below)) for above, below in zip(sources, targets, strict=True))
    return RoutedChannel(nets, assign_tracks(nets, apart), entries)


def _choose_columns(sources: Sequence[Sequence[int]], extent: range, used_columns: set[int]) -> list[int]:
    """Return a column of ``extent`` for each net: straight below a source if there is one, else a free one.

    Of nets that enter one place the left one comes from the left.
    """
    chosen: dict[int, int] = {}
    middle = extent[len(extent) // 2]
    for number, columns in enumerate(sources):
        if inside := [column for column in columns if column in extent]:
            chosen[number] = min(inside, key=lambda column: abs(column - middle))
    for number in range(len(sources)):
        if number not in chosen:
            wish = extent[(2 * number + 1) * len(extent) // (2 * len(sources))]
            free = [column for column in extent if column not in used_columns]
            chosen[number] = min(free, key=lambda column, wish=wish: abs(column - wish))  # type: ignore[misc]
            used_columns.add(chosen[number])
    return [chosen[number] for number in range(len(sources))]


def assign_tracks(nets: Sequence[Net], apart: int = APART) -> tuple[int | None, ...]:
    """Return the track of each net, counted from the top, so that few lines cross; None: the net is one column."""
    bent = [net for net in nets if net.first != net.last]
    order = sorted(range(len(bent)), key=lambda number: bent[number].first)
    for _ in order:  # each time at least one net reaches its place, as in a bubble sort
        for upper, lower in pairwise(range(len(order))):
            above, below = bent[order[upper]], bent[order[lower]]
            if _count_crossings(below, above) < _count_crossings(above, below):
                order[upper], order[lower] = order[lower], order[upper]
    tracks: dict[int, int] = {}
    for number in order:
        over = [track for other, track in tracks.items() if _overlap(bent[number], bent[other], apart)]
        tracks[number] = max(over, default=-1) + 1
    numbers = iter(range(len(bent)))
    return tuple(tracks[next(numbers)] if net.first != net.last else None for net in nets)


def _overlap(net: Net, other: Net, apart: int) -> bool:
    return net.first <= other.last + apart and other.first <= net.last + apart


def _count_crossings(above: Net, below: Net) -> int:
    return sum(above.first < column < above.last for column in below.sources) + sum(
        below.first < column < below.last for column in above.targets
    )


LEFT, RIGHT, UP, DOWN = 1, 2, 4, 8
"""The sides of a character's cell to which its lines lead."""


def draw_net(net: Net, track: int | None, height: int, mark: Callable[[int, int, int], None]) -> None:
    """Call ``mark`` with the row, the column and the sides of each cell of a net."""
    if track is None:
        for row in range(height):
            mark(row, net.first, UP | DOWN)
        return
    for column in range(net.first, net.last + 1):
        sides = (LEFT if column > net.first else 0) | (RIGHT if column < net.last else 0)
        sides |= (UP if column in net.sources else 0) | (DOWN if column in net.targets else 0)
        mark(track, column, sides)
    for column in net.sources:
        for row in range(track):
            mark(row, column, UP | DOWN)
    for column in net.targets:
        for row in range(track + 1, height):
            mark(row, column, UP | DOWN)
