"""Links to MLflow's pages for a report's runs and model versions. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote


class Link(NamedTuple):
    """Text with a link."""

    words: str
    address: str


@dataclass(frozen=True, slots=True)
class TrackerLinks:
    """A tracker with web pages."""

    address: str = ""
    """Empty: it has no pages, and links are omitted."""

    experiment: str = ""
    """The id of the application's experiment. Empty: unknown, and runs are not linked."""

    model: str = ""
    """The registered model whose versions the report names."""

    def run(self, name: str) -> str | Link:
        """Return a link to the tracked runs of a workflow run's steps; empty without a page."""
        if not (self._has_pages and self.experiment and name):
            return ""
        query = quote(f"tags.`scanflow.run` = '{name}'", safe="")
        return Link(
            "in MLflow", f"{self.address.rstrip('/')}/#/experiments/{self.experiment}/runs?searchFilter={query}"
        )

    def link_version(self, words: str) -> str | Link:
        """Return a link to the version at the beginning of the text, such as ``V3``."""
        number = words.partition(" ")[0].removeprefix("V")
        if not (self._has_pages and self.model and number.isdecimal()):
            return words
        return Link(words, f"{self.address.rstrip('/')}/#/models/{quote(self.model, safe='')}/versions/{number}")

    @property
    def _has_pages(self) -> bool:
        return self.address.startswith(("http://", "https://"))
