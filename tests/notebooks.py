"""What a notebook shows of a value: IPython's own formatter, with our types registered."""

from __future__ import annotations

from typing import Any

from IPython.core.formatters import DisplayFormatter

from scanflow_client.notebook import register_with


def render_bundle(value: Any) -> dict[str, str]:
    """Return what a notebook's file holds of a cell's value, by its MIME type."""
    formatter = DisplayFormatter()
    register_with(formatter)
    bundle: dict[str, str] = formatter.format(value, include={"text/plain", "text/html"})[0]
    return bundle
