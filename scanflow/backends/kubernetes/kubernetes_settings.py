"""Settings of this backend, from ``SCANFLOW_KUBERNETES_<FIELD>`` in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from scanflow.backends.kubernetes.gpus import DevicePlugin, Mechanism, SharesName, Vendor
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.environment_variables import list_variables, read_settings
from scanflow.errors import InvalidError, did_you_mean

ServingEngine = Literal["deployment", "seldon", "kserve"]
MPIEngine = Literal["volcano", "mpi-operator"]
JOB_KINDS: Final[Mapping[MPIEngine, str]] = {"volcano": "Job", "mpi-operator": "MPIJob"}
"""What MPI jobs become, by the engine that runs them."""

_PREFIX = "SCANFLOW_KUBERNETES_"


class KubernetesSettings(BaseModel):
    """The cluster's address, and which of its engines and classes are used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kubeconfig: str | None = None
    """The file that names the cluster. Unset: ``KUBECONFIG``, else ``~/.kube/config``."""

    context: str | None = None
    """The context of the kubeconfig. Unset: its current one; in a pod, the
    cluster that the pod runs in."""

    namespace: str | None = None
    """The namespace of the application's environment, of any name, as somebody made it: the stock role ``admin`` in it
    is enough. It has the environment of one application, and nothing is looked for elsewhere. Unset: each application
    has a namespace of its own, ``scanflow-<app>-<team>``, and services, agents and runs are looked for in all."""

    serving: ServingEngine = "deployment"
    """What online workflows become: ``Deployment``, ``SeldonDeployment`` or ``InferenceService``."""

    mpi: MPIEngine = "volcano"
    """What MPI jobs become: a ``Job`` of Volcano, which starts all pods of a job or none, or an ``MPIJob``."""

    mpi_image: str | None = None
    """The image of MPI jobs that name none: Open MPI, an sshd, and Python where programs are scripts. Unset: each job
    has to name one."""

    mpi_network: Literal["pod", "host"] = "pod"
    """Whether the pods of MPI jobs are in the pod network or in that of their nodes, which their namespace has to allow
    (``pod-security.kubernetes.io/enforce: privileged``)."""

    mpi_multus: str | None = None
    """The NetworkAttachmentDefinition of Multus that the pods of MPI jobs get, and their ranks use. Unset: none."""

    image: str = "scanflow/base:latest"
    """The image of steps and instances that name none: Python, and scanflow with its extras."""

    image_complete: bool = False
    """Whether that image has all that steps and models require, so that none has to be built for them. Unset: what they
    require has to be in an image of ``scanflow build``."""

    agent_image: str = "scanflow/agent:latest"
    """The image of agents that name none: the base image, and the program that hosts an agent."""

    server_image: str = "scanflow/server:latest"
    """The image of the demo, its steps and instances: the base image, and the packages that servers need."""

    registry: str | None = None
    """Where ``scanflow build`` pushes images, ``host:5000`` or ``host:5000/project``; nodes pull from there."""

    pull_secret: str | None = None
    """The name of the Secret that nodes pull images with, in each environment."""

    storage_class: str | None = None
    """The storage class of the claims for outputs and the tracker. Unset: the cluster's default."""

    storage_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = "ReadWriteOnce"
    """How the claim for outputs is mounted. With ``ReadWriteOnce``, which every class can, all steps of an environment
    share a node; ``ReadWriteMany`` lets them be on several."""

    storage_size: str = "10Gi"
    """The size of the claim for outputs, and of the claim for the tracker."""

    outputs: str | None = None
    """Where an S3-compatible object store has the outputs of batch runs: ``s3://bucket/prefix``, so that steps run on
    any node. Unset: they are on a claim."""

    outputs_secret: str | None = None
    """The Secret, in each environment, whose entries are the environment variables that this store is reached with:
    ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL``, ``AWS_REGION``, ... Unset: pods have rights
    of their own there, as those of the service account ``scanflow-step``."""

    keep_claims: bool = False
    """Whether the deletion of an environment leaves its claims, and so their data and the namespace, in place."""

    tracker_image: str = "scanflow/tracker:latest"
    """The image of an environment's tracker: MLflow, and what its database and artifact store need."""

    tracker_uri: str | None = None
    """A tracker that pods reach, for all environments. Unset: an application that asks for a tracker and names none has
    one of its own, in its environment."""

    tracker_token: SecretStr | None = None
    """The token of the tracker at ``tracker_uri``, if it is scanflow's own. Pods have one that is signed with it."""

    tracker_secret: str | None = None
    """The Secret, in each environment, whose entries are environment variables of its tracker:
    ``MLFLOW_BACKEND_STORE_URI`` (``postgresql://...``), ``MLFLOW_ARTIFACTS_DESTINATION`` (``s3://...``) and what
    they need, such as ``AWS_ACCESS_KEY_ID``. Unset: SQLite and files on a claim."""

    gpu_vendor: Vendor = "nvidia"
    """Whose GPUs are asked for: ``nvidia.com/gpu`` or ``amd.com/gpu``."""

    gpu_shares: SharesName = "nvidia.com/gpu"
    """What NVIDIA's device plugin calls a share of a GPU; ``nvidia.com/gpu.shared`` with its ``renameByDefault``."""

    gpu_requests: Mechanism = "device-plugin"
    """Whether pods ask a device plugin for GPUs, or claim them (dynamic resource allocation, of Kubernetes 1.34)."""

    gpu_class: str | None = None
    """The device class of whole GPUs that are claimed. Unset: ``gpu.nvidia.com``, or ``gpu.amd.com``."""

    gpu_part_class: str = "mig.nvidia.com"
    """The device class of parts of GPUs (MIG) that are claimed."""

    platform_namespace: str | None = None
    """The namespace of scanflow's own server, whose pods may connect to those of environments. Unset: none may."""

    quota_cpu: str | None = None
    """Cores that all pods of an environment together may request. Unset: not limited."""

    quota_memory: str | None = None
    """Memory that all pods of an environment together may request. Unset: not limited."""

    quota_pods: int | None = Field(default=None, ge=1)
    """How many pods an environment may have at once. Unset: not limited."""

    default_cpu: str | None = None
    """The cores assumed for a container that requests none. Unset: ``50m`` where ``quota_cpu`` is set."""

    default_memory: str | None = None
    """The memory assumed for a container that requests none. Unset: ``128Mi`` where ``quota_memory`` is set."""

    gateway: str | None = None
    """The Gateway that routes are attached to: ``namespace/name``. Unset: services are reached by their Service only,
    and a canary's share is set by the number of its instances."""

    gateway_url: str | None = None
    """Where clients reach the Gateway: ``http://host:port``. Unset: the address in its status."""

    gateway_domain: str | None = None
    """The suffix after ``<service>.<namespace>`` in the host of gRPC calls, where DNS resolves such names
    to the Gateway. Unset: callers name the authority ``<service>.<namespace>`` themselves."""

    gateway_requests: str | None = None
    """The Prometheus query of the requests per second that the Gateway gets for a service, with ``{namespace}`` and
    ``{service}`` in it. Unset: nothing counts the requests for a service without instances, so that ``min=0`` cannot be
    honoured. For Traefik: see ``docs/kubernetes.md``."""

    prometheus: str | None = None
    """The Prometheus that KEDA queries for ``rps``, ``p95``, ``queue``, ``gpu`` and ``gpu_memory``:
    ``http://prometheus.monitoring:9090``."""

    scrape_interval_s: float = Field(default=15.0, gt=0)
    """How often Prometheus scrapes each pod. Rates cover three times as long, so that one scrape may be missed."""

    allow_degraded: bool = False
    """Whether what the cluster does not support (exclusive cores under the CPU manager policy ``none``) is a
    warning."""

    pending_s: float = Field(default=300.0, gt=0)
    """The longest time that a step's pod may take to start, while somebody watches the run; then its task fails."""

    workflow_ttl_s: float = Field(default=7 * 86_400.0, gt=0)
    """How long Argo keeps a Workflow that has ended. Records and logs of a run that was watched outlive it."""

    timeout_s: float = Field(default=600.0, gt=0)
    """The timeout of waiting for a change of a service."""

    request_timeout_s: float = Field(default=10.0, gt=0)
    """The timeout of one request to the API server."""

    @field_validator("outputs")
    @classmethod
    def _check_outputs(cls, address: str | None) -> str | None:
        if address is None:
            return None
        scheme, separator, path = address.partition("://")
        if scheme != "s3" or not separator or not path.strip("/") or {"?", "#", " "} & set(path) or "//" in path:
            raise ValueError(
                f"outputs are in an S3-compatible store, so it is s3://bucket or s3://bucket/prefix, not {address!r}; "
                "the address of its server is AWS_ENDPOINT_URL in the Secret that outputs_secret names"
            )
        return f"{scheme}://{path.strip('/')}"

    @property
    def device_plugin(self) -> DevicePlugin:
        device_class = self.gpu_class or f"gpu.{self.gpu_vendor}.com"
        return DevicePlugin(self.gpu_vendor, self.gpu_shares, self.gpu_requests, device_class, self.gpu_part_class)

    def derive_namespace(self, app: str, team: str) -> str:
        """Return the namespace of an application's environment: ``namespace``, or one named after the application."""
        return self.namespace or derive_namespace(app, team)

    @classmethod
    def name_variables(cls) -> dict[str, str]:
        """Return the environment variable of each field."""
        return list_variables(cls, _PREFIX)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, *, options: Mapping[str, str] | None = None
    ) -> Self:
        """Read the settings from ``environ`` (default: this process' own), except those in ``options``, by field."""
        chosen = options or {}
        for name in chosen.keys() - cls.model_fields.keys():
            raise InvalidError(
                f"The backend 'kubernetes' has no option {name!r}.{did_you_mean(name, cls.model_fields)}"
            )
        return read_settings(cls, cls.name_variables(), environ, given=chosen)
