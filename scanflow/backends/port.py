"""What a place must do so that applications run there: the protocols that every backend implements.

A package adds a backend by an entry point in the group ``scanflow.backends``: its name, and a :class:`BackendFactory`.
Nothing else of scanflow changes. ``scanflow.testing`` has the suite that a backend passes.

Conventions of all protocols here:

* Methods block until what they say is true, may be called by any thread, and hold nothing open between calls.
* A name that does not exist raises ``NotFoundError``; what cannot be done as given ``UsageError``, and a field that the
  place cannot honour its subclass ``UnsupportedError``, which names the field; what may pass ``UnavailableError``.
* The backend is the only writer of runs and services. Records are snapshots: read one again to see a change.
* Progress goes to the ``observe`` that is given, in order, from the thread that called, and only while the call lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from scanflow.app.application import Application
from scanflow.app.mpi import MPIProfile
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.findings import Finding
from scanflow.backends.records import Observer, RunRecord
from scanflow.names import RunName
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.backends.agents import AgentBackend
    from scanflow.backends.environments import EnvironmentBackend, ObjectChange
    from scanflow.backends.schedule import Share
    from scanflow.backends.service_change import Deployment, ServiceChange
    from scanflow.backends.service_records import ServiceObserver, ServiceRecord
    from scanflow.placement.mpi.groups import ClusterNode
    from scanflow.placement.mpi.plan import MPIPlan
    from scanflow.wire import ModelFiles

Stream = Literal["stdout", "stderr", "both"]
Environment = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From the tags of a task to the environment variables that make it log to the tracker under them."""


class LogPart(NamedTuple):
    """Bytes that one source wrote, next to one another."""

    source: str
    """``stdout`` or ``stderr`` of a task; the name of a service's instance."""

    data: bytes


@dataclass(frozen=True, slots=True)
class LogPage:
    """What was written since the last look."""

    parts: tuple[LogPart, ...]
    """Nothing: all that was written until now has been read."""

    ended: bool
    """Whether nothing more will be written."""


class LogReader(Protocol):
    """Reads logs from their beginning, and on from where reading stopped. To be closed."""

    def read(self) -> LogPage:
        """Return the next page, at once."""
        ...

    def close(self) -> None:
        """Release what it reads from."""
        ...


@dataclass(frozen=True, slots=True)
class RunDefinition:
    """What a run is made of."""

    app: Application
    workflow: Workflow
    """As it is to run: ``parameters`` are in it already."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What was changed in it; kept with the run."""

    source: Path | None = None
    """The file that the application came from; kept with the run."""

    step: str | None = None
    """The one step, or the one task of it (``train.3``), that is spun. None: all of the workflow is run."""

    past: str | None = None
    """The run that a spin takes its inputs from."""


class RunBackend(Protocol):
    """Runs workflows to their end: batch workflows, and with the same methods MPI jobs.

    A run is first *entered* under a name that stays, then *driven*, by any process, as often as it takes. An entered
    run is ``interrupted`` while nobody drives it. Who drives may be killed at any instant: nothing that finished is
    repeated, and what still runs is adopted. Where an engine drives by itself (Argo, Volcano), ``drive`` only watches.

    Conditions, fan-outs and references between steps are evaluated by the backend: nobody reads outputs but through it.
    In the record of an MPI job each rank is a task; its ``place`` is where it was put.
    """

    def check(self, definition: RunDefinition) -> None:
        """Raise what would fail later: a field that cannot be honoured, a file that is not there, a spin's input that
        did not finish in the past run."""
        ...

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        """Check a workflow, and return what running it would do and take."""
        ...

    def keep_function(self, pickled: bytes) -> str:
        """Keep a function that no file holds, as cloudpickle writes it, without loading it. Return what stands before
        the ``:`` in the ``function`` of a step that calls it.

        Raises:
            UnsupportedError: the place runs functions of files only.
        """
        ...

    def forget_functions(self, before: float, needed: Collection[str] = ()) -> int:
        """Forget functions that were last kept before a time, in seconds since the epoch, and that no run names nor
        ``needed`` has. Return how many those were."""
        ...

    def free_name(self) -> RunName:
        """Return a name that no run has at this moment."""
        ...

    def enter(self, definition: RunDefinition, name: RunName | None = None) -> RunRecord:
        """Check and enter a run. Idempotent by name; without one, the run gets a new one.

        Raises:
            InvalidError: another run has that name.
        """
        ...

    def drive(
        self, run: str, /, definition: RunDefinition | None = None, *, environment: Environment, observe: Observer
    ) -> RunRecord:
        """Bring a run to its end from where it stands, and return it.

        What finished is kept, what runs is adopted, what failed or was stopped runs again. Ctrl-C stops the run.

        Args:
            run: Its name.
            definition: What it goes on with, live functions included. None: what it was entered with.
            environment: Makes steps log to the tracker.
            observe: Is given the run's events.

        Raises:
            AlreadyRunningError: another process drives it.
        """
        ...

    def stop(self, run: str, /) -> RunRecord:
        """Ask a run to stop; it can be driven again. Its processes are gone once it is ``stopped``.

        Raises:
            UsageError: it has ended.
        """
        ...

    def stop_task(self, run: str, task: str, /) -> RunRecord:
        """Ask one task of a run (``train.3``), or all running ones of a step, to stop.

        What does not need it goes on; then the run is ``stopped``, and where it is driven again the task runs again.

        Raises:
            UsageError: the task is not running, or cannot be stopped alone.
        """
        ...

    def give_up(self, run: str, /, why: str) -> RunRecord:
        """Note that a run which nobody drives has failed, and end what still runs of it."""
        ...

    def show(self, run: str, /) -> RunRecord:
        """Return a run with all its tasks. ``@latest`` is the newest, ``@latest-1`` the one before."""
        ...

    def runs(
        self, *, limit: int, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        """Return the newest runs first, without their tasks."""
        ...

    def definition(self, run: str, /) -> RunDefinition:
        """Return what a run is made of."""
        ...

    def outputs(self, run: str, step: str, /) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the named outputs of a step, or of one task; of a fanned-out step a list, in the order of its items.

        Raises:
            NotFoundError: the step did not finish in that run.
        """
        ...

    def follow(self, run: str, /, since: int = -1) -> tuple[RunRecord, int]:
        """Return a run with only those tasks that changed after ``since``, and what to pass next time."""
        ...

    def logs(self, run: str, task: str, /, *, stream: Stream = "both", attempt: int | None = None) -> LogReader:
        """Return a reader of what a task wrote, in its last attempt unless another is named."""
        ...


class Models(Protocol):
    """A model registry, as a backend is given it."""

    def fetch(self, uri: str) -> ModelFiles:
        """Return the version that ``models:/name/3`` or ``models:/name@alias`` names now, its files on this disk."""
        ...

    def find(self, uri: str) -> ModelFiles:
        """Return the version that an address names now, with an empty path: nothing is fetched."""
        ...

    def remember(self, name: str, version: int, shape: str) -> None:
        """Keep a text with a model version: how it was served."""
        ...

    def recall(self, name: str, version: int) -> str | None:
        """Return the text that was kept last; None: none was."""
        ...


OpenModels = Callable[[str | None], Models]
"""From a tracker's address to its registry; None: the default one. Cheap: nothing is opened before it is used."""


class ServiceClient(Protocol):
    """Speaks to one service. ``scanflow.transport.HttpServiceClient`` does it over HTTP."""

    def infer(self, model: str, inputs: Any, *, dtype: str | None = None, binary: bool = True) -> Any:
        """Return the answer of a model: ``outputs`` by name, the ``instance`` and the ``revision`` that gave it."""
        ...

    def document(self, path: str) -> dict[str, Any]:
        """Return a JSON document of the service, such as ``/v2/models/<name>``."""
        ...

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        """Return the reply to a request as it is."""
        ...

    def close(self) -> None:
        """Release the connections."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class OnlineBackend(Protocol):
    """Serves online workflows until they are deleted. A service has its workflow's name.

    Each change counts the service's generation up. ``deploy`` and ``change`` return once it is in effect, without a
    failed request on the way; if it cannot come into effect they raise, and what was served before is served on. With a
    ``key`` both are idempotent: whoever repeats a request with its key waits for the change that was made then.

    The backend keeps each service alive, scales it by its workflow's ``Scaling``, fails over to its backup, and
    promotes or removes a canary by its policy. A service's record holds its metrics; ``requests`` and ``errors`` only
    grow within a revision.
    """

    def check(self, app: Application, workflow: Workflow) -> None:
        """Raise what would fail later: a field that cannot be honoured, a missing file, too many cores."""
        ...

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        """Check a workflow, and return where its instances would be placed."""
        ...

    def deploy(self, deployment: Deployment, *, key: str | None, observe: ServiceObserver) -> ServiceRecord:
        """Serve a workflow; where it is served already, replace it by what it says now.

        Raises:
            InvalidError: another application has a service of that name.
        """
        ...

    def change(self, name: str, change: ServiceChange, *, key: str | None, observe: ServiceObserver) -> ServiceRecord:
        """Change a service while it serves; what ``change`` leaves out stays as it is."""
        ...

    def reconcile(self, record: ServiceRecord, /, *, observe: ServiceObserver) -> ServiceChange | None:
        """Do what is due for a service, and return what change of it is due, for the caller to ask for. It waits for
        nothing. A server calls it about once a second for each service. Where each has a supervisor, nothing is due.
        ``observe`` is told what others had changed or removed of it, and that it was put right."""
        ...

    def delete(self, name: str, *, observe: ServiceObserver) -> None:
        """Answer the requests that were read, then remove a service with all that it has. Returns when it is gone.

        Raises:
            UsageError: it is the backup of another service.
        """
        ...

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:
        """Return all services, by name. Starts nothing.

        Without ``instances`` those of a service that is ready may be left out, where looking at them costs much.
        """
        ...

    def service(self, name: str) -> ServiceRecord:
        """Return one service, with the last decision on the number of its instances. One that nobody supervises is
        supervised from now on."""
        ...

    def logs(self, name: str, instance: str | None = None) -> LogReader:
        """Return a reader of what the instances of a service, or one of them, wrote. It ends when it is deleted."""
        ...

    def client(self, name: str) -> ServiceClient | None:
        """Return what speaks to a service without a network. None: callers connect to the ``url`` of its record."""
        ...


class Lease(Protocol):
    """What one holder at a time has, so that of several servers one acts. It is lost unless taken again in time."""

    def take(self) -> bool:
        """Take it where nobody holds it, or keep it; return whether it is held."""
        ...

    def release(self) -> None:
        """Let another take it at once, if it is held."""
        ...


class HostedProgram(Protocol):
    """A program that runs in a place itself."""

    def lines(self) -> Iterator[str]:
        """Yield what it writes, as it comes, until it ends."""
        ...

    def read(self, path: str) -> str:
        """Return a file that it has, while it runs."""
        ...


class Backend(Protocol):
    """One place. What it cannot do at all raises ``UnsupportedError`` when it is asked for."""

    def batch(self) -> RunBackend:
        """Return what runs batch workflows."""
        ...

    def online(self, tracker: str | None = None) -> OnlineBackend:
        """Return what serves online workflows, for models of the tracker at that address; None: the default one."""
        ...

    def mpi(self) -> RunBackend:
        """Return what runs MPI jobs."""
        ...

    def agents(self, *, ended: Callable[[], None]) -> AgentBackend:
        """Return what hosts agents. ``ended`` is called, in another thread, when one that was started through it has
        ended, where the place tells at once; elsewhere the next look shows it."""
        ...

    def lease(self, name: str, *, holder: str, duration_s: float) -> Lease:
        """Return the lease of that name, for a holder that is named as no other is."""
        ...

    def objects(self, app: Application, workflow: Workflow) -> list[ObjectChange]:
        """Return what running or serving a workflow would make and change, where a place is made of objects. Changes
        nothing."""
        ...

    def environments(self) -> EnvironmentBackend:
        """Return what keeps environments, where these are more than folders that the first run makes."""
        ...

    def tracker(self, app: Application) -> str | None:
        """Return the address at which the tasks of runs reach their tracker, where it is this place that decides; None:
        it is the one that whoever starts a run has."""
        ...

    def program(self, command: Sequence[str], environment: Mapping[str, str]) -> AbstractContextManager[HostedProgram]:
        """Lend a program that runs in the place itself, with the rights of a server; it is removed at the end.

        Args:
            command: Of a module that scanflow has.
            environment: Variables beside those by which it finds the place again.
        """
        ...

    def doctor(self, *, thorough: bool = False) -> list[Finding]:
        """Return what the place offers beside this machine, and what to do about what it does not.

        What cannot be looked at is a finding too. With ``thorough`` it may start something, and removes it again.
        """
        ...


@runtime_checkable
class JobPlanner(Protocol):
    """A :class:`RunBackend` that plans MPI jobs on nodes that it can look at."""

    @property
    def queue(self) -> str:
        """Where jobs wait that do not fit, for people."""
        ...

    def job_nodes(self, app: Application, workflow: Workflow) -> Sequence[ClusterNode]:
        """Return the nodes that a job may be put on, with what they give to jobs."""
        ...

    def job_plan(self, app: Application, workflow: Workflow) -> MPIPlan:
        """Return the plan of a job, by which it would be run now."""
        ...


@runtime_checkable
class JobBudget(Protocol):
    """A :class:`RunBackend` without a queue for MPI jobs: who drives several lets those wait that do not fit."""

    def job_share(self, run: str) -> Share | None:
        """Return what an MPI job takes while it runs; None: the run is of another kind."""
        ...

    def job_capacity(self) -> Share:
        """Return what there is for all jobs together."""
        ...


@runtime_checkable
class JobProfiler(Protocol):
    """A :class:`RunBackend` that can find out what bounds an MPI program, by a short run of it."""

    def measure_job(self, app: Application, workflow: Workflow) -> tuple[MPIProfile | None, str]:
        """Return what bounds the program, None where nothing is known of it, and why."""
        ...


class BackendFactory(Protocol):
    """What an entry point names: makes a backend. It connects to nothing yet."""

    def __call__(self, settings: Settings, models: OpenModels) -> Backend:
        """Return the backend of these settings. ``models`` opens the registry of a tracker."""
        ...
