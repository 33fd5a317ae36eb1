"""What a primitive works with while it is carried out: who runs and serves, the applications as they are wanted, and
whom it acts for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from scanflow.agent.records import PrimitiveCall

if TYPE_CHECKING:
    from pathlib import Path

    from scanflow.app.application import Application
    from scanflow.app.workflow import Workflow
    from scanflow.backends.port import JobPlanner
    from scanflow.backends.records import RunRecord
    from scanflow.deployer.port import Deployer, RunRequest

REVERT = "/revert"
"""How the idempotency key of an inverse ends that takes an action back."""


@dataclass(frozen=True, slots=True)
class PrimitiveResult:
    """What a primitive did."""

    result: dict[str, Any]
    inverse: PrimitiveCall | None = None
    """What would undo it; None: nothing does."""


@dataclass(frozen=True, slots=True)
class KeptApplication:
    """An application as it is wanted now."""

    application: Application
    source: Path | None = None
    """The file it came from."""

    revision: int = 1
    """Counts its changes."""


class Applications(Protocol):
    """Where applications are kept as they are wanted. Safe to be called from several threads."""

    def get(self, app: str, team: str) -> KeptApplication:
        """Return one application, or raise ``NotFoundError``."""
        ...

    def change(self, app: str, team: str, make: Callable[[Application], Application]) -> KeptApplication:
        """Keep what ``make`` makes of the application as it is at that moment; nobody changes it meanwhile.

        What is as it was makes no new revision. ``make`` may not ask anything of where applications are kept.
        """
        ...


class Runs(Protocol):
    """Who begins runs. The same key begins one run, however often it is asked for and whoever was killed meanwhile,
    and whatever else has changed since."""

    def begun(self, key: str) -> RunRecord | None:
        """Return the run that was begun for this key already; None: there is none."""
        ...

    def begin(self, request: RunRequest, *, key: str) -> RunRecord:
        """Begin a run of a workflow, or of one step on what it was given in a past run; return it as it then stands."""
        ...

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        """Ask a run to stop, or only one task of it."""
        ...

    def show(self, run: str) -> RunRecord:
        """Return a run with its tasks, also one that was begun this instant."""
        ...

    def job_planner(self) -> JobPlanner:
        """Return what plans MPI jobs.

        Raises:
            UnsupportedError: nothing does, in this place.
        """
        ...

    def newest(self, *, app: str, team: str, workflow: str, limit: int) -> list[RunRecord]:
        """Return the newest runs of a workflow first."""
        ...


@dataclass(frozen=True, slots=True)
class PrimitiveContext:
    """What a primitive may use while it is carried out."""

    deployer: Deployer
    """What runs and serves. Changes of services are queued with those of people."""

    applications: Applications
    runs: Runs
    app: str
    team: str
    key: str = ""
    """Idempotency key: the same for each attempt."""

    noted: PrimitiveCall | None = None
    """The inverse that an earlier attempt has recorded, if one was cut off in the middle."""

    note: Callable[[PrimitiveCall], object] = lambda _: None
    """Is given the inverse before anything is changed, so that it is known whatever happens then."""

    def kept(self) -> KeptApplication:
        """Return the application that it is done for."""
        return self.applications.get(self.app, self.team)

    def workflow(self, name: str) -> tuple[KeptApplication, Workflow]:
        """Return the stored application, and one of its workflows."""
        kept = self.kept()
        return kept, kept.application.workflow(name)

    @property
    def reverting(self) -> bool:
        """Whether it takes an action back; that may have been tried before, and nothing is recorded for it."""
        return self.key.endswith(REVERT)

    @property
    def tried(self) -> bool:
        """Whether an earlier attempt may have been cut off."""
        return self.noted is not None or self.reverting

    def keep(self, name: str, change: Callable[[Workflow], Workflow]) -> None:
        """Change a workflow of that application, as it is wanted from now on. Other changes at that time are kept.

        Raises:
            NotFoundError: the application, or the workflow in it, is not there any more.
        """

        def changed(application: Application) -> Application:
            return application.with_workflow(change(application.workflow(name)))

        self.applications.change(self.app, self.team, changed)

    def undo(self, primitive: str, arguments: Mapping[str, Any]) -> PrimitiveCall:
        """Record what undoes the change that comes next, and return it; what an earlier attempt recorded stays."""
        if self.noted is not None:
            return self.noted
        inverse = PrimitiveCall(primitive=primitive, arguments=dict(arguments))
        self.note(inverse)
        return inverse
