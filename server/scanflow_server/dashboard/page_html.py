"""Pages as HTML, readable on a phone: templates, their headers, and what they need. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from scanflow.app.quantities import format_bytes, format_cores, format_count, format_duration
from scanflow.backends.device_text import describe_uses
from scanflow.drawing import svg
from scanflow.placement.cpulist import format_cpus
from scanflow.text.markup import Templates
from scanflow.text.times import to_datetime
from scanflow_server.dashboard import page_cells
from scanflow_server.dashboard.assets import list_script_addresses

_MAX_TEXT_LENGTH = 500

SECTIONS: Final = (
    ("/", "Overview"),
    ("/applications", "Applications"),
    ("/runs", "Runs"),
    ("/services", "Services"),
    ("/agents", "Agents"),
    ("/models", "Models"),
    ("/actions", "Actions"),
    ("/labels", "Labels"),
    ("/mpi", "MPI"),
    ("/tuning", "Tuning"),
    ("/events", "Events"),
    ("/settings", "Settings"),
)
"""The sections of the dashboard: the address of each, and its name."""


def make_headers(*styles: str, nonce: str | None = None) -> dict[str, str]:
    """Return the headers of a page that allow only these style sheets, pictures and forms; and scripts of ``nonce``."""
    digests = (base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() for style in styles)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    scripts = "" if nonce is None else f"script-src 'nonce-{nonce}'; connect-src 'self'; "
    return {
        "content-security-policy": (
            f"default-src 'none'; style-src {allowed}; {scripts}img-src 'self' data:; form-action 'self'; "
            "base-uri 'none'; frame-ancestors 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",  # else the browser sends no Origin with a form, which is refused
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }


def make_page_headers(nonce: str | None = None) -> dict[str, str]:
    """Return the headers of a page that has the style sheets of all pages, and scripts of that nonce."""
    return make_headers(*_load_styles(), nonce=nonce)


def make_file_headers(saved_as: str) -> dict[str, str]:
    """Return the headers of a file that a page links to: no browser runs or guesses anything in it.

    ``saved_as``: the name under which it is saved; empty: it is shown.
    """
    policy = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
    saving = {"content-disposition": f"attachment; filename*=UTF-8''{quote(saved_as, safe='')}"} if saved_as else {}
    return {**make_page_headers(), **policy, **saving}


@cache
def _load_styles() -> tuple[str, str]:
    """Return the style sheets of pages: that of all, and that of drawings."""
    return _PAGES.render("page.css"), svg.STYLE


def render(template: str, /, **values: object) -> Markup:
    """Render a page, or a part of one, by the name of its template."""
    return _PAGES.render(f"{template}.html.jinja", scripts=list_script_addresses(), sections=SECTIONS, **values)


def render_problem(title: str, problem: str, way_on: str, way_on_text: str) -> str:
    """Render the page of an error, with a link to where one can go on."""
    return render("problem", title=title, problem=problem, way_on=way_on, way_on_text=way_on_text)


def _shorten(value: Any, instead: str = "") -> str:
    """Return a value as a short text; ``instead``: what stands for None."""
    if value is None:
        return instead
    return (value if isinstance(value, str) else to_json(value))[:_MAX_TEXT_LENGTH]


def format_time(at: float) -> str:
    return f"{to_datetime(at):%Y-%m-%d %H:%M} UTC"


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_PAGES = Templates(
    "scanflow_server.dashboard",
    byte_size=format_bytes,
    cell_kind=page_cells.classify_cell,
    cell_text=page_cells.format_cell,
    device_uses=describe_uses,
    duration=format_duration,
    filled_columns=page_cells.list_filled_columns,
    cores=format_cores,
    cpus=format_cpus,
    format_count=format_count,
    json=to_json,
    latency=page_cells.format_latency,
    quote=lambda text: quote(text, safe=""),
    short_text=_shorten,
    state_cell=page_cells.StateCell,
    time=format_time,
)
