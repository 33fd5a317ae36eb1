"""What the parts of one server share: made once where it starts, and handed to every route."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request

from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow_server.bell import Bell
from scanflow_server.jobs import Job
from scanflow_server.settings import ServerSettings
from scanflow_server.store.base import Store, open_store

__all__ = ["Context", "Given", "make_context"]


@dataclass(slots=True)
class Context:
    """One server's parts."""

    settings: ServerSettings
    store: Store
    deployer: EmbeddedDeployer
    news: Bell
    """Rings when the store has changed."""

    work: Bell
    """Rings when a controller has something to do."""

    clock: Callable[[], float] = time.time
    """Seconds since the epoch."""

    rng: random.Random = field(default_factory=random.SystemRandom)
    started: float = 0.0
    url: str = ""
    """Where this server answers, once it does."""

    def run_job(self, run: str, drive: int) -> Job:
        """The job of one drive of a run."""
        return Job(self.settings.folder / "runs" / run / str(drive))

    def operation_job(self, id: str) -> Job:
        """The job of one change of a service."""
        return Job(self.settings.folder / "operations" / id)

    def agent_job(self, app: str, name: str) -> Job:
        """The process of an agent, and what it keeps."""
        return Job(self.settings.folder / "agents" / app / name)

    @property
    def told_settings(self) -> dict[str, Any]:
        """What processes that this server starts are told of its settings."""
        own = {"home", "tracker_uri", "slots", "max_fan_out"}
        return self.settings.library.model_copy(update={"home": self.settings.home}).model_dump(
            mode="json", include=own
        )

    @property
    def environ(self) -> dict[str, str]:
        """The environment of processes that this server starts: where they find its home and itself."""
        library = self.settings.library
        told = {"SCANFLOW_HOME": str(self.settings.home)}
        if library.tracker_uri is not None:
            told["SCANFLOW_TRACKER_URI"] = library.tracker_uri
        # The database's address may hold a password; the others would make of a step a client of some server.
        hidden = {"SCANFLOW_DATABASE_URL", "SCANFLOW_SERVER_HOST", "SCANFLOW_SERVER_PORT", "SCANFLOW_URL"}
        return {**{name: value for name, value in os.environ.items() if name not in hidden}, **told}


def make_context(settings: ServerSettings, *, clock: Callable[[], float] = time.time) -> Context:
    """Return the parts of a server with these settings. The database is not asked for anything yet."""
    news = Bell()
    library = settings.library.model_copy(update={"home": settings.home})
    return Context(
        settings=settings,
        store=open_store(settings.database, changed=news.ring),
        deployer=EmbeddedDeployer(library),
        news=news,
        work=Bell(),
        clock=clock,
        started=clock(),
    )


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Given = Annotated[Context, Depends(_context)]
"""What a route asks for to get the server's parts."""
