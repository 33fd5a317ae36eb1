"""The context in which a primitive is carried out: the deployer, the stored applications, runs, and the owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from scanflow.agent.agent_records import PrimitiveCall

if TYPE_CHECKING:
    from pathlib import Path

    from scanflow.app.application import Application
    from scanflow.app.workflow import Workflow
    from scanflow.backends.backend_port import JobPlanner
    from scanflow.backends.run_records import RunRecord
    from scanflow.deployer.deployer_port import Deployer, RunRequest

REVERT = "/revert"
"""The suffix of the idempotency key of an inverse that reverts an action."""


@dataclass(frozen=True, slots=True)
class PrimitiveResult:
    """The result of a primitive."""

    result: dict[str, Any]
    """What the action shows as its result, as JSON values."""

    inverse: PrimitiveCall | None = None
    """The call that undoes it. None: it cannot be undone."""


@dataclass(frozen=True, slots=True)
class SavedApplication:
    """The current desired state of an application."""

    application: Application
    """The application as it is now."""

    source: Path | None = None
    """The file it was loaded from."""

    revision: int = 1
    """Counts changes."""


class Applications(Protocol):
    """Stores the desired state of applications. Thread-safe."""

    def get(self, app: str, team: str) -> SavedApplication:
        """Return an application; raise ``NotFoundError`` if there is none."""
        ...

    def change(self, app: str, team: str, make: Callable[[Application], Application]) -> SavedApplication:
        """Store what ``make`` returns for the current application, atomically.

        An unchanged application gets no new revision. ``make`` must not access this store.
        """
        ...


class Runs(Protocol):
    """Starts runs. The same key starts one run, however often it is requested, also across restarts."""

    def find_run(self, key: str) -> RunRecord | None:
        """Return the run that was started for a key; None: there is none."""
        ...

    def begin(self, request: RunRequest, *, key: str) -> RunRecord:
        """Start a run of a workflow, or of one step on its inputs in a past run, and return its record."""
        ...

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        """Request that a run, or one task of it, stops."""
        ...

    def show(self, run: str) -> RunRecord:
        """Return a run with its tasks, also one that was just started."""
        ...

    def get_job_planner(self) -> JobPlanner:
        """Return the planner of MPI jobs.

        Raises:
            UnsupportedError: the backend has none.
        """
        ...

    def find_full_run(self, *, app: str, team: str, workflow: str) -> RunRecord | None:
        """Return the newest run of a whole workflow, not of one step of it; None: there is none."""
        ...

    def list_newest(self, *, app: str, team: str, workflow: str, limit: int) -> list[RunRecord]:
        """Return the runs of a workflow, the newest first."""
        ...


@dataclass(frozen=True, slots=True)
class PrimitiveContext:
    """The context of one execution of a primitive."""

    deployer: Deployer
    """Runs workflows and deploys services. Changes of services are queued with those that people request."""

    applications: Applications
    """The stored applications."""

    runs: Runs
    """Starts runs, each key once."""

    app: str
    """The name of the application that owns the action."""

    team: str
    """The team of that application."""

    key: str = ""
    """Idempotency key, the same for each attempt."""

    noted: PrimitiveCall | None = None
    """The inverse that an interrupted earlier attempt recorded, if any."""

    note: Callable[[PrimitiveCall], object] = lambda _: None
    """Records the inverse, before anything is changed."""

    def get_application(self) -> SavedApplication:
        """Return the application that owns the action."""
        return self.applications.get(self.app, self.team)

    def workflow(self, name: str) -> tuple[SavedApplication, Workflow]:
        """Return the stored application, and one of its workflows."""
        stored = self.get_application()
        return stored, stored.application.workflow(name)

    @property
    def reverting(self) -> bool:
        """Whether it reverts an action. A reversal may be a retry, and records no inverse."""
        return self.key.endswith(REVERT)

    @property
    def tried(self) -> bool:
        """Whether an earlier attempt may have been interrupted."""
        return self.noted is not None or self.reverting

    def update_workflow(self, name: str, change: Callable[[Workflow], Workflow]) -> None:
        """Update a workflow of the stored application; concurrent changes are kept.

        Raises:
            NotFoundError: the application, or its workflow, does not exist any more.
        """

        def change_application(application: Application) -> Application:
            return application.with_workflow(change(application.workflow(name)))

        self.applications.change(self.app, self.team, change_application)

    def undo(self, primitive: str, arguments: Mapping[str, Any]) -> PrimitiveCall:
        """Record and return the inverse of the next change; keep the one that an earlier attempt recorded."""
        if self.noted is not None:
            return self.noted
        inverse = PrimitiveCall(primitive=primitive, arguments=dict(arguments))
        self.note(inverse)
        return inverse
