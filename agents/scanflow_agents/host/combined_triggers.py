"""``all_of`` and ``any_of``, however nested: a pure state machine over the triggers at the leaves.

A leaf is named by its path from the root, as ``1.0``; empty for a trigger that is no combination. What has to be
remembered between firings is which parts of each ``all_of`` have fired since that one last did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from scanflow.app.triggers import AllOf, AnyOf, Trigger

Path = str
Seen = frozenset[Path]
"""The paths of the parts of each ``all_of`` that have fired since it did."""

NOTHING: Seen = frozenset()


def leaves(trigger: Trigger, at: Path = "") -> Iterator[tuple[Path, Trigger]]:
    if isinstance(trigger, AllOf | AnyOf):
        for path, inner in _parts(trigger, at):
            yield from leaves(inner, path)
    else:
        yield at, trigger


def mark_fired(trigger: Trigger, seen: Seen, fired: Collection[Path]) -> tuple[Seen, bool]:
    """Return what is remembered after the leaves ``fired`` did so together, and whether the whole fires.

    Together means once: of an ``any_of`` whose parts all fire at once, one firing comes.
    """
    changed = set(seen)
    fires = _mark_fired(trigger, "", changed, frozenset(fired))
    return frozenset(changed), fires


def still_known(trigger: Trigger, seen: Seen) -> Seen:
    """Return what of ``seen`` the trigger still has, after it was rewritten."""
    return seen & frozenset(_in_all_of(trigger, ""))


def _mark_fired(trigger: Trigger, at: Path, seen: set[Path], fired: frozenset[Path]) -> bool:
    if not isinstance(trigger, AllOf | AnyOf):
        return at in fired
    parts = _parts(trigger, at)
    firing = {path for path, inner in parts if _mark_fired(inner, path, seen, fired)}
    if isinstance(trigger, AnyOf):
        return bool(firing)
    seen |= firing
    paths = {path for path, _ in parts}
    if not seen >= paths:
        return False
    seen -= paths
    return True


def _in_all_of(trigger: Trigger, at: Path) -> Iterator[Path]:
    if isinstance(trigger, AllOf | AnyOf):
        for path, inner in _parts(trigger, at):
            if isinstance(trigger, AllOf):
                yield path
            yield from _in_all_of(inner, path)


def _parts(trigger: AllOf | AnyOf, at: Path) -> list[tuple[Path, Trigger]]:
    return [(f"{at}.{index}" if at else str(index), inner) for index, inner in enumerate(trigger.triggers)]
