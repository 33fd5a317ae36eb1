"""A page of the dashboard: its address, its template, and the function that loads what it shows.

A page is loaded by the same functions as the API's routes, which restrict a caller to its team and mask secrets. It is
rendered as a whole document once, and after that as the content of ``<main>``, whenever that has changed: see
:mod:`~scanflow_server.dashboard.live_pages`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from shlex import quote
from typing import Final, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from scanflow.errors import ScanflowError
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.dashboard.page_html import render
from scanflow_server.dashboard.page_times import TimeFormatter
from scanflow_server.server_context import ServerContext
from scanflow_server.token_roles import Permission, TokenHolder, explain_refusal

LIVE: Final = "/live"
"""The prefix of a page's stream."""


@dataclass(frozen=True, kw_only=True)
class PageRequest:
    """A request of a page, by a caller that is known."""

    context: ServerContext
    engine: ArbiterEngine
    caller: TokenHolder
    path: str
    parameters: Mapping[str, str]
    """The parameters of the path: ``{"run": "w-1"}``."""

    query: Mapping[str, str] = field(default_factory=dict)
    zone: tzinfo = UTC
    """The time zone of the reader."""

    is_live: bool = False
    """Whether it is the stream of a page that was opened before."""

    signs_in: bool = False
    """Whether people sign in at a provider."""

    describe: Callable[[str], None] = lambda _what: None
    """Says to the audit log what an action is about, where its address does not."""

    @property
    def now(self) -> float:
        return self.context.clock()

    def may(self, permission: Permission, team: str | None) -> bool:
        """Return whether the caller has a permission: a page shows no button that would be refused."""
        return explain_refusal(self.caller, permission, team) is None

    @property
    def filters(self) -> dict[str, str]:
        """What the query says, without names that have no value."""
        return {name: value for name, value in self.query.items() if value}

    def build_command(self, command: str, **options: str) -> str:
        """Return the command line that shows the same as the page; empty: the query says more than it can.

        ``options``: what stands for a name of the query, with ``{}`` for its value: ``app="--app {}"``.
        """
        if not self.filters.keys() <= options.keys():
            return ""
        words = [options[name].format(quote(value)) for name, value in self.filters.items()]
        return " ".join(filter(None, [command, *words]))

    def build_address(self, **changes: object) -> str:
        """Return the address of this page with other values of its query; None takes one out."""
        shown = urlencode({key: value for key, value in {**self.query, **changes}.items() if value not in {None, ""}})
        return f"{self.path}?{shown}" if shown else self.path


@dataclass(frozen=True, kw_only=True)
class PageView:
    """What a page shows at a moment."""

    title: str
    command: str = ""
    """The command line that shows the same."""

    values: Mapping[str, object] = field(default_factory=dict)
    """The values of the template."""

    grows: bool = False
    """Whether it changes by more than the store and the backend tell of, as the log of a task that runs."""

    address: str = ""
    """The address of what is shown, where the page's own may show something else later; empty: it is the page's."""

    @classmethod
    def make(cls, title: str, command: str = "", /, **values: object) -> PageView:
        """Return what most pages show: values by the names that the template has for them."""
        return cls(title=title, command=command, values=values)


@dataclass(frozen=True, kw_only=True)
class DashboardPage:
    path: str
    """Its address: ``/runs/{run}``."""

    template: str
    load: Callable[[PageRequest], PageView]
    """Called in a thread. Raises NotFoundError, ForbiddenError, ... for a page that says so."""

    @property
    def section(self) -> str:
        """The address of the section that it belongs to, as the navigation has it."""
        return f"/{self.path.split('/')[1]}"

    def render(self, request: PageRequest, *, nonce: str | None = None) -> Markup:
        """Render the document, with scripts of that nonce; without one, only what ``<main>`` holds."""
        return self.render_view(self.load(request), request, nonce=nonce)

    def render_view(self, view: PageView, request: PageRequest, *, nonce: str | None = None) -> Markup:
        """Render the same of what :attr:`load` returned."""
        return render(
            self.template,
            layout="main_content.html.jinja" if nonce is None else "dashboard.html.jinja",
            nonce=nonce,
            live=LIVE + (view.address or request.build_address()),
            request=request,
            caller=request.caller.name,
            may=request.may,
            section=self.section,
            time=TimeFormatter(request.zone),
            title=view.title,
            command=view.command,
            **view.values,
        )

    def render_problem(self, request: PageRequest, error: ScanflowError, *, nonce: str | None = None) -> Markup:
        """Render the page as an error that says what to do."""
        view = PageView.make("Error", problem=str(error))
        return replace(self, template="page_problem").render_view(view, request, nonce=nonce)


@dataclass(frozen=True, kw_only=True)
class PageAction:
    """A form's action, which changes something and leads to a page."""

    path: str
    perform: Callable[[PageRequest, Mapping[str, str]], str]
    """Called in a thread with the form's fields. Returns the address to go to; or markup, which the page shows in its
    place. It checks the caller's permission."""

    permission: Permission = "change"
    """What the caller needs in its own team, before the form is read."""

    needs_key: bool = True
    """Whether the form needs the session's key, too: all but labels do."""


class FileContent(NamedTuple):
    """What a file that a page links to holds."""

    blocks: AsyncIterator[bytes]
    media_type: str = "application/octet-stream"
    saved_as: str = ""
    """The name under which a browser saves it; empty: it shows it."""


@dataclass(frozen=True, kw_only=True)
class PageFile:
    """A file that a page links to or shows: a log, a picture."""

    path: str
    open: Callable[[PageRequest], FileContent]
    """Called in a thread. Raises NotFoundError, ... for what the caller may not read."""
