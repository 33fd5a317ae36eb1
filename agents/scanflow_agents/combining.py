"""``all_of`` and ``any_of``, however nested: a pure state machine over the triggers at the leaves.

A leaf is named by its path from the root, ``()`` for a trigger that is no combination. What has to be remembered
between pulses is which parts of each ``all_of`` have fired since that one last did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from scanflow.app.triggers import AllOf, AnyOf, Trigger

__all__ = ["NOTHING", "Path", "Seen", "leaves", "path_of", "pulse", "still_known", "text_of"]

Path = tuple[int, ...]
Seen = frozenset[Path]
"""The paths of the parts of each ``all_of`` that have fired since it did."""

NOTHING: Seen = frozenset()


def leaves(trigger: Trigger, at: Path = ()) -> Iterator[tuple[Path, Trigger]]:
    """Yield the triggers at the leaves, in the order they were written."""
    if isinstance(trigger, AllOf | AnyOf):
        for index, inner in enumerate(trigger.triggers):
            yield from leaves(inner, (*at, index))
    else:
        yield at, trigger


def pulse(trigger: Trigger, seen: Seen, fired: Collection[Path]) -> tuple[Seen, bool]:
    """Return what is remembered after the leaves ``fired`` did so together, and whether the whole fires.

    Together means once: of an ``any_of`` whose parts all fire in one pulse, one firing comes.
    """
    changed = set(seen)
    fires = _pulse(trigger, (), changed, frozenset(fired))
    return frozenset(changed), fires


def still_known(trigger: Trigger, seen: Seen) -> Seen:
    """Return what of ``seen`` the trigger still has, after it was rewritten."""
    return frozenset(path for path in seen if _is_part(trigger, path))


def text_of(path: Path) -> str:
    """Return a path as it is kept: ``1.0``."""
    return ".".join(map(str, path))


def path_of(text: str) -> Path:
    """Return the path that was kept as ``text``."""
    return tuple(int(part) for part in text.split(".")) if text else ()


def _pulse(trigger: Trigger, at: Path, seen: set[Path], fired: frozenset[Path]) -> bool:
    match trigger:
        case AllOf():
            parts = [(*at, index) for index in range(len(trigger.triggers))]
            for path, inner in zip(parts, trigger.triggers, strict=True):
                if _pulse(inner, path, seen, fired):
                    seen.add(path)
            if not seen.issuperset(parts):
                return False
            seen.difference_update(parts)
            return True
        case AnyOf():
            fires = False
            for index, inner in enumerate(trigger.triggers):  # each takes its pulse, also when another one is enough
                fires = _pulse(inner, (*at, index), seen, fired) or fires
            return fires
        case _:
            return at in fired


def _is_part(trigger: Trigger, path: Path) -> bool:
    for depth, index in enumerate(path):
        if not isinstance(trigger, AllOf | AnyOf) or index >= len(trigger.triggers):
            return False
        if depth == len(path) - 1:
            return isinstance(trigger, AllOf)
        trigger = trigger.triggers[index]
    return False
