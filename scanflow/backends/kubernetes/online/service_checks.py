"""Check whether a cluster can serve an online workflow as it is described."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from scanflow.app.application import Application
from scanflow.app.parameters import select_texts
from scanflow.app.scaling import Scaling
from scanflow.app.secrets import iterate_secrets
from scanflow.app.serving import Serving
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.environment.tracker_manifests import resolve_tracker_uri
from scanflow.backends.kubernetes.gpu_claims import check_engine
from scanflow.backends.kubernetes.gpus import check_gpus
from scanflow.backends.kubernetes.kinds import KINDS
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.nodes import KubeletPolicy
from scanflow.backends.kubernetes.online.autoscaler_objects import check_scaling, select_autoscaler_kind
from scanflow.backends.kubernetes.online.closed_routes import ROUTE_KINDS
from scanflow.backends.kubernetes.online.engines import ENGINES
from scanflow.backends.kubernetes.online.instance_pods import compute_threads
from scanflow.backends.kubernetes.online.service_store import ServiceConfigMap
from scanflow.backends.kubernetes.placement import build_instance_placement
from scanflow.backends.kubernetes.pod_spec import check_pod_secrets
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import ServiceSpec, build_nodes, find_scaling
from scanflow.backends.shapes import build_gpu_resources
from scanflow.errors import InvalidError, UnsupportedError, UsageError
from scanflow.instance_messages import ModelFiles

EXCLUSIVE: Final = {"cpu", "cpumem", "cpumempin"}
_NEAR_MEMORY: Final = {"cpumem", "cpumempin"}


def check_workflow(app: Application, workflow: Workflow, shape: Shape, settings: KubernetesSettings) -> Shape:
    """Validate a workflow without a request to the cluster, and return its shape with the thread variables.

    Raises:
        UsageError: the field or file is named.
    """
    if workflow.type != "online":
        raise UsageError(f"Workflow {workflow.name!r} is of type {workflow.type!r}: it is run, not served.")
    serving = workflow.serving or Serving()
    _check_clients(app, workflow, settings)
    _check_gpus(shape, settings, f"Workflow {workflow.name!r}")
    if serving.record > 0 and resolve_tracker_uri(app, settings) is None:
        raise UsageError(
            f"Workflow {workflow.name!r}: serving.record keeps predictions in a tracker, and the application has none. "
            "Give it one: Application(tracker=sf.Tracker())"
        )
    check_pod_secrets(iterate_secrets([serving.env, workflow.services]), who=f"Workflow {workflow.name!r}")
    _check_backup(app, workflow, serving)
    build_instance_placement(workflow.services, {})
    build_nodes(app, workflow, lambda uri: ModelFiles(name=uri, version=0, path=""))
    return complete_shape(workflow.name, shape, serving, find_scaling(workflow), settings)


def _check_gpus(shape: Shape, settings: KubernetesSettings, who: str) -> None:
    resources = build_gpu_resources(shape)
    check_gpus(settings.device_plugin, lambda: None, resources, who)
    if settings.serving == "seldon":
        advice = "Serve by Deployments: SCANFLOW_KUBERNETES_SERVING=deployment."
        check_engine("Seldon Core", resources, settings.device_plugin, who, advice)


def list_required_kinds(workflow: Workflow, settings: KubernetesSettings) -> list[str]:
    """Return the kinds that a service needs, except those that every cluster has."""
    scaling, serving = find_scaling(workflow), workflow.serving or Serving()
    kinds = [ENGINES[settings.serving].kind]
    kinds += [] if scaling is None else [select_autoscaler_kind(scaling)]
    if settings.gateway is not None:
        if serving.clients is not None:
            kinds += ROUTE_KINDS
        kinds += ["HTTPRoute"] if serving.grpc_port == 0 else ["HTTPRoute", "GRPCRoute"]
    return [kind for kind in kinds if KINDS[kind].engine is not None]


def suggest_alternative(kind: str) -> str:
    """Return how to serve without a kind, to be appended to the command that ends the error of it."""
    engines = {engine.kind for engine in ENGINES.values()}
    return ". Or serve without it: SCANFLOW_KUBERNETES_SERVING=deployment" if kind in engines else ""


def complete_shape(
    name: str, shape: Shape, serving: Serving, scaling: Scaling | None, settings: KubernetesSettings
) -> Shape:
    """Return a shape with its thread variables.

    Raises:
        InvalidError: it asks for exclusive cores in a way that no kubelet grants.
        UnsupportedError: it cannot be scaled like that.
    """
    if scaling is not None:
        check_scaling(scaling, service=name, shape=shape, settings=settings)
    if shape.affinity in EXCLUSIVE:
        problem = None
        if shape.cores is None or not float(shape.cores).is_integer():
            requested = "none" if shape.cores is None else f"{shape.cores:g}"
            problem = f"gives whole cores only, and {requested} are requested. Write cores=2"
        elif shape.memory_bytes is None:
            problem = "gives cores only to pods whose memory is limited. Write memory='1Gi'"
        if problem:
            raise InvalidError(f"{name!r}: affinity {shape.affinity!r} needs cores of its own. A kubelet {problem}.")
    try:
        threads = compute_threads(shape, select_texts(serving.env))
    except InvalidError as error:
        raise InvalidError(f"{name!r}: {error}") from error
    return shape.model_copy(update={"threads": threads})


def check_nodes(name: str, shape: Shape, policies: Sequence[KubeletPolicy], *, allow_degraded: bool) -> Iterator[str]:
    """Yield a warning for each requirement that the nodes do not support, if degraded service is allowed.

    Raises:
        UnsupportedError: the nodes do not support a requirement, and degraded service is not allowed.
        InvalidError: no node is as large as one instance.
    """
    nodes = [policy for policy in policies if policy.schedulable]
    cores, memory = shape.cores or 0.0, shape.memory_bytes or 0
    if nodes and not any(policy.cores >= cores and policy.memory_bytes >= memory for policy in nodes):
        largest = max(nodes, key=lambda policy: policy.cores)
        raise InvalidError(
            f"{name!r}: an instance asks for {cores:g} cores, and no node has that many: the largest, "
            f"{largest.node}, has {largest.cores:g} cores. Request less, or deploy more and smaller instances."
        )
    if shape.affinity not in EXCLUSIVE:
        return
    unmanaged = [policy.node for policy in nodes if policy.cpu_manager == "none"]
    problems = []
    if unmanaged:
        problems.append(
            f"CPUManagerPolicy: the kubelets of {', '.join(unmanaged[:5])} have the CPU manager policy 'none', so that "
            f"affinity {shape.affinity!r} gets a share of all cores there and no exclusive ones. Set it to 'static'"
        )
    unaligned = [
        policy.node for policy in nodes if policy.cpu_manager == "static" and policy.topology_manager == "none"
    ]
    if shape.affinity in _NEAR_MEMORY and unaligned:
        problems.append(
            f"TopologyManagerPolicy: the kubelets of {', '.join(unaligned[:5])} have the topology manager policy "
            "'none', so that cores and memory may be on different NUMA nodes. Set it to 'single-numa-node'"
        )
    for problem in problems:
        if not allow_degraded:
            raise UnsupportedError(
                f"{name!r}: the cluster does not support affinity {shape.affinity!r}. {problem}; or accept it: "
                "SCANFLOW_KUBERNETES_ALLOW_DEGRADED=1"
            )
        yield f"warning: {problem}."


def check_stays_closed(stored: ServiceConfigMap | None, workflow: Workflow) -> None:
    """Refuse to serve a service with client certificates that is served without, and the other way round.

    Raises:
        UsageError: its clients would lose it in between.
    """
    closed = (workflow.serving or Serving()).clients is not None
    if stored is not None and closed != (stored.state.definition.tls is not None):
        now, then = ("without clients=", "with clients=") if closed else ("with clients=", "without clients=")
        raise UsageError(
            f"The service {workflow.name!r} is deployed {now}, and cannot be served {then} while it runs, since "
            f"its clients would fail. Delete it first: scanflow delete {workflow.name}"
        )


def check_open(definitions: Iterable[ServiceSpec]) -> None:
    """Refuse a service with client certificates as a backup, or with one.

    Raises:
        UnsupportedError: a service has them.
    """
    for definition in definitions:
        if definition.tls is not None:
            raise UnsupportedError(
                f"The backend 'kubernetes' does not support a backup with serving.clients, which "
                f"{definition.workflow!r} has: a backup would serve with a certificate and clients of its own."
            )


def _check_clients(app: Application, workflow: Workflow, settings: KubernetesSettings) -> None:
    """Refuse client certificates where they could not be asked for."""
    if (workflow.serving or Serving()).clients is None:
        return
    problem = None
    if settings.serving != "deployment":
        problem = f"{settings.serving!r} makes its pods. Serve without: SCANFLOW_KUBERNETES_SERVING=deployment"
    elif settings.gateway is None:
        problem = (
            "there is no Gateway, which ends TLS. Name one of Traefik's: SCANFLOW_KUBERNETES_GATEWAY=NAMESPACE/NAME"
        )
    elif settings.gateway_domain is None:
        problem = (
            "its host needs a domain, whose names lead to the Gateway. Name it: "
            "SCANFLOW_KUBERNETES_GATEWAY_DOMAIN=serving.example"
        )
    elif (scaling := find_scaling(workflow)) is not None and scaling.min == 0:
        problem = "it would sleep, and nothing counts the requests that would wake it. Write min=1"
    elif any(_is_backed_up(workflow, other) or _is_backed_up(other, workflow) for other in app.workflows):
        problem = "a backup would serve with a certificate and clients of its own. Remove the backup"
    if problem is not None:
        raise UnsupportedError(
            f"Workflow {workflow.name!r}: the backend 'kubernetes' does not support serving.clients here: {problem}."
        )


def _is_backed_up(workflow: Workflow, by: Workflow) -> bool:
    return workflow.type == "online" and (workflow.serving or Serving()).backup == by.name


def _check_backup(app: Application, workflow: Workflow, serving: Serving) -> None:
    online = {other.name: other for other in app.workflows if other.type == "online"}
    if serving.backup in online and (online[serving.backup].serving or Serving()).backup is not None:
        raise UnsupportedError(
            f"Workflow {workflow.name!r}: the backend 'kubernetes' does not support a chain of backups: "
            f"{serving.backup!r} has a backup itself. Remove one of the two."
        )
