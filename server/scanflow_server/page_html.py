"""The frame of all pages as HTML, without scripts and external resources, readable on a phone. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import Any
from urllib.parse import urlencode

from scanflow.text.times import to_datetime
from scanflow_server.store.token_store import TokenRow

_MAX_TEXT_LENGTH = 500

_STYLE = """
:root { color-scheme: light dark; font: 1rem/1.4 system-ui, sans-serif }
body { margin: 0 auto; max-width: 44rem; padding: 0 1rem 1rem; overflow-wrap: anywhere }
header, nav, .choices, .field { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center }
header form, nav a:last-child, nav span:last-child { margin-left: auto }
h1 { font-size: 1.25rem; margin: .5rem 0 } h2 { font-size: 1rem; margin: .5rem 0 .25rem }
p { margin: .25rem 0 } progress { width: 100% }
img { display: block; width: min(100%, 20rem); image-rendering: pixelated; border: 1px solid GrayText; margin: .5rem 0 }
table { border-collapse: collapse; width: 100%; table-layout: fixed }
th, td { text-align: left; vertical-align: top; padding: .25rem .5rem .25rem 0; border-bottom: 1px solid GrayText }
@media (max-width: 30rem) { table { font-size: .875rem } }
th, td { font-weight: 400 } th[scope] { width: 40%; opacity: .8 }
.answer { position: sticky; bottom: 0; background: Canvas; padding: .5rem 0; max-height: 45vh; overflow: auto }
.field { flex-wrap: nowrap; padding: .25rem } input { flex: 1; min-width: 0 }
input, button, nav a, nav span { font: inherit; padding: .5rem .75rem; min-height: 1.5rem; box-sizing: content-box }
:focus-visible { outline: 3px solid Highlight; outline-offset: 1px }
.wrong { border-left: 4px solid; padding-left: .75rem }
.button { display: inline-block; border: 1px solid; border-radius: .25rem; padding: .5rem .75rem; margin: .25rem 0;
  color: ButtonText; background: ButtonFace; text-decoration: none }
code.token { display: block; padding: .5rem; border: 1px solid GrayText; user-select: all; word-break: break-all }
small, .quiet { opacity: .8 } summary { padding: .5rem 0 }
"""


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


HEADERS = make_headers(_STYLE)


def render_page(title: str, body: str, *, leads_to: str | None = None) -> str:
    """Render a page; ``leads_to``: an address that the browser goes on to at once."""
    forward = "" if leads_to is None else f'<meta http-equiv="refresh" content="0;url={escape(leads_to)}">'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)} – Scanflow</title>'
        '<link rel="icon" href="data:,">'  # else a browser requests /favicon.ico, and logs an error
        f"<style>{_STYLE}</style>{forward}</head><body>{body}</body></html>"
    )


def render_header(title: str, address: str, caller: str) -> str:
    """Render a page's header: its title, a link to the first page, the caller, and the logout button."""
    home = "" if address == "/" else '<a href="/">Scanflow</a> '
    return (
        f'<header><h1>{home}<a href="{escape(address)}">{escape(title)}</a></h1>'
        f'<form method="post" action="/logout"><small>{escape(caller)}</small> <button>Log out</button></form></header>'
    )


COMMAND_LINE_LINK = '<a href="/login/oidc?for=token">Make a token for the command line</a>'


def render_login(after: str = "/", problem: str = "", *, provider: str = "") -> str:
    """Render the page that asks for a token; ``after``: the address to go to then; ``provider``: where people sign in
    without one."""
    way, focus = "", " autofocus"
    if provider:
        address, focus = escape("/login/oidc?" + urlencode({"next": after})), ""
        way = f"""<p><a class="button" href="{address}">Sign in with {escape(provider)}</a></p>
<p>{COMMAND_LINE_LINK}</p><p class="quiet">Or log in with a token:</p>"""
    alert = f'<p class="wrong" role="alert">{escape(problem)}</p>' if problem else ""
    return render_page(
        "Log in",
        f"""<header><h1>Scanflow</h1></header><main>{alert}{way}
<form method="post" action="/login"><input type="hidden" name="next" value="{escape(after)}">
<label for="token">Token</label>
<div class="field"><input id="token" name="token" type="password" required{focus} autocomplete="current-password">
<button>Log in</button></div></form>
<p class="quiet"><code>scanflow token show</code> prints the home's token where the server runs;
<code>scanflow token make NAME</code> makes one for a person, under whose name labels are kept.</p></main>""",
    )


def render_sign_in_error(problem: str) -> str:
    text = f'<p class="wrong" role="alert">{escape(problem)}</p><p><a href="/login">Go to the login</a></p>'
    return render_page("Sign-in failed", f"<header><h1>Scanflow</h1></header><main>{text}</main>")


def render_signed_in(person: str, after: str) -> str:
    text = f'<p>Signed in as {escape(person)}. <a href="{escape(after)}">Go on</a></p>'
    return render_page("Signed in", f"<header><h1>Scanflow</h1></header><main>{text}</main>", leads_to=after)


def render_token(row: TokenRow, token: str, server: str) -> str:
    """Render the page that shows a new token, once; ``server``: the address of this server."""
    team = "all teams" if row.team is None else f"the team {row.team}"
    return render_page(
        "A token for the command line",
        f"""<header><h1><a href="/">Scanflow</a> A token for the command line</h1></header><main>
<p>For {escape(row.person or row.name)}, with the role {row.role} for {escape(team)}.
It is valid until {format_time(row.expires or 0)}, and shown this once.</p>
<code class="token">export SCANFLOW_URL={escape(server)}<br>export SCANFLOW_TOKEN={escape(token)}</code>
<p class="quiet">An admin ends it earlier: <code>scanflow token revoke {escape(row.name)}</code></p>
</main>""",
    )


def render_error(problem: str) -> str:
    text = f'<p class="wrong" role="alert">{escape(problem)}</p><p><a href="/">Go to the overview</a></p>'
    return render_page("Error", f"<header><h1>Scanflow</h1></header><main>{text}</main>")


def format_value(value: Any) -> str:
    """Return a value as text, escaped and shortened."""
    if value is None:
        return "<small>nothing</small>"
    return escape((value if isinstance(value, str) else to_json(value))[:_MAX_TEXT_LENGTH])


def format_time(at: float) -> str:
    return f"{to_datetime(at):%Y-%m-%d %H:%M} UTC"


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
