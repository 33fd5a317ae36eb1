"""Reads the server's pages as a browser does: their forms, links and elements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import NamedTuple

import httpx2

from scanflow_server.page_sessions import COOKIE
from tests.http_requests import NO_AUTHORITIES
from tests.waiting import patient

VOID = {"meta", "link", "input", "img", "br", "hr"}


class Form(NamedTuple):
    action: str
    fields: dict[str, str]
    method: str = "post"


class PageReader(HTMLParser):
    """What a page holds; every element that is opened has to be closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.forms: list[Form] = []
        self.links: dict[str, str] = {}
        """The addresses of links by their texts."""

        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: set[str] = set()
        """The texts of elements, without spaces around them."""

        self.feed(text)
        self.close()
        assert self.open == []

    @property
    def addresses(self) -> set[str]:
        """The addresses of all links."""
        return {str(attributes["href"]) for tag, attributes in self.tags if tag == "a" and "href" in attributes}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "form":
            self.forms.append(Form(str(attributes["action"]), {}, str(attributes["method"])))
        if tag in {"input", "button", "select", "textarea"} and attributes.get("name"):
            self.forms[-1].fields[str(attributes["name"])] = attributes.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.add(data.strip())
        if self.open and self.open[-1] == "a":
            self.links[data] = next(str(own["href"]) for tag, own in reversed(self.tags) if tag == "a")


class PageBrowser(httpx2.Client):
    """A browser of who has logged in: it keeps the key of the session, and sends it with forms."""

    session_key: str

    def submit(self, path: str, **fields: str) -> httpx2.Response:
        """Send a form, and return the page to which its answer leads."""
        return self.post(path, data={**fields, "session_key": self.session_key}, follow_redirects=True)


@contextmanager
def browse(url: str, token: str) -> Iterator[PageBrowser]:
    """Log in, and browse while inside."""
    with PageBrowser(base_url=url, timeout=patient(60), verify=NO_AUTHORITIES) as browser:
        browser.session_key = log_in(browser, token)
        yield browser


def log_in(browser: httpx2.Client, token: str, after: str = "/") -> str:
    """Log in, and return the key of the session, which a browser keeps for its forms."""
    answer = browser.post("/login", data={"token": token, "next": after})
    assert answer.status_code == 200, answer.text
    return read_signed_in(answer.text)["content"]


def find_session(browser: httpx2.Client) -> str | None:
    """Return the session that the cookie of a browser says; None: it has none."""
    return next((value for name, value in browser.cookies.items() if name.startswith(COOKIE)), None)


def read_signed_in(text: str) -> dict[str, str]:
    """Return what the page after a login says to the browser: the session's key, and where it leads."""
    metas = [attributes for tag, attributes in PageReader(text).tags if tag == "meta"]
    (key,) = (attributes for attributes in metas if attributes.get("name") == "session-key")
    (refresh,) = (attributes for attributes in metas if attributes.get("http-equiv") == "refresh")
    assert refresh["content"] == f"1;url={key['data-next']}", "it leads there without scripts, too"
    return {name: str(value) for name, value in key.items()}
