"""Plugins of other packages: objects found by name in groups of entry points (``importlib.metadata``).

A package offers a detector, say, in its ``pyproject.toml``::

    [project.entry-points."scanflow.detectors"]
    toy = "toy_package:ToyDetector"

What ships with scanflow is declared in the same way.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from scanflow.errors import NotFoundError, UsageError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Group: TypeAlias = Literal["backends", "commands", "detectors", "primitives", "templates"]


def list_plugins(group: Group) -> tuple[str, ...]:
    return tuple(sorted({point.name for point in _list_entry_points(group, tuple(sys.path))}))


def load_plugin(group: Group, name: str) -> Any:
    points = [point for point in _list_entry_points(group, tuple(sys.path)) if point.name == name]
    what = f"{group.removesuffix('s')} {name!r}"
    if not points:
        raise NotFoundError(explain_not_installed(group, name))
    if len(points) > 1:
        packages = " and ".join(sorted(_format_package(point) for point in points))
        raise UsageError(f"The {what} is offered by {packages}. Uninstall one of them.")
    try:
        return points[0].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"The {what} of {_format_package(points[0])} ({points[0].value}) cannot be imported: {error}. "
            "Install that package again, or uninstall it."
        ) from error


def explain_not_installed(group: Group, name: str) -> str:
    """Return the error message for a name that no installed package offers, with those that are offered."""
    names = list_plugins(group)
    near = hint if (hint := did_you_mean(name, names)).startswith(" Did") else ""
    return (
        f"There is no {group.removesuffix('s')} {name!r}.{near} Installed: {', '.join(names) or 'none'}. "
        f"A package adds one with an entry point in the group 'scanflow.{group}'; install it where scanflow is."
    )


@lru_cache(maxsize=16)
def _list_entry_points(group: Group, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001  what is found depends on it
    from importlib.metadata import entry_points

    return tuple(entry_points(group=f"scanflow.{group}"))


def _format_package(point: EntryPoint) -> str:
    return "an unnamed package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
