"""The pages of the label queue as HTML: pure functions. No scripts, nothing from elsewhere, and readable on a phone."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from scanflow.agent.records import JSON
from scanflow_server.store.labels import Label

MOST_CHOICES = 12
_MOST_TEXT = 500

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
th, td { font-weight: 400 } th[scope] { width: 40%; opacity: .8 }
.answer { position: sticky; bottom: 0; background: Canvas; padding: .5rem 0; max-height: 45vh; overflow: auto }
.field { flex-wrap: nowrap; padding: .25rem } input { flex: 1; min-width: 0 }
input, button, nav a, nav span { font: inherit; padding: .5rem .75rem; min-height: 1.5rem; box-sizing: content-box }
:focus-visible { outline: 3px solid Highlight; outline-offset: 1px }
.wrong { border-left: 4px solid; padding-left: .75rem }
small, .quiet { opacity: .8 } summary { padding: .5rem 0 }
"""

_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with less a browser would hide where a form comes from, and it be refused
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def login(problem: str = "") -> str:
    said = f'<p class="wrong" role="alert">{escape(problem)}</p>' if problem else ""
    return _page(
        f"""<header><h1>Labels</h1></header><main>{said}
<form method="post" action="/labels/login"><label for="token">Token</label>
<div class="field"><input id="token" name="token" type="password" required autofocus autocomplete="current-password">
<button>Log in</button></div></form>
<p class="quiet"><code>scanflow token show</code> prints the home's token where the server runs;
<code>scanflow token make NAME</code> makes one for a person, under whose name labels are kept.</p></main>"""
    )


def wrong(problem: str) -> str:
    text = f'<p class="wrong" role="alert">{escape(problem)}</p><p><a href="/labels">To what waits for a label</a></p>'
    return _page(f"<header><h1>Labels</h1></header><main>{text}</main>")


def nothing(caller: str) -> str:
    return _page(f"{_header(caller)}<main><p>No sample waits for a label.</p></main>")


def sample(
    one: Label,
    *,
    caller: str,
    position: int,
    labelled: int,
    total: int,
    left: int,
    before: str | None,
    after: str | None,
    picture: str | None,
    choices: Sequence[JSON],
) -> str:
    """Return the page of one sample, which shows neither the model's guess nor others' labels unless that is asked for:
    who labels should not be led."""
    hidden = "".join(
        f'<input type="hidden" name="{name}" value="{escape(value)}">'
        for name, value in (("app", one.app), ("team", one.team), ("id", one.id))
    )
    mine = next((vote.label for vote in reversed(one.votes or []) if vote.by == caller), None)
    own = "" if mine is None else f"<p>You labelled it <strong>{_text(mine)}</strong>; another label replaces that.</p>"
    what = "to judge models by" if one.purpose == "evaluate" else "to train on"
    run = f" · run {escape(one.run)}" if one.run else ""
    picks = "".join(f'<button name="pick" value="{escape(_json(label))}">{_text(label)}</button>' for label in choices)
    chosen = f'<form method="post" action="/labels"><div class="choices">{hidden}{picks}</div></form>' if picks else ""
    return _page(
        f"""{_header(caller)}<main>
<progress aria-label="Labelled" max="{total}" value="{labelled}"></progress>
<p>{labelled} of {total} labelled of this detection; {left} wait in all</p>
<nav aria-label="Samples">{_link(before, "← Previous", "p")}<span>{position} of {total}</span>
{_link(after, "Next →", "n")}</nav>
<h2>{escape(one.id)}</h2><p class="quiet">{escape(one.app)} · {what}{run}</p>
{_seen(one, picture)}
<div class="answer"><form method="post" action="/labels">{hidden}<label for="label">Label</label>
<div class="field"><input id="label" name="label" required autofocus autocomplete="off" maxlength="1000">
<button>Label</button></div></form>{chosen}</div>
{own}{_others(one)}
<details><summary>What the model takes it for</summary><p>{_text(one.guess)}</p></details>
</main>"""
    )


def _seen(one: Label, picture: str | None) -> str:
    if one.row:
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{_text(value)}</td></tr>' for name, value in one.row.items()
        )
        return f"<table>{rows}</table>"
    if picture is not None:
        shape = one.data.get("shape")
        size = "×".join(map(str, shape)) if isinstance(shape, list) else ""
        return f'<img src="{escape(picture)}" alt="The picture to label"><p class="quiet">{escape(size)}</p>'
    return f'<p class="quiet">{escape(_json(one.data)[:_MOST_TEXT])}</p>'


def _others(one: Label) -> str:
    if not one.votes:
        return ""
    rows = "".join(
        f"<tr><td>{escape(vote.by)}</td><td>{_text(vote.label)}</td>"
        f"<td>{datetime.fromtimestamp(vote.at, UTC):%Y-%m-%d %H:%M} UTC</td></tr>"
        for vote in one.votes
    )
    disputed = " Not all agree." if one.disputed else ""
    return (
        f"<details><summary>Labels until now.{disputed}</summary><p>In use: {_text(one.label)}</p>"
        f"<table><tr><th>by</th><th>label</th><th>when</th></tr>{rows}</table></details>"
    )


def _header(caller: str) -> str:
    return (
        f'<header><h1><a href="/labels">Labels</a></h1><form method="post" action="/labels/logout"><small>'
        f"{escape(caller)}</small> <button>Log out</button></form></header>"
    )


def _link(address: str | None, text: str, key: str) -> str:
    if address is None:
        return f'<span class="quiet">{text}</span>'
    return f'<a href="{escape(address)}" accesskey="{key}">{text}</a>'


def _text(value: Any) -> str:
    if value is None:
        return "<small>nothing</small>"
    return escape((value if isinstance(value, str) else _json(value))[:_MOST_TEXT])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _page(body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Labels – Scanflow</title>'
        '<link rel="icon" href="data:,">'  # without it a browser asks for /favicon.ico, is refused, and says so
        f"<style>{_STYLE}</style></head><body>{body}</body></html>"
    )
