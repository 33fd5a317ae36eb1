"""Streams of pages: what a page shows, sent again as soon as it has changed.

One stream a tab, which the browser closes while nobody looks at the tab. A page is rendered again when the store or
the backend may have changed, and else after a pause that grows while nothing does, so that an idle tab costs a
thousandth of a core at most.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial

from starlette.concurrency import run_in_threadpool

from scanflow.backends.backend_port import ChangeMarked
from scanflow.errors import ScanflowError
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageRequest
from scanflow_server.server_context import ServerContext
from scanflow_server.streams import format_event

LOOK_S, IDLE_LOOK_S = 0.4, 0.9
"""How often the backend's marker is read, in seconds: while something changes now and then, and after a while without
a change. A change is on the page within a second with both: a page that was just rendered has to wait."""

BUSY_SHARE, IDLE_SHARE = 0.1, 0.0001
"""The most of a core that a page takes: one that changes or grows, and one that does neither. A rendering's cost is
counted by its thread's own clock, which sees half of what the server does for it."""

MIN_PAUSE_S, GROWING_PAUSE_S = 0.25, 0.4
"""After how long a page is rendered again at the earliest, and one that grows: what tells of changes tells nothing of
the lines of a log."""

IDLE_PAUSE_S, MAX_PAUSE_S = 8.0, 180.0
"""Between two renderings, in seconds: from when on a page counts as idle, and the longest."""


@dataclass
class RenderPace:
    """When a page is rendered again. Pure: times come from outside, in seconds."""

    rendered: float = float("-inf")
    cost_s: float = 0.0
    idle_pause_s: float = 1.0

    def record(self, at: float, cost_s: float, *, has_changed: bool, grows: bool = False) -> None:
        """Note when the page was rendered, the seconds of a core that it took, whether it differed from what was sent
        last, and whether it grows."""
        self.rendered, self.cost_s = at, cost_s
        longest = min(max(1.0, self.cost_s / IDLE_SHARE), MAX_PAUSE_S)
        self.idle_pause_s = 1.0 if has_changed else min(self.idle_pause_s * 2, longest)
        if grows:
            self.idle_pause_s = max(GROWING_PAUSE_S, self.cost_s / BUSY_SHARE)

    @property
    def look_s(self) -> float:
        """How long the backend's marker need not be read."""
        return IDLE_LOOK_S if self.idle_pause_s >= IDLE_PAUSE_S else LOOK_S

    def compute_wait(self, now: float, *, may_have_changed: bool) -> float:
        """Return the seconds until the page is rendered again; not above 0: it is due."""
        pause_s = max(MIN_PAUSE_S, self.cost_s / BUSY_SHARE) if may_have_changed else self.idle_pause_s
        return self.rendered + pause_s - now


async def stream_page(
    page: DashboardPage, request: PageRequest, is_still_valid: Callable[[], Awaitable[bool]], last: str | None = None
) -> AsyncIterator[bytes]:
    """Yield what the page shows as events, each as soon as it differs from the one before, until the caller's token is
    not valid any more. ``last``: the id of what the browser has."""
    context, pace, before, clock = request.context, RenderPace(), None, time.monotonic
    read = partial(read_marker, context, page)
    while not context.shutdown.is_set() and await is_still_valid():
        changes = context.store_notifier.changes
        marker = read()  # in no thread: that would take longer, for each tab
        may_have_changed = (changes, marker) != before
        if (wait_s := pace.compute_wait(clock(), may_have_changed=may_have_changed)) <= 0:
            content, grows, cost_s = await run_in_threadpool(_render, page, request)
            digest = hashlib.sha256(content.encode()).hexdigest()[:16]
            pace.record(clock(), cost_s, has_changed=digest != last, grows=grows)
            before = changes, marker
            if digest != last:
                last = digest
                yield format_event(content, id=digest)
        elif may_have_changed:  # at most so often, however many changes there are
            await asyncio.sleep(wait_s)
        else:
            await context.store_notifier.wait_or_look(changes, read, marker, every_s=pace.look_s, timeout_s=wait_s)


def _render(page: DashboardPage, request: PageRequest) -> tuple[str, bool, float]:
    """Return what the page shows, whether that grows, and the seconds of a core that it took."""
    began = time.thread_time()
    try:
        view = page.load(request)
        content, grows = page.render_view(view, request), view.grows
    except ScanflowError as error:  # it is deleted, or not the caller's any more
        content, grows = page.render_problem(request, error), False
    return content, grows, time.thread_time() - began


def read_marker(context: ServerContext, page: DashboardPage) -> Hashable:
    """Return a value that differs once the backend's runs or services may have changed, or services had requests; for
    a page of agents, also once a sensor has fired."""
    backend = context.deployer.backend
    counts = context.service_history.changes, context.heartbeats.look() if page.section == "/agents" else 0
    return counts, backend.read_change_marker() if isinstance(backend, ChangeMarked) else None
