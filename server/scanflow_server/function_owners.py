"""Which teams have sent a function by value.

A function's name follows from its content, so knowing it grants nothing: a team's application may name the functions
that a token of the team has sent, and no others.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.files import dump_json
from scanflow.backends.function_store import build_lost_function_error, find_function_names
from scanflow.files.private import create_private_folder


class FunctionOwners:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "functions"

    def add(self, team: str, name: str) -> None:
        (create_private_folder(self._folder / team) / name).touch(mode=0o600)

    def check(self, team: str, app: Application) -> None:
        """Refuse an application that names another team's function, as one that is not there.

        Raises:
            NotFoundError: says what to do.
        """
        for name in find_function_names([dump_json(app)]):
            if not (self._folder / team / name).exists():
                raise build_lost_function_error(name)

    def forget(self, before: float, needed: Collection[str]) -> None:
        """Forget who sent what before a time, unless it is needed."""
        for path in self._folder.glob("*/*"):
            if path.name not in needed and path.stat().st_mtime < before:
                path.unlink(missing_ok=True)
