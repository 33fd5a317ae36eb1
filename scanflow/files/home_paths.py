"""Paths as the records of a home hold them: relative to it, so that a home may be moved, or restored elsewhere."""

from __future__ import annotations

from pathlib import Path

__all__ = ["resolve_home_path", "shorten_home_path"]

_TOP_FOLDERS = ("environments", "models", "services")
"""What earlier versions recorded with absolute paths lies in these folders of a home."""


def shorten_home_path(home: Path, path: Path) -> str:
    """Return a path as it is recorded: relative to the home if it lies in it, else as it is."""
    return str(path.relative_to(home) if path.is_relative_to(home) else path)


def resolve_home_path(home: Path, recorded: str) -> Path:
    """Return the absolute path of what a record of a home names.

    Records of earlier versions hold absolute paths. One that lies in another home, at which this one was before, is the
    same place of this home, if that is there.
    """
    path = home / recorded
    if path.is_relative_to(home):
        return path
    tops = [index for index, part in enumerate(path.parts) if part in _TOP_FOLDERS]
    places = (home.joinpath(*path.parts[index:]) for index in reversed(tops))
    return next((place for place in places if place.exists()), path)
