"""Which teams have sent a function by value.

A function's name follows from its content, so knowing it grants nothing: a team's application may name the functions
that a token of the team has sent, and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.application_files import dump_json
from scanflow.backends.function_store import build_lost_function_error, list_function_names
from scanflow.files.private import create_private_folder, write_private


class FunctionOwners:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "functions"

    def has(self, team: str, name: str) -> bool:
        return (self._folder / team / name).exists()

    def add(self, team: str, name: str, n_bytes: int) -> None:
        """Note that a team has sent a function of that size; again resets its age."""
        write_private(create_private_folder(self._folder / team) / name, str(n_bytes))

    def check(self, team: str, app: Application) -> None:
        """Refuse an application that names another team's function, as one that is not there.

        Raises:
            NotFoundError: says what to do.
        """
        for name in list_function_names([dump_json(app)]):
            if not self.has(team, name):
                raise build_lost_function_error(name)

    def forget(self, before: float, needed: Collection[str]) -> Counter[str]:
        """Forget who sent what before a time, unless it is needed; return the bytes of that, by team."""
        forgotten = Counter[str]()
        for path in self._folder.glob("*/*"):
            if path.name not in needed and path.stat().st_mtime < before:
                forgotten[path.parent.name] += int(path.read_text() or 0)  # earlier versions noted no size
                path.unlink(missing_ok=True)
        return forgotten
