"""Markup of pages: Jinja2 templates that escape every value. Only this module uses Jinja2, and only when it renders."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@cache
def load_templates(*packages: str) -> Environment:
    """Return the templates in the folders ``templates`` of packages, and those of all pages.

    A value that a template asks for and does not get is an error, not an empty text.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "scanflow.text")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def mark_as_markup(text: str) -> Markup:
    """Return a text that is markup already, such as a drawing, which templates take as it is."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704  its callers escape what is in it
