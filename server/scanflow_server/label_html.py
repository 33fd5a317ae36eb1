"""The pages of the label queue as HTML: pure functions. No scripts, nothing from elsewhere, and readable on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from scanflow.agent.records import JSON
from scanflow_server.page_html import header, json_of, moment_of, page, text_of
from scanflow_server.store.labels import Label

MOST_CHOICES = 12
_MOST_TEXT = 500


def nothing(caller: str) -> str:
    return page("Labels", f"{_header(caller)}<main><p>No sample waits for a label.</p></main>")


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
    own = (
        "" if mine is None else f"<p>You labelled it <strong>{text_of(mine)}</strong>; another label replaces that.</p>"
    )
    what = "to judge models by" if one.purpose == "evaluate" else "to train on"
    run = f" · run {escape(one.run)}" if one.run else ""
    picks = "".join(
        f'<button name="pick" value="{escape(json_of(label))}">{text_of(label)}</button>' for label in choices
    )
    chosen = f'<form method="post" action="/labels"><div class="choices">{hidden}{picks}</div></form>' if picks else ""
    return page(
        "Labels",
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
<details><summary>What the model takes it for</summary><p>{text_of(one.guess)}</p></details>
</main>""",
    )


def _seen(one: Label, picture: str | None) -> str:
    if one.row:
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{text_of(value)}</td></tr>' for name, value in one.row.items()
        )
        return f"<table>{rows}</table>"
    if picture is not None:
        shape = one.data.get("shape")
        size = "×".join(map(str, shape)) if isinstance(shape, list) else ""
        return f'<img src="{escape(picture)}" alt="The picture to label"><p class="quiet">{escape(size)}</p>'
    return f'<p class="quiet">{escape(json_of(one.data)[:_MOST_TEXT])}</p>'


def _others(one: Label) -> str:
    if not one.votes:
        return ""
    rows = "".join(
        f"<tr><td>{escape(vote.by)}</td><td>{text_of(vote.label)}</td><td>{moment_of(vote.at)}</td></tr>"
        for vote in one.votes
    )
    disputed = " Not all agree." if one.disputed else ""
    return (
        f"<details><summary>Labels until now.{disputed}</summary><p>In use: {text_of(one.label)}</p>"
        f"<table><tr><th>by</th><th>label</th><th>when</th></tr>{rows}</table></details>"
    )


def _header(caller: str) -> str:
    return header("Labels", "/labels", caller)


def _link(address: str | None, text: str, key: str) -> str:
    if address is None:
        return f'<span class="quiet">{text}</span>'
    return f'<a href="{escape(address)}" accesskey="{key}">{text}</a>'
