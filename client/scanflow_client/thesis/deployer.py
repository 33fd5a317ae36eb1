"""The thesis' client of a deployer (listings 5.2 and 6.1)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.backends.records import RunRecord
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import UnsupportedError, UsageError, did_you_mean
from scanflow.settings import Settings
from scanflow_client.client import Client
from scanflow_client.thesis.awaited import Awaited

_LOCAL: Final = ("local", "embedded")
_CLUSTER: Final[Mapping[str, Mapping[str, str]]] = {
    "argo": {},
    "kserve": {"serving": "kserve"},
    "kubernetes": {},
    "seldon": {"serving": "seldon"},
    "mpi-operator": {"mpi": "mpi-operator"},
    "volcano": {"mpi": "volcano"},
}
"""The engines of the thesis, each of which is the backend 'kubernetes' here, and what it is told."""

_TYPES: Final = {
    "argo": ("batch",),
    "kserve": ("online",),
    "seldon": ("online",),
    "volcano": ("mpi",),
    "mpi-operator": ("mpi",),
}
"""Which workflows of an application an engine runs; others run batch workflows."""

_OPTIONS: Final = ("home", "scanflow_server_uri", "verbose")


class ScanflowDeployerClient:
    """Runs applications (thesis listings 5.2 and 6.1): on this machine, on a cluster, or at a server.

    What a method returns may also be awaited.
    """

    def __init__(
        self,
        user_type: str = "local",
        deployer: str = "local",
        k8s_config_file: str | None = None,
        scanflow_server_uri: str | None = None,
        verbose: bool = True,
        *,
        home: Path | str | None = None,
        **options: Any,
    ) -> None:
        """Make a client of a deployer.

        Args:
            user_type: ``local``: this process does the work. ``incluster``: a server does.
            deployer: ``local`` (this machine), or a cluster's engine: ``argo``, ``seldon``, ``kserve``, ``volcano``.
            k8s_config_file: The file that names the cluster. None: ``KUBECONFIG``, else ``~/.kube/config``.
            scanflow_server_uri: The server's address. It runs what it is given where it is told to run things.
            verbose: Print how things go.
            home: The home folder, without a server.
            options: Any other is refused by name.
        """
        if deployer not in {*_LOCAL, *_CLUSTER}:
            near = did_you_mean(deployer, [_LOCAL[0], *_CLUSTER])
            raise UnsupportedError(f"deployer={deployer!r} is not known.{near}")
        if user_type not in {"local", "incluster"}:
            near = did_you_mean(user_type, ["local", "incluster"])
            raise UnsupportedError(f"user_type={user_type!r} is not known.{near}")
        self._check_options(deployer, {"k8s_config_file": k8s_config_file, **options})
        if user_type == "incluster" and (scanflow_server_uri or Settings.from_environment().url) is None:
            raise UsageError(
                "user_type='incluster' has a server do the work. Name it: scanflow_server_uri='http://...', or set "
                "SCANFLOW_URL."
            )
        url = scanflow_server_uri or (Settings.from_environment().url if user_type == "incluster" else None)
        self._deployer, self._makes_environments = deployer, deployer in _CLUSTER and url is None
        self._known: dict[tuple[str, str], Application] = {}
        if self._makes_environments:
            chosen = {"kubeconfig": k8s_config_file} if k8s_config_file else {}
            options = {**_CLUSTER[deployer], **chosen}
            self._client = Client(home=home, progress=verbose, backend="kubernetes", backend_options=options)
        else:
            self._client = Client(url, home=home, progress=verbose)

    @staticmethod
    def _check_options(deployer: str, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            if value is None or (name == "k8s_config_file" and deployer in _CLUSTER):
                continue
            if name == "scanflow_autoconfig_server_uri" and _TYPES.get(deployer) == ("mpi",):
                warnings.warn(
                    f"{name!r} is not asked: how a job is cut (algorithm 2) is computed where it is submitted.",
                    stacklevel=3,
                )
                continue
            known = [*_OPTIONS, *(["k8s_config_file"] if deployer in _CLUSTER else [])]
            raise UnsupportedError(f"{name!r} is of no use to deployer={deployer!r}.{did_you_mean(name, known)}")

    # Environments

    def create_environment(self, app: Application) -> Awaited[str]:
        """Make the application's environment, and return its name. Where the first run makes it, only its name."""
        self._known[app.name, app.team] = app
        return Awaited(self._client.apply(app).namespace if self._makes_environments else app.environment)

    def clean_environment(self, app: Application) -> Awaited[list[RunRecord]]:
        """Stop all that the application runs and serves; on a cluster, remove its environment, data included."""
        stopped = self.delete_app(app)
        if self._makes_environments:
            self._client.clean(app)
        return stopped

    # Applications

    def run_app(self, app: Application) -> Awaited[list[RunRecord | ServiceRecord]]:
        """Run the application's workflows, one after the other: of the types that the engine is for."""
        self._known[app.name, app.team] = app
        types = _TYPES.get(self._deployer, ("batch",))
        return Awaited([self._carried_out(app, one) for one in app.workflows if one.type in types])

    def delete_app(self, app: Application) -> Awaited[list[RunRecord]]:
        """Stop what runs of the application, and end what it serves. Its past runs, logs and models are kept."""
        return Awaited(self._ended(app.name, app.team, None))

    # Workflows

    def run_workflow(self, app_name: str, team_name: str, workflow: Workflow, app_dir: str = ".") -> Awaited[RunRecord]:
        """Run one workflow of an application."""
        return Awaited(self._client.run(self._part(app_name, team_name, app_dir, workflows=[workflow], agents=[])))

    def run_workflows(
        self, app_name: str, team_name: str, workflows: Sequence[Workflow], app_dir: str = "."
    ) -> Awaited[list[RunRecord]]:
        """Run workflows of an application, one after the other."""
        return Awaited(
            [self._client.run(self._part(app_name, team_name, app_dir, workflows=[one])) for one in workflows]
        )

    def deploy_workflow(
        self, app_name: str, team_name: str, workflow: Workflow, app_dir: str = "."
    ) -> Awaited[ServiceRecord]:
        """Serve an online workflow of an application."""
        return Awaited(self._client.deploy(self._part(app_name, team_name, app_dir, workflows=[workflow], agents=[])))

    def delete_workflow(self, app_name: str, team_name: str, workflow: Workflow) -> Awaited[list[RunRecord]]:
        """Stop what runs of a workflow; of an online one, end the service."""
        return Awaited(self._ended(app_name, team_name, workflow.name))

    def delete_workflows(
        self, app_name: str, team_name: str, workflows: Sequence[Workflow]
    ) -> Awaited[list[RunRecord]]:
        """Stop what runs of some workflows, and end those that are served."""
        return Awaited([run for one in workflows for run in self._ended(app_name, team_name, one.name)])

    # Agents

    def start_agents(
        self, app_name: str, team_name: str, agents: Sequence[Agent], app_dir: str = "."
    ) -> Awaited[list[Any]]:
        """Have agents run, beside the server: it takes ``scanflow_server_uri``, or one that is up in the home."""
        return Awaited(self._client.start_agents(self._part(app_name, team_name, app_dir, agents=list(agents))))

    def __getattr__(self, name: str) -> Callable[..., Awaited[Any]]:
        """Return any other method of ``sf.Client``, such as ``agents`` or ``why``; what it returns may be awaited."""
        if name.startswith("_"):  # while a copy of this is being made
            raise AttributeError(name)
        if name in {"run_executor", "delete_executor"}:
            raise UnsupportedError(f"{name} is no part of this version. A step alone: client.spin(workflow, step=...)")
        method = getattr(self._client, name)
        return lambda *args, **kwargs: Awaited(method(*args, **kwargs))

    def _part(self, name: str, team: str, app_dir: str, **parts: Any) -> Application:
        """Return the application that this client was given under that name, with these parts; else these alone."""
        known = self._known.get((name, team))
        if known is None:
            return Application(name=name, team=team, app_dir=app_dir, **parts)
        return known.replace(app_dir=app_dir, **parts)

    def _carried_out(self, app: Application, workflow: Workflow) -> RunRecord | ServiceRecord:
        return (self._client.deploy if workflow.type == "online" else self._client.run)(app, workflow.name)

    def _ended(self, app: str, team: str, workflow: str | None) -> list[RunRecord]:
        """End what is served and what runs of an application, or of one workflow of it; return the runs."""
        for service in self._client.services():
            if (service.app, service.team) == (app, team) and workflow in {None, service.name}:
                self._client.delete(service.name)
        return [
            self._client.stop(run.name)
            for run in self._client.runs(limit=1000)
            if (run.app, run.team) == (app, team)
            and workflow in {None, run.workflow}
            and run.state in {"running", "interrupted"}
        ]


ScanflowDeployClient = ScanflowDeployerClient
"""The name that the thesis' text uses."""
