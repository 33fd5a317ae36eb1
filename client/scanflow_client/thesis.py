"""The thesis' spelling (listings 5.1, 5.2 and 6.1) over the same models and the same deployer.

Differences, all of them errors rather than silence: a backend or an option that this version does not have is refused
by name; failures are exceptions, never ``False``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from scanflow.app.agents import Agent
from scanflow.app.application import Application, Tracker
from scanflow.app.edges import Dependency
from scanflow.app.executor import Executor
from scanflow.app.mpi import MPIWorkload
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.backends.records import RunRecord
from scanflow.errors import UnsupportedError, did_you_mean
from scanflow_client.client import Client

T = TypeVar("T")
_MPI_NAMES = {"nTasks": "n_tasks", "nNodes": "n_nodes", "nWorkers": "n_workers"}
_LOCAL = ("local", "embedded")


class Awaited(Generic[T]):
    """A value that is there already and may also be awaited, as the thesis' listings do."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[None, None, T]:
        yield from ()  # makes this a generator, which is what await wants
        return self.value

    def __getattr__(self, name: str) -> Any:
        if name == "value":  # while a copy of this is being made
            raise AttributeError(name)
        return getattr(self.value, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(cast(Iterable[Any], self.value))

    def __len__(self) -> int:
        return len(cast(Sized, self.value))

    def __getitem__(self, key: Any) -> Any:
        return cast(Any, self.value)[key]

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, Awaited) else other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


class ScanflowClient:
    """Describes applications (thesis listing 5.1)."""

    def __init__(
        self,
        builder: str | None = None,
        registry: str | None = None,
        scanflow_server_uri: str | None = None,
        verbose: bool = True,
    ) -> None:
        """Make a client. ``registry`` and the server's address are kept for the backends that use them."""
        if builder is not None:
            raise UnsupportedError(f"builder={builder!r}: images are not built in this version. Remove it.")
        self.registry = registry
        self.scanflow_server_uri = scanflow_server_uri
        self.verbose = verbose

    def ScanflowExecutor(  # noqa: N802  the thesis' name
        self, name: str, mainfile: str, parameters: Mapping[str, Any] | None = None, **fields: Any
    ) -> Executor:
        """Return an executor; ``base_image`` is the modern ``image``."""
        base_image = fields.pop("base_image", None)
        if base_image is not None:
            fields["image"] = base_image
        return Executor(name=name, mainfile=mainfile, parameters=parameters or {}, **_given(fields))

    def ScanflowService(self, name: str, **fields: Any) -> Service:  # noqa: N802
        return Service(name=name, **_given(fields))

    def ScanflowMPIWorkload(self, name: str, mainfile: str, **fields: Any) -> MPIWorkload:  # noqa: N802
        """Return an MPI workload; ``nTasks`` and ``nNodes`` are the modern ``n_tasks`` and ``n_nodes``."""
        modern = {_MPI_NAMES.get(key, key): value for key, value in fields.items()}
        return MPIWorkload(name=name, mainfile=mainfile, **_given(modern))

    def ScanflowDependency(self, dependee: str, depender: str) -> Dependency:  # noqa: N802
        return Dependency(dependee=dependee, depender=depender)

    def ScanflowWorkflow(  # noqa: N802
        self,
        name: str,
        nodes: Sequence[Executor | Service | MPIWorkload],
        edges: Sequence[Dependency] | None = None,
        type: str | None = None,
        output_dir: str | None = None,
    ) -> Workflow:
        return Workflow(name=name, nodes=nodes, **_given({"edges": edges, "type": type, "output_dir": output_dir}))

    def ScanflowAgent(self, name: str, **fields: Any) -> Agent:  # noqa: N802
        return Agent(name=name, **_given(fields))

    def ScanflowApplication(  # noqa: N802
        self,
        app_name: str,
        app_dir: str,
        team_name: str,
        workflows: Sequence[Workflow] | None = None,
        agents: Sequence[Agent] | None = None,
        tracker: Tracker | None = None,
    ) -> Application:
        given = {"workflows": workflows, "agents": agents, "tracker": tracker}
        return Application(name=app_name, team=team_name, app_dir=app_dir, **_given(given))

    def build_ScanflowApplication(self, app: Application, trackerPort: int | None = None) -> Application:  # noqa: N802, N803
        """Return the application ready to deploy: with a tracker. Images are built by backends that run containers."""
        return app.replace(tracker=app.tracker or Tracker(port=trackerPort))


class ScanflowDeployerClient:
    """Runs applications (thesis listings 5.2 and 6.1) on the embedded backend: of this process, or of a server.

    What a method returns may also be awaited.
    """

    def __init__(
        self,
        user_type: str = "local",
        deployer: str = "local",
        *,
        home: Path | str | None = None,
        scanflow_server_uri: str | None = None,
        verbose: bool = True,
        **options: Any,
    ) -> None:
        """Make a client of a deployer; with ``scanflow_server_uri``, of the one of that server."""
        for field, given, known in (("deployer", deployer, _LOCAL), ("user_type", user_type, ("local",))):
            if given not in known:
                raise UnsupportedError(
                    f"{field}={given!r} is no part of this version, which runs on this machine. Write {field}='local'."
                )
        for name in options:
            near = did_you_mean(name, ["home", "scanflow_server_uri", "verbose"])
            raise UnsupportedError(f"{name!r} is of no use to deployer='local'.{near}")
        self._client = Client(scanflow_server_uri, home=home, progress=verbose)

    def create_environment(self, app: Application) -> Awaited[str]:
        """Return the name of the application's environment; the embedded backend makes its folder at its first run."""
        return Awaited(app.environment)

    def run_app(self, app: Application) -> Awaited[list[RunRecord]]:
        """Run each of the application's batch workflows, one after the other."""
        return Awaited([self._client.run(app, workflow.name) for workflow in app.workflows if workflow.type == "batch"])

    def run_workflow(self, app_name: str, team_name: str, workflow: Workflow, app_dir: str = ".") -> Awaited[RunRecord]:
        """Run one workflow of an application."""
        app = Application(name=app_name, team=team_name, app_dir=app_dir, workflows=[workflow])
        return Awaited(self._client.run(app))

    def delete_app(self, app: Application) -> Awaited[list[RunRecord]]:
        """Stop what runs of the application, and end what it serves. Its past runs, logs and models are kept."""
        for service in self._client.services():
            if (service.app, service.team) == (app.name, app.team):
                self._client.delete(service.name)
        own = [run for run in self._client.runs(limit=1000) if (run.app, run.team) == (app.name, app.team)]
        return Awaited([self._client.stop(run.name) for run in own if run.state in {"running", "interrupted"}])

    def __getattr__(self, name: str) -> Callable[..., Awaited[Any]]:
        """Return any other method of ``sf.Client``, such as ``agents`` or ``why``; what it returns may be awaited."""
        if name.startswith("_"):  # while a copy of this is being made
            raise AttributeError(name)
        method = getattr(self._client, name)
        return lambda *args, **kwargs: Awaited(method(*args, **kwargs))


ScanflowDeployClient = ScanflowDeployerClient
"""The name that the thesis' text uses."""


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what was not given: in the thesis' signatures None means that."""
    return {name: value for name, value in fields.items() if value is not None}
