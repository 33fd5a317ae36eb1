"""The one way to run and serve applications: the port. ``scanflow.testing.deployer`` holds the suite for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.port import LogPart, Stream
from scanflow.backends.records import Observer, RunRecord
from scanflow.errors import UsageError

if TYPE_CHECKING:
    from scanflow.backends.port import ServiceClient
    from scanflow.backends.service_change import Deployment, ServiceChange
    from scanflow.backends.service_records import ServiceObserver, ServiceRecord


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request to run: a workflow of ``app``; with ``run`` and ``step``, that step again on the inputs it had in that
    run; with ``run`` alone, that run from where it stands."""

    app: Application | None = None
    """With ``run``: what it goes on with. None: what the run's file says now, if it is there."""

    workflow: str | None = None
    """None: the only batch workflow."""

    _: KW_ONLY
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What to change in the workflow, or in the step."""

    source: Path | None = None
    """The file that ``app`` came from, which is read again where the run is gone on with."""

    run: str | None = None
    step: str | None = None
    """``train``, or ``train.3`` for one task of a fan-out."""

    @property
    def application(self) -> Application:
        """The application of a new run."""
        if self.app is None:
            raise UsageError("The request names neither an application nor a run. Name one.")
        return self.app

    @property
    def chosen(self) -> Workflow:
        """The named workflow, or the only batch one, with its parameters set.

        Raises:
            NotFoundError: there is no such workflow, or no such parameter.
        """
        batches = [workflow.name for workflow in self.application.workflows if workflow.type == "batch"]
        name = batches[0] if self.workflow is None and len(batches) == 1 else self.workflow
        return self.application.workflow(name).with_parameters(self.parameters)


class TaskLog(NamedTuple):
    """Identifies the log of a task."""

    run: str
    task: str
    stream: Stream = "stdout"
    """``both``: interleaved."""

    attempt: int | None = None
    """None: the last."""


class InstanceLogs(NamedTuple):
    """Identifies the logs of a service's instances."""

    service: str
    instance: str | None = None
    """None: all."""


class Deployer(Protocol):
    """Runs batch workflows and serves online ones somewhere, and tells of both.

    A run's name may be ``@latest`` everywhere; a service is called by its workflow's name. All methods raise
    ``NotFoundError`` for what is not there, ``UsageError`` for what cannot be done as asked, and ``UnavailableError``
    for what may pass. What changes a service returns when the change is in effect, and tells of its progress on the
    way; when it cannot come into effect it raises, and the service goes on as it was. With a ``key`` it is carried out
    once, however often it is repeated with that key.
    """

    def plan(self, request: RunRequest) -> Plan:
        """Check a workflow and return what running or serving it would do, without doing it."""
        ...

    def run(self, request: RunRequest, *, observe: Observer = ...) -> RunRecord:
        """Bring a run to its end; what finished before is kept."""
        ...

    def begin(self, request: RunRequest) -> RunRecord:
        """Start a run, and return at once; it goes on in the background."""
        ...

    def wait(self, run: str, *, timeout_s: float | None = None, observe: Observer = ...) -> RunRecord:
        """Return a run once it has ended; ``observe`` is told what happened in it before, as far as that is known.

        Raises:
            UnavailableError: it goes on after ``timeout_s``.
        """
        ...

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        """Ask a run to stop, or one task of it (``train.3``), or all running ones of a step."""
        ...

    def show(self, run: str) -> RunRecord:
        """Return a run with its tasks."""
        ...

    def runs(self, *, limit: int = ...) -> list[RunRecord]:
        """Return the newest runs first, without their tasks."""
        ...

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        """Return a step's outputs; of a fanned-out step a list."""
        ...

    def logs(self, of: TaskLog | InstanceLogs, *, follow: bool = False) -> Iterator[LogPart]:
        """Yield what was written; with ``follow``, go on until the task has ended or the service is deleted."""
        ...

    def deploy(
        self, deployment: Deployment, *, key: str | None = None, observe: ServiceObserver = ...
    ) -> ServiceRecord:
        """Serve an online workflow; where it is served already, change it to what it says now, without a gap."""
        ...

    def change(
        self, name: str, change: ServiceChange, *, key: str | None = None, observe: ServiceObserver = ...
    ) -> ServiceRecord:
        """Change a service while it serves; what ``change`` leaves out stays as it is."""
        ...

    def delete(self, name: str, *, observe: ServiceObserver = ...) -> None:
        """Drain in-flight requests, then delete the service. Models, and what was recorded, are kept."""
        ...

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:
        """Return the services, by name. Without ``instances`` those of a service that is ready may be left out,
        which is quicker on a large cluster."""
        ...

    def service(self, name: str) -> ServiceRecord:
        """Return one deployed service, with why it has as many instances as it has."""
        ...

    def connect(self, name: str) -> ServiceClient:
        """Return a client of a service, to be closed: for predictions, its documents, and requests as they are."""
        ...
