"""The thesis' client of a deployer (listings 5.2 and 6.1)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.backends.run_records import RunRecord
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
"""The engines of the thesis, all of them the backend 'kubernetes' here, with its options."""

_TYPES: Final = {
    "argo": ("batch",),
    "kserve": ("online",),
    "seldon": ("online",),
    "volcano": ("mpi",),
    "mpi-operator": ("mpi",),
}
"""The types of workflows that an engine runs; others run batch workflows."""

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
        """Create a client of a deployer.

        Args:
            user_type: ``local``: this process does the work. ``incluster``: a server does.
            deployer: ``local`` (this machine), or a cluster's engine: ``argo``, ``seldon``, ``kserve``, ``volcano``.
            k8s_config_file: The file that names the cluster. None: ``KUBECONFIG``, else ``~/.kube/config``.
            scanflow_server_uri: The server's address.
            verbose: Print progress.
            home: The home folder, without a server.
            options: Any other option is rejected.
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
                "user_type='incluster' runs everything on a server. Name it: scanflow_server_uri='http://...', or set "
                "SCANFLOW_URL."
            )
        url = scanflow_server_uri or (Settings.from_environment().url if user_type == "incluster" else None)
        self._deployer, self._makes_environments = deployer, deployer in _CLUSTER and url is None
        self._applications: dict[tuple[str, str], Application] = {}
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
                    f"{name!r} is not used: a job is divided (algorithm 2) where it is submitted.", stacklevel=3
                )
                continue
            supported = [*_OPTIONS, *(["k8s_config_file"] if deployer in _CLUSTER else [])]
            raise UnsupportedError(
                f"{name!r} is not supported by deployer={deployer!r}.{did_you_mean(name, supported)}"
            )

    # Environments

    def create_environment(self, app: Application) -> Awaited[str]:
        """Create the application's environment, unless the first run does, and return its name."""
        self._applications[app.name, app.team] = app
        return Awaited(self._client.apply(app).namespace if self._makes_environments else app.environment)

    def clean_environment(self, app: Application) -> Awaited[list[RunRecord]]:
        """Stop the application's runs and services; on a cluster, delete its environment with its data."""
        stopped = self.delete_app(app)
        if self._makes_environments:
            self._client.clean(app)
        return stopped

    # Applications

    def run_app(self, app: Application) -> Awaited[list[RunRecord | ServiceRecord]]:
        """Run the application's workflows of the engine's types, one after the other."""
        self._applications[app.name, app.team] = app
        types = _TYPES.get(self._deployer, ("batch",))
        return Awaited([self._execute(app, workflow) for workflow in app.workflows if workflow.type in types])

    def delete_app(self, app: Application) -> Awaited[list[RunRecord]]:
        """Stop the application's runs and delete its services. Its past runs, logs and models are kept."""
        return Awaited(self._end(app.name, app.team, None))

    # Workflows

    def run_workflow(self, app_name: str, team_name: str, workflow: Workflow, app_dir: str = ".") -> Awaited[RunRecord]:
        """Run one workflow of an application."""
        return Awaited(
            self._client.run(
                self._build_application(app_name, team_name, app_dir, workflows=[workflow], agents=[])
            ).record
        )

    def run_workflows(
        self, app_name: str, team_name: str, workflows: Sequence[Workflow], app_dir: str = "."
    ) -> Awaited[list[RunRecord]]:
        """Run workflows of an application, one after the other."""
        return Awaited(
            [
                self._client.run(self._build_application(app_name, team_name, app_dir, workflows=[workflow])).record
                for workflow in workflows
            ]
        )

    def deploy_workflow(
        self, app_name: str, team_name: str, workflow: Workflow, app_dir: str = "."
    ) -> Awaited[ServiceRecord]:
        """Serve an online workflow of an application."""
        return Awaited(
            self._client.deploy(self._build_application(app_name, team_name, app_dir, workflows=[workflow], agents=[]))
        )

    def delete_workflow(self, app_name: str, team_name: str, workflow: Workflow) -> Awaited[list[RunRecord]]:
        """Stop the runs of a workflow; delete the service of an online one."""
        return Awaited(self._end(app_name, team_name, workflow.name))

    def delete_workflows(
        self, app_name: str, team_name: str, workflows: Sequence[Workflow]
    ) -> Awaited[list[RunRecord]]:
        """Stop the runs of some workflows, and delete their services."""
        return Awaited([run for workflow in workflows for run in self._end(app_name, team_name, workflow.name)])

    # Agents

    def start_agents(
        self, app_name: str, team_name: str, agents: Sequence[Agent], app_dir: str = "."
    ) -> Awaited[list[Any]]:
        """Start agents on the server of ``scanflow_server_uri``, or on one that is up in the home."""
        return Awaited(
            self._client.start_agents(self._build_application(app_name, team_name, app_dir, agents=list(agents)))
        )

    def __getattr__(self, name: str) -> Callable[..., Awaited[Any]]:
        """Return any other method of ``sf.Client``, such as ``agents`` or ``why``; its result may be awaited."""
        if name.startswith("_"):  # while a copy of this is being made
            raise AttributeError(name)
        if name in {"run_executor", "delete_executor"}:
            raise UnsupportedError(f"{name} is not part of this version. A step alone: client.spin(workflow, step=...)")
        method = getattr(self._client, name)
        return lambda *args, **kwargs: Awaited(method(*args, **kwargs))

    def _build_application(self, name: str, team: str, app_dir: str, **parts: Any) -> Application:
        """Return the known application of that name with these parts, or a new one of these parts."""
        application = self._applications.get((name, team))
        if application is None:
            return Application(name=name, team=team, app_dir=app_dir, **parts)
        return application.replace(app_dir=app_dir, **parts)

    def _execute(self, app: Application, workflow: Workflow) -> RunRecord | ServiceRecord:
        if workflow.type == "online":
            return self._client.deploy(app, workflow.name)
        return self._client.run(app, workflow.name).record

    def _end(self, app: str, team: str, workflow: str | None) -> list[RunRecord]:
        """Delete the services and stop the runs of an application, or of one of its workflows; return the runs."""
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
