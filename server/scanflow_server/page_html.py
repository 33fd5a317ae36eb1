"""Pages as HTML, without scripts and external resources, readable on a phone: templates, and what they need. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from typing import Any
from urllib.parse import quote

from scanflow.agent.agent_records import Action
from scanflow.app.quantities import format_count
from scanflow.drift.promotion import format_decision
from scanflow.text.markup import Templates
from scanflow.text.times import to_datetime

_MAX_TEXT_LENGTH = 500


def make_headers(*styles: str) -> dict[str, str]:
    """Return the headers of a page that allow only these style sheets, pictures and forms."""
    digests = (base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() for style in styles)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return {
        "content-security-policy": (
            f"default-src 'none'; style-src {allowed}; img-src 'self' data:; form-action 'self'; "
            "base-uri 'none'; frame-ancestors 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",  # else the browser sends no Origin with a form, which is refused
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }


@cache
def get_headers() -> dict[str, str]:
    """Return the headers of a page that has the style sheet of all pages."""
    return make_headers(_PAGES.render("page.css"))


def render(template: str, /, **values: object) -> str:
    """Render a page, or a part of one, by the name of its template."""
    return _PAGES.render(f"{template}.html.jinja", **values)


def render_problem(title: str, problem: str, way_on: str, way_on_text: str) -> str:
    """Render the page of an error, with a link to where one can go on."""
    return render("problem", title=title, problem=problem, way_on=way_on, way_on_text=way_on_text)


def _shorten(value: Any, instead: str = "") -> str:
    """Return a value as a short text; ``instead``: what stands for None."""
    if value is None:
        return instead
    return (value if isinstance(value, str) else to_json(value))[:_MAX_TEXT_LENGTH]


def _format_reason(action: Action) -> str:
    return format_decision(action.intent.evidence) if action.intent.evidence else action.decision.reason


def format_time(at: float) -> str:
    return f"{to_datetime(at):%Y-%m-%d %H:%M} UTC"


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_PAGES = Templates(
    "scanflow_server",
    format_count=format_count,
    json=to_json,
    quote=lambda text: quote(text, safe=""),
    reason=_format_reason,
    short_text=_shorten,
    time=format_time,
)
