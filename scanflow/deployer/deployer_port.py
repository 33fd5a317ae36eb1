"""The port through which applications are run and served. ``scanflow.testing.deployer`` holds the suite for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.secrets import dump_secrets
from scanflow.app.workflow import Workflow
from scanflow.app_files import declare_functions
from scanflow.backends.log_reader import LogPart, Stream
from scanflow.backends.run_records import Observer, RunRecord, StepFile
from scanflow.errors import UsageError

if TYPE_CHECKING:
    from scanflow.backends.backend_port import ServiceClient
    from scanflow.backends.service_change import Deployment, ServiceChange
    from scanflow.backends.service_records import ServiceObserver, ServiceRecord


LATEST = "@latest"
"""The newest run; for a spin, the newest one of the whole workflow."""


@dataclass(frozen=True)
class RunRequest:
    """A request to run: a workflow of ``app``; with ``run`` and ``step``, that step again on the inputs it had in that
    run; with ``run`` alone, that run from its current state."""

    app: Application | None = None
    """With ``run``: the application to continue with. None: the current content of the run's file, if it exists."""

    workflow: str | None = None
    """None: the only batch workflow."""

    _: KW_ONLY
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters to change in the workflow, or in the step."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """Parameters given as text, as on a command line: their types are read from the application's definition."""

    source: Path | None = None
    """The file of ``app``, which is read again when the run is resumed."""

    functions: Mapping[str, str] = field(default_factory=dict)
    """Digests of the functions of a run's steps, where only the process that sends the request has the functions."""

    run: str | None = None
    """A run to continue, or whose step is run again. None: a new run."""

    step: str | None = None
    """``train``, or ``train.3`` for one task of a fan-out."""

    refresh_cache: bool = False
    """Whether cached steps of a new run are run although their outputs are in the cache."""

    @property
    def application(self) -> Application:
        """The application of a new run."""
        if self.app is None:
            raise UsageError("The request names neither an application nor a run. Name one.")
        return self.app

    @property
    def chosen(self) -> Workflow:
        """Return the named workflow, or the only batch workflow, with its parameters set.

        Raises:
            NotFoundError: there is no such workflow, or no such parameter.
        """
        workflow = self._named_workflow.with_parameters(self.changed_parameters)
        return workflow.with_refreshed_cache() if self.refresh_cache else workflow

    @cached_property
    def _named_workflow(self) -> Workflow:
        """The named workflow, or the only batch workflow, as the application has it: reads the files of functions."""
        batches = [workflow.name for workflow in self.application.workflows if workflow.type == "batch"]
        name = batches[0] if self.workflow is None and len(batches) == 1 else self.workflow
        return declare_functions(self.application, self.application.workflow(name))

    @property
    def changed_parameters(self) -> dict[str, Any]:
        """The parameters of a new run that are changed."""
        return self.read_parameters(self._named_workflow)

    def read_parameters(self, workflow: Workflow, step: str | None = None) -> dict[str, Any]:
        """Return all parameters to change in a workflow, or in one step of it, those given as text as values.

        Raises:
            NotFoundError: there is no such parameter.
        """
        given = {name: dump_secrets(value) for name, value in self.parameters.items()}
        return {**given, **workflow.parse_parameters(self.texts, step=step)}


class TaskLog(NamedTuple):
    """Identifies the log of a task."""

    run: str
    """The name of the run."""

    task: str
    """The task: ``train``, or ``train.3`` of a fan-out."""

    stream: Stream = "stdout"
    """``both``: interleaved."""

    attempt: int | None = None
    """None: the last."""


class InstanceLogs(NamedTuple):
    """Identifies the logs of a service's instances."""

    service: str
    """The name of the service."""

    instance: str | None = None
    """None: all."""


class Deployer(Protocol):
    """Runs batch workflows and serves online workflows, and reports on both.

    A run's name may be ``@latest`` everywhere; a service is named by its workflow. All methods raise
    ``NotFoundError`` for a missing run or service, ``UsageError`` for an invalid request, and ``UnavailableError`` for
    a transient failure. Methods that change a service return when the change has taken effect, and report its
    progress; if the change fails they raise, and the service stays as it was. With a ``key``, a change is carried out
    once, however often it is repeated with that key.
    """

    def plan(self, request: RunRequest) -> Plan:
        """Check a workflow, and return its plan without running or serving it."""
        ...

    def run(self, request: RunRequest, *, observe: Observer = ...) -> RunRecord:
        """Drive a run until it ends; steps that finished before are kept."""
        ...

    def begin(self, request: RunRequest) -> RunRecord:
        """Start a run in the background, and return immediately."""
        ...

    def wait(self, run: str, *, timeout_s: float | None = None, observe: Observer = ...) -> RunRecord:
        """Wait until a run has ended, and return it; ``observe`` gets earlier events, too, as far as they are known.

        Raises:
            UnavailableError: the run continues after ``timeout_s``.
        """
        ...

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        """Request a run to stop, or one of its tasks (``train.3``), or all running tasks of a step."""
        ...

    def show(self, run: str) -> RunRecord:
        """Return a run with its tasks."""
        ...

    def runs(self, *, limit: int = ...) -> list[RunRecord]:
        """Return the newest runs first, without their tasks."""
        ...

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        """Return a step's outputs; a list for a fanned-out step."""
        ...

    def files(self, run: str, step: str | None = None) -> list[StepFile]:
        """Return the files that a run's steps, or one step or task, left in their output folders.

        Raises:
            UnsupportedError: the backend does not list them.
        """
        ...

    def logs(self, of: TaskLog | InstanceLogs, *, follow: bool = False) -> Iterator[LogPart]:
        """Yield a log; with ``follow``, continue until the task has ended or the service is deleted."""
        ...

    def deploy(
        self, deployment: Deployment, *, key: str | None = None, observe: ServiceObserver = ...
    ) -> ServiceRecord:
        """Serve an online workflow, or update its service without downtime."""
        ...

    def change(
        self, name: str, change: ServiceChange, *, key: str | None = None, observe: ServiceObserver = ...
    ) -> ServiceRecord:
        """Change a service without downtime; fields that ``change`` leaves out are unchanged."""
        ...

    def delete(self, name: str, *, observe: ServiceObserver = ...) -> None:
        """Drain in-flight requests, then delete the service. Its models and recorded predictions are kept."""
        ...

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:
        """Return the services, by name. Without ``instances``, the instances of a ready service may be left out,
        which is quicker on a large cluster."""
        ...

    def service(self, name: str) -> ServiceRecord:
        """Return one deployed service, with the explanation of its number of instances."""
        ...

    def connect(self, name: str) -> ServiceClient:
        """Return a client of a service, to be closed: for predictions, its documents, and raw requests."""
        ...
