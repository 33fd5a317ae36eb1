"""Diagnose a cluster, with remedies. Nothing is changed, except for a pod on request."""

from __future__ import annotations

import json
import re
import shlex
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from scanflow.backends.findings import Finding, Mark
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.gpu_claims import read_controller_version
from scanflow.backends.kubernetes.gpu_findings import check_device_classes, check_node_gpus
from scanflow.backends.kubernetes.kinds import KINDS, Manifest, build_manifest, get_condition
from scanflow.backends.kubernetes.kubernetes_settings import JOB_KINDS, KubernetesSettings
from scanflow.backends.kubernetes.nodes import KubeletPolicy, read_kubelet_policies
from scanflow.backends.kubernetes.object_labels import MANAGER
from scanflow.backends.kubernetes.permissions import USED_VERBS, list_missing_permissions, read_user
from scanflow.backends.kubernetes.pod_spec import build_container_security, build_pod_security
from scanflow.backends.kubernetes.pods import explain_pending
from scanflow.backends.kubernetes.storage_findings import check_outputs_storage
from scanflow.errors import AccessDeniedError, NotFoundError, ScanflowError, UnavailableError

MIN_VERSION: Final = (1, 27)
MAX_CHECKED_NODES: Final = 20
PULL_TIMEOUT_S: Final = 120.0
_PREFIX: Final = "SCANFLOW_KUBERNETES_"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_IN_CLUSTER: Final = re.compile(
    r"https?://(?P<name>[^.:/]+)\.(?P<namespace>[^.:/]+)[^:/]*(:(?P<port>\d+))?(?P<path>/.*)?"
)


class _Engine(NamedTuple):
    name: str
    kind: str
    controller: str
    """The name of its controller's Deployment."""

    purpose: str
    install: str


_ENGINES: Final = (
    _Engine(
        "Argo Workflows", "Workflow", "workflow-controller", "runs batch workflows", "argo-workflows.readthedocs.io"
    ),
    _Engine("Volcano", "Job", "volcano-controllers", "runs MPI jobs", "volcano.sh/docs/installation"),
    _Engine("MPI Operator", "MPIJob", "mpi-operator", "runs MPI jobs", "github.com/kubeflow/mpi-operator"),
    _Engine("KEDA", "ScaledObject", "keda-operator", "scales services on load, and to zero", "keda.sh/docs/deploy"),
    _Engine("Seldon Core", "SeldonDeployment", "seldon-controller-manager", "serves models", "docs.seldon.io"),
    _Engine("KServe", "InferenceService", "kserve-controller-manager", "serves models", "kserve.github.io"),
    _Engine("Gateway API", "HTTPRoute", "", "splits traffic between versions", "gateway-api.sigs.k8s.io/guides"),
)


def examine(cluster: Cluster, settings: KubernetesSettings, *, thorough: bool = False) -> list[Finding]:
    """Return the findings, in the order in which a person would fix them.

    Args:
        cluster: The cluster to check.
        settings: Which of its engines and classes are used.
        thorough: Also start a pod, in a temporary namespace, to check whether nodes can pull the image, and one that
            writes to the object store of outputs, where one is set.
    """
    try:
        version = json.loads(cluster.fetch_text("/version"))
        api_versions = _fetch_api_versions(cluster)
    except ScanflowError as error:
        return [Finding("✗", "API server", str(error), "export KUBECONFIG=a/file; kubectl cluster-info")]
    available_kinds = {
        kind for kind, resource in KINDS.items() if resource.engine is None or resource.api_version in api_versions
    }
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("API server", lambda: [_check_version(cluster, version)]),
        ("engines", lambda: _check_engines(cluster, settings, api_versions)),
        ("rights", lambda: _check_rights(cluster, settings, available_kinds)),
        ("nodes", lambda: _check_nodes(read_kubelet_policies(cluster, limit=MAX_CHECKED_NODES))),
        ("GPUs", lambda: check_node_gpus(cluster)),
        ("GPU claims", lambda: check_device_classes(cluster, settings)),
        ("storage", lambda: [_check_storage(cluster, settings)]),
        ("outputs", lambda: check_outputs_storage(cluster, settings, thorough=thorough)),
        ("metrics", lambda: [_check_metrics(api_versions), _check_prometheus(cluster, settings)]),
        ("gateway", lambda: [_check_gateway(cluster, settings)]),
        ("image", lambda: [_check_image_pull(cluster, settings) if thorough else _check_image(cluster, settings)]),
    ]
    return [finding for what, check in checks for finding in _run_check(what, check, settings.namespace)]


def _run_check(what: str, check: Callable[[], Iterable[Finding]], namespace: str | None) -> list[Finding]:
    """Return the findings of a check; its failure is a finding too, but for what rights in one namespace do not show,
    and need not."""
    try:
        return list(check())
    except AccessDeniedError as error:
        if namespace is None:
            return [Finding("✗", what, f"could not be checked: {error}")]
        return [Finding("–", what, f"not known to who has rights in the namespace {namespace} alone")]
    except ScanflowError as error:
        return [Finding("✗", what, f"could not be checked: {error}")]


def _fetch_api_versions(cluster: Cluster) -> set[str]:
    """Return the API versions of the server, as ``argoproj.io/v1alpha1``."""
    groups = json.loads(cluster.fetch_text("/apis"))["groups"]
    return {version["groupVersion"] for group in groups for version in group["versions"]}


def _check_version(cluster: Cluster, version: Manifest) -> Finding:
    git_version = str(version.get("gitVersion", ""))
    numbers = tuple(int(re.sub(r"\D.*", "", version.get(part, "0")) or 0) for part in ("major", "minor"))
    least = ".".join(str(number) for number in MIN_VERSION)
    if numbers < MIN_VERSION:
        return Finding(
            "✗", "API server", f"Kubernetes {git_version} at {cluster.address}", f"upgrade it to {least} or newer"
        )
    return Finding("✓", "API server", f"Kubernetes {git_version} at {cluster.address}")


def _check_engines(cluster: Cluster, settings: KubernetesSettings, api_versions: set[str]) -> Iterator[Finding]:
    """Yield for each engine whether it is installed, its version, and whether its controller runs."""
    try:
        deployments, _ = cluster.find("Deployment")
    except AccessDeniedError:  # as with rights in one namespace: what is installed is known, not whether it runs
        deployments = []
    controllers = {deployment["metadata"]["name"]: deployment for deployment in deployments}
    needed = {"Workflow", *({"HTTPRoute"} if settings.gateway else ())}
    needed |= {{"seldon": "SeldonDeployment", "kserve": "InferenceService"}.get(settings.serving, "Workflow")}
    for engine in _ENGINES:
        api_version = KINDS[engine.kind].api_version
        problem: Mark = "✗" if engine.kind in needed else "–"
        if api_version not in api_versions:
            yield Finding(problem, engine.name, f"not installed; {engine.purpose}", f"see {engine.install}")
            continue
        controller = controllers.get(engine.controller)
        version = read_controller_version(controller) if controller else ""
        description = f"{api_version}{f', {version}' if version else ''}; {engine.purpose}"
        if controller and not controller.get("status", {}).get("availableReplicas"):
            advice = f"kubectl -n {controller['metadata']['namespace']} describe pods"
            yield Finding(problem, engine.name, f"{description}; its {engine.controller} is not running", advice)
        else:
            yield Finding("✓", engine.name, description)


def _check_rights(cluster: Cluster, settings: KubernetesSettings, available_kinds: set[str]) -> Iterator[Finding]:
    namespace, unused = settings.namespace, {JOB_KINDS[engine] for engine in JOB_KINDS.keys() - {settings.mpi}}
    if settings.gpu_requests != "resource-claims":
        unused |= {"DeviceClass", "ResourceClaimTemplate"}
    kinds = [kind for kind in USED_VERBS if kind in available_kinds - unused]
    missing = list_missing_permissions(cluster, kinds, namespace=namespace)
    user = (read_user(cluster) or "USER") if missing else ""
    where = "in all namespaces" if namespace is None else f"in the namespace {namespace}"
    for resource, verbs in missing.items():
        mark: Mark = "–" if resource == "nodes/proxy" else "✗"
        command = _format_grant(resource, verbs, user, namespace)
        yield Finding(mark, "rights", f"may not {', '.join(verbs)} {resource} {where}", command)
    if not missing:
        yield Finding("✓", "rights", "all that scanflow uses")


def _format_grant(resource: str, verbs: list[str], user: str, namespace: str | None) -> str:
    """Return the command that gives a user the verbs of a resource, for who may give them."""
    name = f"scanflow-{re.sub('[./]', '-', resource)}"
    kind, inside = ("clusterrole", "") if namespace is None else ("role", f" -n {namespace}")
    return (
        f"kubectl create {kind} {name}{inside} --verb={','.join(verbs)} --resource={resource} && "
        f"kubectl create {kind}binding {name}{inside} --{kind}={name} --user={shlex.quote(user)}"
    )


def _check_nodes(policies: list[KubeletPolicy]) -> Iterator[Finding]:
    """Yield the nodes' capacity and, by group of equal policies, whether pods can have exclusive cores."""
    usable = [policy for policy in policies if policy.schedulable]
    if not usable:
        yield Finding("✗", "nodes", f"none of {len(policies)} takes pods", "kubectl describe nodes")
        return
    cores = sum(policy.cores for policy in usable)
    prefix = "first " if len(policies) >= MAX_CHECKED_NODES else ""
    yield Finding("✓", "nodes", f"{len(usable)} of the {prefix}{len(policies)} take pods, {cores:g} cores in all")
    nodes_by_policy = defaultdict(list)
    for policy in usable:
        nodes_by_policy[policy.cpu_manager, policy.topology_manager, policy.memory_manager, policy.why].append(
            policy.node
        )
    for (cpu, topology, memory, why), names in sorted(nodes_by_policy.items(), key=str):
        what, where = "cores alone", ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        if cpu is None:
            yield Finding("–", what, f"not known for {where}: {why}", "needed for affinity cpu and cpumem only")
        elif cpu == "static":
            yield Finding("✓", what, f"{where}: CPU manager static, topology {topology}, memory manager {memory}")
        else:
            advice = f"kubelet --cpu-manager-policy=static, or {_PREFIX}ALLOW_DEGRADED=1"
            yield Finding("–", what, f"{where}: CPU manager {cpu}, so no pod can have them", advice)


def _check_storage(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    classes, _ = cluster.find("StorageClass")
    names = [storage_class["metadata"]["name"] for storage_class in classes]
    default = [
        storage_class["metadata"]["name"]
        for storage_class in classes
        if (storage_class["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    class_name = settings.storage_class or next(iter(default), None)
    if class_name is None:
        advice = f"export {_PREFIX}STORAGE_CLASS=one of {', '.join(names)}" if names else "install one"
        return Finding("✗", "storage", "no StorageClass is the default", advice)
    if class_name not in names:
        advice = f"export {_PREFIX}STORAGE_CLASS=one of {', '.join(names)}" if names else "install one"
        return Finding("✗", "storage", f"there is no StorageClass {class_name!r}", advice)
    provisioner = next(
        storage_class.get("provisioner", "")
        for storage_class in classes
        if storage_class["metadata"]["name"] == class_name
    )
    description = f"{class_name} ({provisioner}), mounted {settings.storage_mode}"
    single = ("local-path", "hostpath", "ebs", "pd.csi", "disk.csi", "cinder")
    if settings.storage_mode == "ReadWriteMany" and any(part in provisioner for part in single):
        advice = f"export {_PREFIX}STORAGE_MODE=ReadWriteOnce, or a class that supports it, such as NFS"
        return Finding("✗", "storage", f"{description}: classes of this kind do not support it", advice)
    return Finding("✓", "storage", description)


def _check_metrics(api_versions: set[str]) -> Finding:
    if "metrics.k8s.io/v1beta1" in api_versions:
        return Finding("✓", "metrics", "metrics.k8s.io; services scale on cpu")
    return Finding("–", "metrics", "no metrics-server; services cannot scale on cpu", "install metrics-server")


def _check_prometheus(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    if settings.prometheus is None:
        advice = f"export {_PREFIX}PROMETHEUS=http://name.namespace:9090"
        return Finding("–", "Prometheus", "not set; services cannot scale on rps, p95, queue or GPUs", advice)
    address = _IN_CLUSTER.fullmatch(settings.prometheus)
    if address is None:
        return Finding("–", "Prometheus", f"{settings.prometheus}: not a Service of the cluster, so it was not queried")
    service = f"{address['name']}:{address['port'] or 80}"
    path = (address["path"] or "").rstrip("/")
    try:
        cluster.fetch_text(f"/api/v1/namespaces/{address['namespace']}/services/{service}/proxy{path}/-/ready")
    except (NotFoundError, UnavailableError) as error:
        advice = f"kubectl -n {address['namespace']} get services"
        return Finding("✗", "Prometheus", f"{settings.prometheus} does not answer: {error}", advice)
    return Finding("✓", "Prometheus", f"{settings.prometheus} is ready")


def _check_gateway(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    if settings.gateway is None:
        advice = f"export {_PREFIX}GATEWAY=namespace/name"
        return Finding("–", "gateway", "not set; a canary's share is set by the number of its instances", advice)
    namespace, _, name = settings.gateway.rpartition("/")
    gateway = cluster.get("Gateway", name, namespace)
    if gateway is None:
        return Finding("✗", "gateway", f"there is no Gateway {settings.gateway!r}", "kubectl get gateways -A")
    for needed in ("Accepted", "Programmed"):
        condition = get_condition(gateway.get("status"), needed)
        if condition.get("status") != "True":
            message = condition.get("message", "no controller has accepted it")
            advice = f"kubectl -n {namespace} describe gateway {name}"
            return Finding("✗", "gateway", f"{settings.gateway} is not {needed.lower()}: {message}", advice)
    addresses = [address["value"] for address in gateway.get("status", {}).get("addresses", [])]
    url = settings.gateway_url or ", ".join(addresses)
    if not url:
        return Finding("✗", "gateway", f"{settings.gateway} has no address", f"export {_PREFIX}GATEWAY_URL=http://host")
    return Finding("✓", "gateway", f"{settings.gateway} at {url}")


def _check_image(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    """Check whether a node has the image already, so that it can be pulled."""
    nodes, _ = cluster.find("Node")
    names = {name for node in nodes for image in node["status"].get("images", []) for name in image.get("names") or ()}
    if any(name == settings.image or name.endswith(f"/{settings.image}") for name in names):
        return Finding("✓", "image", f"{settings.image} is on a node")
    return Finding("–", "image", f"{settings.image} is on no node yet", "try it: scanflow doctor --thorough")


def _check_image_pull(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    """Check by a pod whether nodes can pull and run the image."""
    name = f"scanflow-doctor-{uuid.uuid4().hex[:8]}"
    labels = {"app.kubernetes.io/managed-by": MANAGER}
    if settings.namespace is not None:
        try:
            return _run_image_pod(cluster, settings, name, settings.namespace)
        finally:
            cluster.delete("Pod", name, settings.namespace)
    cluster.create(build_manifest("Namespace", {"name": name, "labels": labels}))
    try:
        return _run_image_pod(cluster, settings, name, name)
    finally:
        cluster.delete("Namespace", name)


def _run_image_pod(cluster: Cluster, settings: KubernetesSettings, name: str, namespace: str) -> Finding:
    container = {
        "name": "main",
        "image": settings.image,
        "imagePullPolicy": "Always",
        "command": ["python", "-c", "import scanflow; print(scanflow.__version__)"],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": build_container_security(),
    }
    spec: Manifest = {
        "restartPolicy": "Never",
        "containers": [container],
        "automountServiceAccountToken": False,
        "securityContext": build_pod_security(),
    }
    metadata = {"name": name, "namespace": namespace}
    start = time.monotonic()
    cluster.create(build_manifest("Pod", metadata, spec=spec))
    pod = next(state for state in _watch_pod(cluster, name, namespace) if _is_decided(state))
    seconds = time.monotonic() - start
    phase = pod.get("status", {}).get("phase", "Pending")
    if phase == "Succeeded":
        version = b"".join(cluster.log(name, namespace)).decode(errors="replace").strip()
        return Finding(
            "✓", "image", f"{settings.image} was pulled and ran in {seconds:.1f} s; it has scanflow {version}"
        )
    if phase == "Failed":
        last_line = b"".join(cluster.log(name, namespace)).decode(errors="replace").strip().rpartition("\n")[2]
        return Finding("✗", "image", f"{settings.image} was pulled, and fails: {last_line}", "scanflow build")
    pending = explain_pending(pod, cluster.find("Event", namespace)[0])
    return Finding("✗", "image", f"{settings.image}: {pending}", f"export {_PREFIX}IMAGE=registry/name:tag")


def _watch_pod(cluster: Cluster, name: str, namespace: str) -> Iterator[Manifest]:
    """Yield the pod as it changes; once more at the timeout, marked as decided."""
    field_selector = f"metadata.name={name}"
    pods, version = cluster.find("Pod", namespace, fields=field_selector)
    yield from pods
    for event in cluster.watch("Pod", namespace, fields=field_selector, since=version, within_s=PULL_TIMEOUT_S):
        yield event.object
    yield {**(cluster.get("Pod", name, namespace) or {}), "decided": True}


def _is_decided(pod: Manifest) -> bool:
    """Return whether a pod has ended, or cannot start."""
    pending = explain_pending(pod) if "metadata" in pod else None
    return (
        pod.get("decided", False)
        or pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
        or (pending is not None and pending.reason in {"ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"})
    )
