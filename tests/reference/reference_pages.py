"""All pages of the reference, by the names of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.grammar import CHECKOUT
from tests.reference import code_pages, python_pages, tables
from tests.reference.markdown import NOTICE, Page

FOLDER = CHECKOUT / "docs" / "reference"

BUILDERS: Mapping[str, tuple[str, Callable[[], Page]]] = {
    "commands.md": ("every command and option of `scanflow`", code_pages.build_commands_page),
    "exit-codes.md": ("what the exit codes of commands mean", tables.build_exit_codes_page),
    "python.md": ("what programs may import", python_pages.build_index_page),
    "errors.md": ("the errors to catch", tables.build_errors_page),
    "rest.md": ("the routes of the server and of services", code_pages.build_rest_page),
    "settings.md": ("all environment variables", tables.build_settings_page),
    "templates.md": ("the parameters of template agents", code_pages.build_templates_page),
    "triggers.md": ("when a sensor fires", code_pages.build_triggers_page),
    "primitives.md": ("what agents may do", code_pages.build_primitives_page),
    "events.md": ("what the server and the agents record", tables.build_events_page),
    "metrics.md": ("what Prometheus reads", tables.build_metrics_page),
    "chart.md": ("the values of the Helm chart", tables.build_chart_page),
}


class Reference(NamedTuple):
    """All pages, and the name of each public thing without a description."""

    pages: dict[str, str]
    undescribed: list[str]


def build_reference() -> Reference:
    """Build the text of each page, by its path in the folder."""
    pages = {name: build() for name, (_, build) in BUILDERS.items()}
    lines = [f"- [{pages[name].title}]({name}): {what}." for name, (what, _) in BUILDERS.items()]
    intro = "These pages are made from the code. A test compares them with it."
    index = "\n".join(["# Reference\n", NOTICE, f"{intro}\n", *lines, ""])
    texts = {name: page.render() for name, page in pages.items()} | python_pages.build_module_pages()
    return Reference({**texts, "index.md": index}, [name for page in pages.values() for name in page.undescribed])
