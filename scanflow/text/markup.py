"""Markup of pages: Jinja2 templates that escape every value. Only this module uses Jinja2, and only when it renders."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


class Templates:
    """The templates in the folders ``templates`` of packages, and the layout of all pages.

    They are loaded when one is first rendered. ``filters`` are functions that they may apply to values. A value that a
    template asks for and does not get is an error (``jinja2.UndefinedError``), not an empty text.
    """

    def __init__(self, *packages: str, **filters: Callable[..., object]) -> None:
        self._packages, self._filters = (*packages, "scanflow.text"), filters

    def render(self, name: str, /, **values: object) -> Markup:
        from markupsafe import Markup

        return Markup(self._environment.get_template(name).render(values))  # noqa: S704 - a template has escaped them

    def render_macro(self, name: str, macro: str, /, *values: object) -> Markup:
        """Render a macro of a template, a part of a page."""
        part: Markup = getattr(self._environment.get_template(name).module, macro)(*values)
        return part

    @cached_property
    def _environment(self) -> Environment:
        from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

        environment = Environment(
            loader=ChoiceLoader([PackageLoader(package) for package in self._packages]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.filters |= self._filters
        return environment
