"""Templates of all pages: text of other people stays text, and a value that a template lacks is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from scanflow.agent.agent_records import Decision, Event
from scanflow.drawing.svg import draw_element, draw_figure, escape_text
from scanflow.reports.outcome import DriftOutcome
from scanflow.reports.page import render_frame, render_report
from scanflow.reports.report_data import Kind, LoopEvent, ModelUse, RequestCounts, ScoredAnswers, Version
from scanflow.reports.tracker_links import TrackerLinks
from scanflow_client.formatting.screen_html import render_screen
from scanflow_client.formatting.text_table import Table
from scanflow_server.dashboard.page_cells import CellTable, LinkCell, StateCell
from scanflow_server.dashboard.page_html import render, render_problem
from scanflow_server.dashboard.page_times import TimeFormatter
from scanflow_server.store.label_store import Label, Vote
from scanflow_server.store.token_store import TokenRow
from tests.unit.server.arbiter.intent_builders import action, intent

CHECKOUT = Path(__file__).resolve().parents[2]
EVIL = "\"'><evil onload='&amp;"
TOKEN = TokenRow(name=EVIL, person=EVIL, role="viewer", team=EVIL, created=0.0, expires=1.0)
PAGES: dict[str, dict[str, Any]] = {
    "login": {"title": EVIL, "after": EVIL, "problem": EVIL, "provider": EVIL},
    "problem": {"title": EVIL, "problem": EVIL, "way_on": EVIL, "way_on_text": EVIL},
    "signed_in": {"title": EVIL, "person": EVIL, "after": EVIL, "session_key": EVIL, "nonce": EVIL},
    "token": {"title": EVIL, "row": TOKEN, "token": EVIL, "server": EVIL, "back": EVIL},
}


class _Page(HTMLParser):
    """The elements of a page, and how often the text is there, as text or in an attribute."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts = self.attributes = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += sum(EVIL in (value or "") for _, value in attrs)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.texts += data.count(EVIL)


def render_evil_report() -> str:
    kinds: tuple[Kind, ...] = ("predictions", "detection", "promotion")
    events = [
        LoopEvent(at=60.0 * at, agent=EVIL, kind=kind, text=f"{EVIL} more", detail=EVIL)
        for at, kind in enumerate(kinds)
    ]
    column = {
        "name": EVIL,
        "test": EVIL,
        "shares": {"bins": [EVIL, "b"], "reference": [0.2, 0.8], "current": [0.5, 0.5]},
    }
    return render_report(
        title=EVIL,
        events=events,
        versions=[Version(version=1, at=1.0, accuracy=0.8, uses=(ModelUse(began=1.0),))],
        asked=[RequestCounts(at=60.0 * at, since=0.0, version=EVIL, requests=5, errors=1) for at in (1, 2)],
        answers=[ScoredAnswers(60.0, EVIL, 5, 9)],
        counted=EVIL,
        columns=[column],
        picked=[{"row": {EVIL: EVIL}, "guess": EVIL, "label": EVIL}],
        outcomes=[DriftOutcome(at=1.0, verdict=EVIL, steps=[(1.0, EVIL, EVIL, EVIL)])],
        facts={EVIL: EVIL},
        lead=EVIL,
        links=TrackerLinks(f"http://{EVIL}", "7", EVIL),
    )


TABLE = CellTable((EVIL,), [[cell] for cell in (EVIL, LinkCell(EVIL, EVIL), StateCell(EVIL))])
CHOICES = {name: [EVIL, "b"] for name in ("app", "team")}
EMPTY = CellTable((), [], EVIL, EVIL)


def render_evil_page(template: str, **values: object) -> str:
    """Render a page of the dashboard as a document, of values by the names of its template."""
    request = SimpleNamespace(path=EVIL, query={"who": EVIL}, filters={}, build_address=lambda: EVIL)
    return render(
        template, layout="dashboard.html.jinja", nonce=EVIL, live=EVIL, request=request,
        caller=EVIL, may=lambda *_: True, section="/", time=TimeFormatter(UTC), title=EVIL, command=EVIL, **values,
    )  # fmt: skip


def render_evil_overview() -> str:
    decision = Decision(intent=EVIL, verdict="approve", reason=EVIL, at=1.0)
    requested = action(intent(EVIL, agent=EVIL, target=EVIL), began=1.0, decision=decision, state="pending")
    return render_evil_page(
        "overview", approvals=[(requested, EVIL)], labels=1, failures=[(LinkCell(EVIL, EVIL), EVIL, EVIL)],
        drifts=[Event(at=1.0, type="drift.found", app=EVIL, data={})], running=TABLE, services=EMPTY, agents=TABLE,
        today=TABLE, devices=TABLE, reports=[EVIL], choices=CHOICES, signs_in=True,
    )  # fmt: skip


def render_evil_sample(**data: Any) -> str:
    vote = Vote.model_construct(by=EVIL, label=EVIL, at=1.0)
    values: dict[str, Any] = {
        "id": EVIL,
        "app": EVIL,
        "team": EVIL,
        "run": EVIL,
        "guess": EVIL,
        "label": EVIL,
        "votes": [vote],
    }
    values |= {"purpose": "train", "disputed": True, "row": None, "data": {}, "picture": None} | data
    sample = Label.model_construct(**values)
    return render_evil_page(
        "labels", label=sample, may_label=True, position=1, labelled=0, total=1, remaining=1, before=EVIL,
        after=EVIL, picture=EVIL, size=EVIL, choices=[EVIL, {EVIL: EVIL}], own=EVIL,
    )  # fmt: skip


def render_evil_settings() -> str:
    return render_evil_page(
        "settings", is_admin=True, caller_role=EVIL, scope=EVIL, zone=EVIL, roles=TABLE, webhooks=TABLE, usage=EMPTY,
        server=[(EVIL, EVIL)], started=0.0, signs_in=True,
    )  # fmt: skip


def render_evil_tokens() -> str:
    return render_evil_page(
        "tokens", is_admin=True, tokens=[(TOKEN, EVIL), (TOKEN, "valid")], roles=[EVIL], home="home", own_team=None,
        format_team=str, newer=EVIL, older=EVIL,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("draw", "texts", "attributes"),
    [
        pytest.param(lambda: render_screen([EVIL, Table([EVIL], [[EVIL]]), EVIL, f" {EVIL}"]), 5, 0, id="screen"),
        pytest.param(lambda: render_screen([EVIL], links={EVIL: EVIL}), 1, 1, id="link"),
        pytest.param(render_evil_report, 48, 3, id="report"),
        pytest.param(render_evil_overview, 27, 11, id="overview"),
        pytest.param(
            lambda: render_evil_page("runs", table=TABLE, choices=CHOICES, newer=EVIL, older=EVIL), 7, 9, id="runs"
        ),
        pytest.param(lambda: render_evil_page("page_problem", problem=EVIL), 3, 1, id="problem of a page"),
        pytest.param(lambda: render_evil_sample(row={EVIL: EVIL}), 14, 15, id="row"),
        pytest.param(render_evil_sample, 13, 16, id="picture"),
        pytest.param(render_evil_settings, 14, 2, id="settings"),
        pytest.param(render_evil_tokens, 9, 5, id="tokens"),
        pytest.param(
            lambda: render_evil_page("audit", is_admin=True, table=TABLE, newer=EVIL, older=EVIL), 7, 9, id="audit"
        ),
        pytest.param(lambda: render_problem(EVIL, EVIL, EVIL, EVIL), 3, 1, id="error"),
        pytest.param(lambda: render_frame(EVIL, Markup(EVIL)), 0, 2, id="frame"),
        pytest.param(
            lambda: draw_figure(9.0, EVIL, draw_element("text", escape_text(EVIL), x=EVIL)), 2, 1, id="drawing"
        ),
        *(pytest.param(lambda name=name: render(name, **PAGES[name]), 1, 0, id=name) for name in PAGES),
    ],
)
def test_text_of_other_people_is_text_in_every_page(draw: Callable[[], str], texts: int, attributes: int) -> None:
    page = _Page(draw())
    assert "evil" not in page.tags
    assert page.texts >= texts
    assert page.attributes >= attributes, page.attributes


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, values in PAGES.items() for name in values])
def test_a_value_that_a_page_lacks_is_an_error(page: str, name: str) -> None:
    with pytest.raises(UndefinedError, match=f"'{name}' is undefined"):
        render(page, **{key: value for key, value in PAGES[page].items() if key != name})


def test_no_template_disables_escaping_or_has_a_script() -> None:
    files = [file for top in ("scanflow", "client", "server") for file in (CHECKOUT / top).rglob("*.jinja")]
    assert len(files) > 15
    for file in files:
        text = file.read_text(encoding="utf-8").replace(OWN_SCRIPT, "")
        if file.name == "open_dashboard.html.jinja":  # a file of the user's own, which no server sends
            text = text.replace("<script>document.forms[0].submit()</script>", "")
        assert not re.search(r"\bsafe\b|autoescape|<script|\son[a-z]+=", text), file.name
        assert " style=" not in text or not file.is_relative_to(CHECKOUT / "server"), f"{file.name}: the CSP refuses it"


OWN_SCRIPT = '<script src="{{ address }}" nonce="{{ nonce }}" defer></script>'
"""A script of a page: of this server, at a version, and with the nonce of the answer."""


def test_what_a_page_shows_is_rendered_alone_for_its_stream() -> None:
    values = {"problem": EVIL, "section_text": EVIL}
    content = render("page_problem", layout="main_content.html.jinja", section="/", **values)
    assert not {"html", "main", "style", "script", "form"} & _Page(content).tags
    assert content.strip() in render_evil_page("page_problem", **values)
