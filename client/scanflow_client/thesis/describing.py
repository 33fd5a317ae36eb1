"""The thesis' client that describes applications (listing 5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from scanflow.app.agent import Agent
from scanflow.app.application import Application, Tracker
from scanflow.app.edges import Dependency
from scanflow.app.executor import Executor
from scanflow.app.mpi import MPIWorkload
from scanflow.app.resources import Resources
from scanflow.app.scaling import Scaling
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.errors import UnsupportedError, did_you_mean
from scanflow.images.builders import PROGRAMS
from scanflow_client.client import Client
from scanflow_client.thesis.engine_terms import (
    REPLACEMENTS,
    CpuTarget,
    ScalerTrigger,
    convert_hpa_spec,
    convert_keda_spec,
    convert_parameters,
    convert_resources,
)

_MPI_NAMES: Final = {"nTasks": "n_tasks", "nNodes": "n_nodes", "nWorkers": "n_workers"}
_UNSUPPORTED: Final = {
    "dockerfile": "image=..., an existing image, or nothing, and build one: scanflow build",
    "endpoint": "service_type='MODEL'",
    "envSecretRefName": "a Secret 'scanflow-env' in the environment's namespace: all its pods get its entries",
    "envfrom": "a ConfigMap or Secret 'scanflow-env' in the environment's namespace: all its pods get their entries",
    "implementation_type": "model='models:/name@alias': a registered model needs no server of its own",
}


class ScanflowClient:
    """Describes applications (thesis listing 5.1)."""

    def __init__(
        self,
        builder: str | None = None,
        registry: str | None = None,
        scanflow_server_uri: str | None = None,
        verbose: bool = True,
    ) -> None:
        """Create a client.

        With a ``builder`` (``docker``, ``podman`` or ``buildah``) applications are built as container images; with a
        ``registry`` they are pushed there, and built by the first of those that is installed if none is named. The
        server's address is kept for the backends that use it.
        """
        if builder is not None and builder not in PROGRAMS:
            raise UnsupportedError(f"builder={builder!r} is not known.{did_you_mean(builder, PROGRAMS)}")
        self.builder = builder
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
        return Executor(name=name, mainfile=mainfile, parameters=parameters or {}, **_drop_none(fields))

    def ScanflowService(self, name: str, mainfile: str | None = None, **fields: Any) -> Service:  # noqa: N802
        """Return a service. ``mainfile`` holds the class of its own name; ``service_type`` is the modern ``role``."""
        return Service(name=name, **_drop_none(_convert_service_fields(name, mainfile, fields)))

    def ScanflowMPIWorkload(self, name: str, mainfile: str, **fields: Any) -> MPIWorkload:  # noqa: N802
        """Return an MPI workload; ``nTasks`` and ``nNodes`` are the modern ``n_tasks`` and ``n_nodes``."""
        modern = {_MPI_NAMES.get(key, key): value for key, value in fields.items()}
        return MPIWorkload(name=name, mainfile=mainfile, **_drop_none(modern))

    def ScanflowDependency(self, dependee: str, depender: str) -> Dependency:  # noqa: N802
        """Return an edge: ``depender`` starts after ``dependee``."""
        return Dependency(dependee=dependee, depender=depender)

    def ScanflowWorkflow(  # noqa: N802
        self,
        name: str,
        nodes: Sequence[Executor | Service | MPIWorkload],
        edges: Sequence[Dependency] | None = None,
        type: str | None = None,
        output_dir: str | None = None,
        kedaSpec: Scaling | None = None,  # noqa: N803
        hpaSpec: Scaling | None = None,  # noqa: N803
        hpcSpec: Scaling | None = None,  # noqa: N803  as that project misspells it
        **fields: Any,
    ) -> Workflow:
        """Return a workflow; ``kedaSpec`` or ``hpaSpec`` is the modern ``scaling`` of its first service."""
        for field, instead in (("resources", "resources"), ("affinity", "affinity")):
            if fields.pop(field, None) is not None:
                raise UnsupportedError(f"{field} of a workflow is unsupported. Set {instead}=... on each node.")
        if scaling := kedaSpec or hpaSpec or hpcSpec:
            first, *others = nodes
            if not isinstance(first, Service):
                raise UnsupportedError(
                    f"Only services scale, and {first.name!r} is not a service. Remove kedaSpec and hpaSpec."
                )
            nodes = [first.replace(scaling=scaling), *others]
        options = {"edges": edges, "type": type, "output_dir": output_dir, **fields}
        return Workflow(name=name, nodes=nodes, **_drop_none(options))

    def KedaSpec(  # noqa: N802
        self,
        triggers: Sequence[ScalerTrigger] | None = None,
        pollingInterval: int = 30,  # noqa: N803
        cooldownPeriod: int = 30,  # noqa: N803
        minReplicaCount: int = 0,  # noqa: N803
        maxReplicaCount: int = 10,  # noqa: N803
    ) -> Scaling:
        """Return the scaling that a KEDA specification describes."""
        return convert_keda_spec(triggers, pollingInterval, cooldownPeriod, minReplicaCount, maxReplicaCount)

    def ScalerTriggerPrometheus(  # noqa: N802
        self,
        serverAddress: str,  # noqa: N803, ARG002  the backend's settings name the one that is asked
        metricName: str,  # noqa: N803
        query: str,  # noqa: ARG002  scanflow measures what the metric's name says
        threshold: str,
        type: str = "prometheus",
    ) -> ScalerTrigger:
        """Return a trigger of a :meth:`KedaSpec`: the metric whose name it has, and its threshold."""
        return ScalerTrigger(metricName, str(threshold), type)

    def HpaSpec(  # noqa: N802
        self,
        metrics: CpuTarget | Sequence[CpuTarget],
        minReplica: int = 0,  # noqa: N803
        maxReplica: int = 10,  # noqa: N803
    ) -> Scaling:
        """Return the scaling that a HorizontalPodAutoscaler describes."""
        return convert_hpa_spec(metrics, minReplica, maxReplica)

    def AutoscalingMetric(self, type: str, resource: CpuTarget | None = None, **others: Any) -> CpuTarget:  # noqa: N802
        """Return the metric of an :meth:`HpaSpec`; ``type`` is ``Resource``."""
        if type != "Resource" or resource is None or any(value is not None for value in others.values()):
            raise UnsupportedError(f"An HPA by {type!r} metrics: write sf.Scaling(metric='rps', target=20), or 'p95'.")
        return resource

    def ResourceMetricSource(self, name: str, target: CpuTarget) -> CpuTarget:  # noqa: N802
        """Return the source of an :meth:`AutoscalingMetric`; ``name`` is ``cpu``."""
        if name != "cpu":
            raise UnsupportedError(f"An HPA by {name!r} is not supported: services scale by cpu, rps, p95 and queue.")
        return target

    def MetricTarget(  # noqa: N802
        self,
        average_utilization: int | None = None,
        average_value: str | None = None,
        type: str = "Utilization",
        value: str | None = None,
    ) -> CpuTarget:
        """Return the target of a metric: the mean utilization of the cores, in percent."""
        if average_utilization is None or average_value is not None or value is not None:
            raise UnsupportedError(f"A target of type {type!r}: write average_utilization=50, a share of the cores.")
        return CpuTarget(average_utilization)

    def V1ResourceRequirements(  # noqa: N802
        self, requests: Mapping[str, Any] | None = None, limits: Mapping[str, Any] | None = None
    ) -> Resources:
        """Return the resources of a node, in the form of Kubernetes."""
        return convert_resources(requests, limits)

    def __getattr__(self, name: str) -> Any:
        if name in REPLACEMENTS:
            raise UnsupportedError(f"{name} is not part of this version. Write {REPLACEMENTS[name]}.")
        raise AttributeError(f"{type(self).__name__!r} has no {name!r}.{did_you_mean(name, dir(type(self)))}")

    def ScanflowAgent(self, name: str, **fields: Any) -> Agent:  # noqa: N802
        """Return an agent."""
        return Agent(name=name, **_drop_none(fields))

    def ScanflowApplication(  # noqa: N802
        self,
        app_name: str,
        app_dir: str,
        team_name: str,
        workflows: Sequence[Workflow] | None = None,
        agents: Sequence[Agent] | None = None,
        tracker: Tracker | None = None,
    ) -> Application:
        """Return an application of one team."""
        options = {"workflows": workflows, "agents": agents, "tracker": tracker}
        return Application(name=app_name, team=team_name, app_dir=app_dir, **_drop_none(options))

    def build_ScanflowApplication(self, app: Application, trackerPort: int | None = None) -> Application:  # noqa: N802, N803
        """Return the application ready to deploy: with a tracker and, where the client has a builder or a registry,
        its images."""
        if self.builder is not None or self.registry is not None:
            own = Client(progress=self.verbose)
            own.build(app, push=self.registry is not None, registry=self.registry, builder=self.builder)
        return app.replace(tracker=app.tracker or Tracker(port=trackerPort))


def _convert_service_fields(name: str, mainfile: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields of a service to this version's terms."""
    modern = {field: value for field, value in fields.items() if value is not None}
    for field, instead in _UNSUPPORTED.items():
        if field in modern:
            raise UnsupportedError(f"Service {name!r}: {field} is not part of this version. Write {instead}.")
    if mainfile is not None:
        modern["implementation"] = f"{mainfile}:{PurePath(mainfile).stem}"
    if (kind := modern.pop("service_type", None)) is not None:
        modern["role"] = kind
    if (base := modern.pop("base_image", None)) is not None:
        modern["image"] = base
    if (uri := modern.pop("modelUri", None)) is not None:
        if not str(uri).startswith("models:/"):
            raise UnsupportedError(
                f"Service {name!r}: modelUri={uri!r} is not a registered model. Register it, and write "
                "model='models:/name@champion'."
            )
        modern["model"] = uri
    parameters = modern.get("parameters")
    if isinstance(parameters, Sequence) and not isinstance(parameters, str):
        modern["parameters"] = convert_parameters(name, parameters)
    return modern


def _drop_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None, which stands for a missing argument in the thesis' signatures."""
    return {name: value for name, value in fields.items() if value is not None}
