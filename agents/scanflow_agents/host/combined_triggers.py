"""``all_of`` and ``any_of``, also nested: a pure state machine over the triggers at the leaves.

A leaf is named by its path from the root, as ``1.0``; empty for a trigger that is no combination. The state between
firings is the set of parts of each ``all_of`` that have fired since it last fired.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from scanflow.app.triggers import AllOf, AnyOf, Trigger

Path = str
Seen = frozenset[Path]
"""The paths of the parts of each ``all_of`` that have fired since it last fired."""

NOTHING: Seen = frozenset()


def iterate_leaves(trigger: Trigger, at: Path = "") -> Iterator[tuple[Path, Trigger]]:
    if isinstance(trigger, AllOf | AnyOf):
        for path, inner in _list_parts(trigger, at):
            yield from iterate_leaves(inner, path)
    else:
        yield at, trigger


def mark_fired(trigger: Trigger, seen: Seen, fired: Collection[Path]) -> tuple[Seen, bool]:
    """Return the state after the leaves ``fired`` fired together, and whether the whole trigger fires.

    An ``any_of`` whose parts fire together fires once.
    """
    changed = set(seen)
    fires = _mark_fired(trigger, "", changed, frozenset(fired))
    return frozenset(changed), fires


def filter_seen(trigger: Trigger, seen: Seen) -> Seen:
    """Return the paths in ``seen`` that a changed trigger still has."""
    return seen & frozenset(_list_all_of_paths(trigger, ""))


def _mark_fired(trigger: Trigger, at: Path, seen: set[Path], fired: frozenset[Path]) -> bool:
    if not isinstance(trigger, AllOf | AnyOf):
        return at in fired
    parts = _list_parts(trigger, at)
    firing = {path for path, inner in parts if _mark_fired(inner, path, seen, fired)}
    if isinstance(trigger, AnyOf):
        return bool(firing)
    seen |= firing
    paths = {path for path, _ in parts}
    if not seen >= paths:
        return False
    seen -= paths
    return True


def _list_all_of_paths(trigger: Trigger, at: Path) -> Iterator[Path]:
    if isinstance(trigger, AllOf | AnyOf):
        for path, inner in _list_parts(trigger, at):
            if isinstance(trigger, AllOf):
                yield path
            yield from _list_all_of_paths(inner, path)


def _list_parts(trigger: AllOf | AnyOf, at: Path) -> list[tuple[Path, Trigger]]:
    return [(f"{at}.{index}" if at else str(index), inner) for index, inner in enumerate(trigger.triggers)]
