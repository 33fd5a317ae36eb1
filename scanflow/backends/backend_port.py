"""The port: the protocols that every backend implements.

A package adds a backend by an entry point in the group ``scanflow.backends``: its name, and a :class:`BackendFactory`.
``scanflow.testing`` has the contract suite that a backend passes.

Conventions of all protocols here:

* Methods block until they are done, are thread-safe, and hold nothing open between calls.
* A name that does not exist raises ``NotFoundError``; an invalid request ``UsageError``, and a field that the backend
  does not support its subclass ``UnsupportedError``, which names the field; a transient problem ``UnavailableError``.
* The backend is the only writer of runs and services. Records are snapshots: read one again to see a change.
* Progress is passed to ``observe`` in order, by the calling thread, and only during the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from scanflow.app.application import Application
from scanflow.app.mpi import MPIProfile
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.findings import Finding
from scanflow.backends.log_reader import LogReader, Stream
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import Observer, RunRecord, RunState, StepFile
from scanflow.names import RunName
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.backends.agent_hosting import AgentBackend
    from scanflow.backends.environments import EnvironmentBackend, ObjectChange
    from scanflow.backends.output_files import OutputFiles
    from scanflow.backends.service_change import Deployment, ServiceChange
    from scanflow.backends.service_records import ServiceObserver, ServiceRecord
    from scanflow.backends.step_schedule import Share
    from scanflow.instance_messages import ModelFiles
    from scanflow.placement.mpi.groups import ClusterNode
    from scanflow.placement.mpi.job_plan import MPIPlan

__all__ = [
    "Backend",
    "BackendFactory",
    "HostedProgram",
    "JobBudget",
    "JobPlanner",
    "JobProfiler",
    "Lease",
    "Models",
    "OnlineBackend",
    "RunBackend",
    "RunPreparer",
    "ServiceClient",
]

Environment = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Maps the tags of a task to the environment variables with which it logs to the tracker under these tags."""


class RunBackend(Protocol):
    """Runs batch workflows and MPI jobs.

    A run is first *entered* under a permanent name, then *driven*, by any process, as often as necessary. An entered
    run is ``interrupted`` while no process drives it. The driver may be killed at any instant: finished tasks are not
    repeated, and running ones are adopted. If an engine drives runs by itself (Argo, Volcano), ``drive`` only watches.

    Conditions, fan-outs and references between steps are evaluated by the backend; outputs are read only through it.
    In the record of an MPI job each rank is a task; its ``place`` is its placement.
    """

    def check(self, definition: RunDefinition) -> None:
        """Raise errors that would occur later: unsupported fields, missing files, inputs of a spin that did not finish
        in the past run."""
        ...

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        """Check a workflow, and return its steps and the resources it would take."""
        ...

    def keep_function(self, pickled: bytes) -> str:
        """Store a function pickled by cloudpickle, without loading it. Return the text before the ``:`` in the
        ``function`` of a step that calls it.

        Raises:
            UnsupportedError: the backend runs functions of files only.
        """
        ...

    def forget_functions(self, before: float, needed: Collection[str] = ()) -> int:
        """Delete functions that were last stored before a time, in seconds since the epoch, and that neither a run nor
        ``needed`` names. Return their number."""
        ...

    def free_name(self) -> RunName:
        """Return an unused run name."""
        ...

    def enter(self, definition: RunDefinition, name: RunName | None = None) -> RunRecord:
        """Check and register a run. Idempotent by name; without a name, the run gets a new one.

        Raises:
            InvalidError: another run has that name.
        """
        ...

    def drive(
        self, run: str, /, definition: RunDefinition | None = None, *, environment: Environment, observe: Observer
    ) -> RunRecord:
        """Run a run to its end from its current state, and return it.

        Finished tasks are kept, running ones are adopted, failed or stopped ones run again. Ctrl-C stops the run.

        Args:
            run: Its name.
            definition: The new definition, live functions included. None: the stored one.
            environment: Makes steps log to the tracker.
            observe: Called with the run's events.

        Raises:
            AlreadyRunningError: another process drives it.
        """
        ...

    def stop(self, run: str, /) -> RunRecord:
        """Request a run to stop; it can be driven again. Its processes have ended once it is ``stopped``.

        Raises:
            UsageError: it has ended.
        """
        ...

    def stop_task(self, run: str, task: str, /) -> RunRecord:
        """Request one task of a run (``train.3``), or all running ones of a step, to stop.

        Independent tasks go on; then the run is ``stopped``, and when it is driven again the task runs again.

        Raises:
            UsageError: the task is not running, or cannot be stopped alone.
        """
        ...

    def give_up(self, run: str, /, why: str) -> RunRecord:
        """Mark a run without a driver as failed, and stop its remaining tasks."""
        ...

    def show(self, run: str, /) -> RunRecord:
        """Return a run with all its tasks. ``@latest`` is the newest, ``@latest-1`` the one before."""
        ...

    def runs(
        self,
        *,
        limit: int,
        offset: int = 0,
        app: str | None = None,
        team: str | None = None,
        workflow: str | None = None,
        state: RunState | None = None,
    ) -> list[RunRecord]:
        """Return the newest runs first, without their tasks.

        Args:
            limit: How many.
            offset: How many newer ones are left out.
            app: Only runs of that application.
            team: Only runs of that team.
            workflow: Only runs of that workflow.
            state: Only runs of that state, as it was recorded last: one that is interrupted is among those that run.
        """
        ...

    def definition(self, run: str, /) -> RunDefinition:
        """Return the definition of a run."""
        ...

    def outputs(self, run: str, step: str, /) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the named outputs of a step, or of one task; of a fanned-out step a list, in the order of its items.

        Raises:
            NotFoundError: the step did not finish in that run.
        """
        ...

    def output_files(self, run: str, step: str, /, *, max_bytes: int | None = None) -> OutputFiles | list[OutputFiles]:
        """Return the same as :meth:`outputs` as files, for a reader elsewhere: checked, and none loaded.

        Raises:
            NotFoundError: the step did not finish in that run.
            InvalidError: a pickle is not one that a run wrote.
            TooLargeError: they have more than ``max_bytes``; None: than ``output_files.MAX_BYTES``.
        """
        ...

    def files(self, run: str, step: str | None = None, /) -> list[StepFile]:
        """Return the files that a run's steps, or one step or task, left in their output folders, by task and name.

        Raises:
            NotFoundError: there is no such step.
            UnsupportedError: the backend does not list them.
        """
        ...

    def follow(self, run: str, /, since: int = -1) -> tuple[RunRecord, int]:
        """Return a run with only the tasks changed after ``since``, and the next ``since``."""
        ...

    def logs(self, run: str, task: str, /, *, stream: Stream = "both", attempt: int | None = None) -> LogReader:
        """Return a reader of a task's log, by default of its last attempt."""
        ...


class Models(Protocol):
    """A model registry, as backends use it."""

    def fetch(self, uri: str) -> ModelFiles:
        """Resolve ``models:/name/3`` or ``models:/name@alias``, and return the version with its files on local disk."""
        ...

    def find(self, uri: str) -> ModelFiles:
        """Resolve an address, and return the version with an empty path: nothing is fetched."""
        ...

    def remember(self, name: str, version: int, shape: str) -> None:
        """Store the shape that a model version was served with."""
        ...

    def recall(self, name: str, version: int) -> str | None:
        """Return the shape stored last; None: there is none."""
        ...


OpenModels = Callable[[str | None], Models]
"""Maps a tracker's address to its registry; None: the default one. Cheap: opened on first use."""


class ServiceClient(Protocol):
    """A client of one service. ``scanflow.transport.HttpServiceClient`` implements it over HTTP."""

    def infer(self, model: str, inputs: Any, *, dtype: str | None = None, binary: bool = True) -> Any:
        """Return a prediction: ``outputs`` by name, and the ``instance`` and ``revision`` that computed them."""
        ...

    def document(self, path: str) -> dict[str, Any]:
        """Return a JSON document of the service, such as ``/v2/models/<name>``."""
        ...

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        """Return the raw response to a request."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class OnlineBackend(Protocol):
    """Serves online workflows until they are deleted. A service has its workflow's name.

    Each change increments the service's generation. ``deploy`` and ``change`` return once it is in effect, without a
    failed request; if it fails they raise, and the previous definition is served on. With a ``key`` both are
    idempotent: a repeated request with the same key waits for the first one's change.

    The backend keeps each service alive, scales it by its workflow's ``Scaling``, fails over to its backup, and
    promotes or removes a canary by its policy. A service's record holds its metrics; ``requests`` and ``errors`` only
    grow within a revision.
    """

    def check(self, app: Application, workflow: Workflow) -> None:
        """Raise errors that would occur later: unsupported fields, missing files, too many cores."""
        ...

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        """Check a workflow, and return the placement of its instances."""
        ...

    def deploy(self, deployment: Deployment, *, key: str | None, observe: ServiceObserver) -> ServiceRecord:
        """Serve a workflow; if it is served already, replace its definition.

        Raises:
            InvalidError: another application has a service of that name.
        """
        ...

    def change(self, name: str, change: ServiceChange, *, key: str | None, observe: ServiceObserver) -> ServiceRecord:
        """Change a service without downtime; fields that ``change`` omits stay as they are."""
        ...

    def reconcile(self, record: ServiceRecord, /, *, observe: ServiceObserver) -> ServiceChange | None:
        """Perform the due actions for a service, and return the change that the caller must request. Does not block.

        A server calls it about once a second for each service. If each has a supervisor, nothing is due. ``observe`` is
        called with what others had changed or removed of it and was repaired.
        """
        ...

    def delete(self, name: str, *, observe: ServiceObserver) -> None:
        """Drain in-flight requests, then delete a service with all its resources. Returns when it is gone.

        Raises:
            UsageError: it is the backup of another service.
        """
        ...

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:
        """Return all services, by name. Starts nothing.

        Without ``instances`` those of a ready service may be omitted, if reading them is expensive.
        """
        ...

    def service(self, name: str) -> ServiceRecord:
        """Return one service, with its last scaling decision. Starts its supervisor if there is none."""
        ...

    def logs(self, name: str, instance: str | None = None) -> LogReader:
        """Return a reader of the logs of a service's instances, or of one. It ends when the service is deleted."""
        ...

    def client(self, name: str) -> ServiceClient | None:
        """Return an in-process client of a service. None: callers connect to the ``url`` of its record."""
        ...


class Lease(Protocol):
    """A lease for leader election among several servers. It expires unless renewed in time."""

    def take(self) -> bool:
        """Acquire or renew the lease; return whether it is held."""
        ...

    def release(self) -> None:
        """Release the lease, if it is held."""
        ...


class HostedProgram(Protocol):
    """A program that runs in the backend's environment."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of its output until it ends."""
        ...

    def read(self, path: str) -> str:
        """Return the content of one of its files, while it runs."""
        ...


class Backend(Protocol):
    """A backend. Getters of features it does not have raise ``UnsupportedError``."""

    def batch(self) -> RunBackend:
        """Return the backend of batch workflows."""
        ...

    def online(self, tracker: str | None = None) -> OnlineBackend:
        """Return the backend of online workflows, for models of the tracker at that address; None: the default one."""
        ...

    def mpi(self) -> RunBackend:
        """Return the backend of MPI jobs."""
        ...

    def agents(self, *, ended: Callable[[], None]) -> AgentBackend:
        """Return the backend of agents. ``ended`` is called, in another thread, when an agent has ended, if the backend
        is notified of that; else polling shows it."""
        ...

    def lease(self, name: str, *, holder: str, duration_s: float) -> Lease:
        """Return the lease of that name, for a holder with a unique name."""
        ...

    def objects(self, app: Application, workflow: Workflow) -> list[ObjectChange]:
        """Return the objects that running or serving a workflow would create and change, if the backend has objects.
        Changes nothing."""
        ...

    def environments(self) -> EnvironmentBackend:
        """Return the backend of environments, if these are more than folders that the first run creates."""
        ...

    def tracker(self, app: Application) -> str | None:
        """Return the address at which the tasks of runs reach their tracker, if the backend assigns it; None: the
        address of the client that starts a run."""
        ...

    def program(self, command: Sequence[str], environment: Mapping[str, str]) -> AbstractContextManager[HostedProgram]:
        """Run a program in the backend's environment, with the rights of a server; it is removed at the end.

        Args:
            command: The command of a scanflow module.
            environment: Variables beside those of the backend's settings.
        """
        ...

    def doctor(self, *, thorough: bool = False) -> list[Finding]:
        """Return findings about the backend, in addition to those about this machine, with advice.

        What cannot be inspected is a finding too. With ``thorough`` it may start something, and removes it again.
        """
        ...


@runtime_checkable
class ChangeMarked(Protocol):
    """A :class:`Backend` that notices whether anything of it has changed, without a look at it."""

    def read_change_marker(self) -> Hashable:
        """Return a value that differs once a run, a job or a service has changed. Cheap enough for every moment."""
        ...


@runtime_checkable
class RunPreparer(Protocol):
    """A :class:`RunBackend` that prepares a run once, for the process that checks, enters and drives it."""

    def prepare(self, definition: RunDefinition) -> RunDefinition:
        """Check a run as :meth:`RunBackend.check` does. Return its definition for :meth:`RunBackend.enter` and
        :meth:`RunBackend.drive`, which do not check that one again; a prepared one is returned as it is."""
        ...


@runtime_checkable
class JobPlanner(Protocol):
    """A :class:`RunBackend` that plans MPI jobs on the nodes it knows."""

    @property
    def queue(self) -> str:
        """A description of the queue for jobs that do not fit."""
        ...

    def job_nodes(self, app: Application, workflow: Workflow) -> Sequence[ClusterNode]:
        """Return the nodes for a job, with their resources for jobs."""
        ...

    def job_plan(self, app: Application, workflow: Workflow) -> MPIPlan:
        """Return the plan of a job as it would run now."""
        ...


@runtime_checkable
class JobBudget(Protocol):
    """A :class:`RunBackend` without a queue for MPI jobs: a driver of several jobs must queue those that do not fit."""

    def job_share(self, run: str) -> Share | None:
        """Return the resources of an MPI job; None: the run is not an MPI job."""
        ...

    def job_capacity(self) -> Share:
        """Return the resources for all jobs together."""
        ...


@runtime_checkable
class JobProfiler(Protocol):
    """A :class:`RunBackend` that can profile an MPI program by a short run."""

    def measure_job(self, app: Application, workflow: Workflow) -> tuple[MPIProfile | None, str]:
        """Return the program's profile (None: unknown) and the reason."""
        ...


class BackendFactory(Protocol):
    """The object of an entry point: creates a backend, which does not connect yet."""

    def __call__(self, settings: Settings, models: OpenModels) -> Backend:
        """Return a backend for these settings. ``models`` opens the registry of a tracker."""
        ...
