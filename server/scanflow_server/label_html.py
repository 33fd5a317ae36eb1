"""The pages of the label queue as HTML, without scripts and external resources, readable on a phone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from scanflow.agent.agent_records import JSON
from scanflow_server.page_html import format_time, format_value, render_header, render_page, to_json
from scanflow_server.store.label_store import Label

MAX_CHOICES = 12
_MAX_TEXT_LENGTH = 500


def render_empty(caller: str) -> str:
    return render_page("Labels", f"{_render_header(caller)}<main><p>No sample is waiting for a label.</p></main>")


def render_sample(
    label: Label,
    *,
    caller: str,
    position: int,
    labelled: int,
    total: int,
    remaining: int,
    before: str | None,
    after: str | None,
    picture: str | None,
    choices: Sequence[JSON],
) -> str:
    """Render the page of one sample. The model's guess and others' labels are hidden at first, so as not to bias."""
    hidden = "".join(
        f'<input type="hidden" name="{name}" value="{escape(value)}">'
        for name, value in (("app", label.app), ("team", label.team), ("id", label.id))
    )
    mine = next((vote.label for vote in reversed(label.votes or []) if vote.voter == caller), None)
    own = (
        ""
        if mine is None
        else f"<p>You labelled it <strong>{format_value(mine)}</strong>; a new label replaces it.</p>"
    )
    what = "for evaluation" if label.purpose == "evaluate" else "for training"
    run = f" · run {escape(label.run)}" if label.run else ""
    picks = "".join(
        f'<button name="pick" value="{escape(to_json(choice))}">{format_value(choice)}</button>' for choice in choices
    )
    chosen = f'<form method="post" action="/labels"><div class="choices">{hidden}{picks}</div></form>' if picks else ""
    return render_page(
        "Labels",
        f"""{_render_header(caller)}<main>
<progress aria-label="Labelled" max="{total}" value="{labelled}"></progress>
<p>{labelled} of {total} labelled in this detection; {remaining} waiting in total</p>
<nav aria-label="Samples">{_render_link(before, "← Previous", "p")}<span>{position} of {total}</span>
{_render_link(after, "Next →", "n")}</nav>
<h2>{escape(label.id)}</h2><p class="quiet">{escape(label.app)} · {what}{run}</p>
{_render_data(label, picture)}
<div class="answer"><form method="post" action="/labels">{hidden}<label for="label">Label</label>
<div class="field"><input id="label" name="label" required autofocus autocomplete="off" maxlength="1000">
<button>Label</button></div></form>{chosen}</div>
{own}{_render_votes(label)}
<details><summary>The model's prediction</summary><p>{format_value(label.guess)}</p></details>
</main>""",
    )


def _render_data(label: Label, picture: str | None) -> str:
    if label.row:
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{format_value(value)}</td></tr>'
            for name, value in label.row.items()
        )
        return f"<table>{rows}</table>"
    if picture is not None:
        shape = label.data.get("shape")
        size = "×".join(map(str, shape)) if isinstance(shape, list) else ""
        return f'<img src="{escape(picture)}" alt="The picture to label"><p class="quiet">{escape(size)}</p>'
    return f'<p class="quiet">{escape(to_json(label.data)[:_MAX_TEXT_LENGTH])}</p>'


def _render_votes(label: Label) -> str:
    if not label.votes:
        return ""
    rows = "".join(
        f"<tr><td>{escape(vote.by)}</td><td>{format_value(vote.label)}</td><td>{format_time(vote.at)}</td></tr>"
        for vote in label.votes
    )
    disputed = " Labellers disagree." if label.disputed else ""
    return (
        f"<details><summary>Labels so far.{disputed}</summary><p>In use: {format_value(label.label)}</p>"
        f"<table><tr><th>by</th><th>label</th><th>when</th></tr>{rows}</table></details>"
    )


def _render_header(caller: str) -> str:
    return render_header("Labels", "/labels", caller)


def _render_link(address: str | None, text: str, key: str) -> str:
    if address is None:
        return f'<span class="quiet">{text}</span>'
    return f'<a href="{escape(address)}" accesskey="{key}">{text}</a>'
