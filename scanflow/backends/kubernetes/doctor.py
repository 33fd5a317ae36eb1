"""What a cluster offers, and what to do about what it does not. Nothing is changed, but for a pod if that is asked."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from scanflow.backends.findings import Finding, Mark
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.labels import MANAGER
from scanflow.backends.kubernetes.nodes import KubeletPolicy, kubelet_policies
from scanflow.backends.kubernetes.pods import why_pending
from scanflow.backends.kubernetes.rights import USED, missing_rights
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.errors import NotFoundError, ScanflowError, UnavailableError

LEAST_VERSION: Final = (1, 27)
NODES_LOOKED_AT: Final = 20
PULLED_WITHIN_S: Final = 120.0
_PREFIX: Final = "SCANFLOW_KUBERNETES_"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_IN_CLUSTER: Final = re.compile(
    r"https?://(?P<name>[^.:/]+)\.(?P<namespace>[^.:/]+)[^:/]*(:(?P<port>\d+))?(?P<path>/.*)?"
)


class _Engine(NamedTuple):
    name: str
    kind: str
    controller: str
    """The name of the Deployment that does its work."""

    gives: str
    install: str


_ENGINES: Final = (
    _Engine(
        "Argo Workflows", "Workflow", "workflow-controller", "runs batch workflows", "argo-workflows.readthedocs.io"
    ),
    _Engine("Volcano", "Job", "volcano-controllers", "runs MPI jobs", "volcano.sh/docs/installation"),
    _Engine("MPI Operator", "MPIJob", "mpi-operator", "runs MPI jobs", "github.com/kubeflow/mpi-operator"),
    _Engine("KEDA", "ScaledObject", "keda-operator", "scales services on load, and to none", "keda.sh/docs/deploy"),
    _Engine("Seldon Core", "SeldonDeployment", "seldon-controller-manager", "serves models", "docs.seldon.io"),
    _Engine("KServe", "InferenceService", "kserve-controller-manager", "serves models", "kserve.github.io"),
    _Engine("Gateway API", "HTTPRoute", "", "routes parts of the traffic", "gateway-api.sigs.k8s.io/guides"),
)


def examine(cluster: Cluster, settings: KubernetesSettings, *, thorough: bool = False) -> list[Finding]:
    """Return what was found, in the order in which a person would put it right.

    Args:
        cluster: The one to look at.
        settings: What of it is to be used.
        thorough: Also start a pod, in a namespace that is made and removed, to see whether nodes can pull the image.
    """
    try:
        version = json.loads(cluster.text("/version"))
        groups = _groups(cluster)
    except ScanflowError as error:
        return [Finding("✗", "API server", str(error), "export KUBECONFIG=a/file; kubectl cluster-info")]
    known = {kind for kind, one in KINDS.items() if one.engine is None or one.api_version in groups}
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("API server", lambda: [_version(cluster, version)]),
        ("engines", lambda: _engines(cluster, settings, groups)),
        ("rights", lambda: _rights(cluster, known)),
        ("nodes", lambda: _nodes(kubelet_policies(cluster, limit=NODES_LOOKED_AT))),
        ("storage", lambda: [_storage(cluster, settings)]),
        ("metrics", lambda: [_metrics(groups), _prometheus(cluster, settings)]),
        ("gateway", lambda: [_gateway(cluster, settings)]),
        ("image", lambda: [_pulled(cluster, settings) if thorough else _image(cluster, settings)]),
    ]
    return [finding for what, check in checks for finding in _guarded(what, check)]


def _guarded(what: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what a check finds; what keeps it from looking is a finding too."""
    try:
        return list(check())
    except ScanflowError as error:
        return [Finding("✗", what, f"could not be looked at: {error}")]


def _groups(cluster: Cluster) -> set[str]:
    """Return the API versions that the server has, as ``argoproj.io/v1alpha1``."""
    found = json.loads(cluster.text("/apis"))["groups"]
    return {version["groupVersion"] for group in found for version in group["versions"]}


def _version(cluster: Cluster, version: Manifest) -> Finding:
    said = str(version.get("gitVersion", ""))
    numbers = tuple(int(re.sub(r"\D.*", "", version.get(part, "0")) or 0) for part in ("major", "minor"))
    least = ".".join(str(number) for number in LEAST_VERSION)
    if numbers < LEAST_VERSION:
        return Finding("✗", "API server", f"Kubernetes {said} at {cluster.address}", f"upgrade it to {least} or newer")
    return Finding("✓", "API server", f"Kubernetes {said} at {cluster.address}")


def _engines(cluster: Cluster, settings: KubernetesSettings, groups: set[str]) -> Iterator[Finding]:
    """Yield which engines are there, in which version, and whether their controllers run."""
    deployments, _ = cluster.find("Deployment")
    controllers = {one["metadata"]["name"]: one for one in deployments}
    needed = {"Workflow", *({"HTTPRoute"} if settings.gateway else ())}
    needed |= {{"seldon": "SeldonDeployment", "kserve": "InferenceService"}.get(settings.serving, "Workflow")}
    for engine in _ENGINES:
        api_version = KINDS[engine.kind].api_version
        problem: Mark = "✗" if engine.kind in needed else "–"
        if api_version not in groups:
            yield Finding(problem, engine.name, f"not installed; {engine.gives}", f"see {engine.install}")
            continue
        controller = controllers.get(engine.controller)
        version = _version_of(controller) if controller else ""
        found = f"{api_version}{f', {version}' if version else ''}; {engine.gives}"
        if controller and not controller.get("status", {}).get("availableReplicas"):
            where = f"kubectl -n {controller['metadata']['namespace']} describe pods"
            yield Finding(problem, engine.name, f"{found}; its {engine.controller} does not run", where)
        else:
            yield Finding("✓", engine.name, found)


def _version_of(controller: Manifest) -> str:
    """Return the version of a Deployment, by its labels or its image."""
    labels = controller["metadata"].get("labels") or {}
    image = str(controller["spec"]["template"]["spec"]["containers"][0].get("image", ""))
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    version = labels.get("app.kubernetes.io/version") or tag
    return str(version) if re.match(r"v?\d", version) else ""


def _rights(cluster: Cluster, known: set[str]) -> Iterator[Finding]:
    missing = missing_rights(cluster, [kind for kind in USED if kind in known])
    for resource, verbs in missing.items():
        role = f"scanflow-{re.split('[./]', resource)[0]}"
        command = f"kubectl create clusterrole {role} --verb={','.join(verbs)} --resource={resource}"
        mark: Mark = "–" if resource == "nodes/proxy" else "✗"
        yield Finding(mark, "rights", f"may not {', '.join(verbs)} {resource} in all namespaces", f"{command}, bound")
    if not missing:
        yield Finding("✓", "rights", "all that is used")


def _nodes(policies: list[KubeletPolicy]) -> Iterator[Finding]:
    """Yield, for nodes that are alike together, what they take and whether pods can have cores alone there."""
    usable = [one for one in policies if one.schedulable]
    if not usable:
        yield Finding("✗", "nodes", f"none of {len(policies)} takes pods", "kubectl describe nodes")
        return
    cores = sum(one.cores for one in usable)
    said = "first " if len(policies) >= NODES_LOOKED_AT else ""
    yield Finding("✓", "nodes", f"{len(usable)} of the {said}{len(policies)} take pods, {cores:g} cores in all")
    alike = defaultdict(list)
    for one in usable:
        alike[one.cpu_manager, one.topology_manager, one.memory_manager, one.why].append(one.node)
    for (cpu, topology, memory, why), names in sorted(alike.items(), key=str):
        what, where = "cores alone", ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        if cpu is None:
            yield Finding("–", what, f"not known of {where}: {why}", "needed for affinity cpu and cpumem only")
        elif cpu == "static":
            yield Finding("✓", what, f"{where}: CPU manager static, topology {topology}, memory manager {memory}")
        else:
            advice = f"kubelet --cpu-manager-policy=static, or {_PREFIX}ALLOW_DEGRADED=1"
            yield Finding("–", what, f"{where}: CPU manager {cpu}, so none can have them", advice)


def _storage(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    classes, _ = cluster.find("StorageClass")
    names = [one["metadata"]["name"] for one in classes]
    default = [
        one["metadata"]["name"]
        for one in classes
        if (one["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    wanted = settings.storage_class or next(iter(default), None)
    if wanted is None:
        advice = f"export {_PREFIX}STORAGE_CLASS=one of {', '.join(names)}" if names else "install one"
        return Finding("✗", "storage", "no StorageClass is the default", advice)
    if wanted not in names:
        advice = f"export {_PREFIX}STORAGE_CLASS=one of {', '.join(names)}" if names else "install one"
        return Finding("✗", "storage", f"there is no StorageClass {wanted!r}", advice)
    provisioner = next(one.get("provisioner", "") for one in classes if one["metadata"]["name"] == wanted)
    found = f"{wanted} ({provisioner}), mounted {settings.storage_mode}"
    single = ("local-path", "hostpath", "ebs", "pd.csi", "disk.csi", "cinder")
    if settings.storage_mode == "ReadWriteMany" and any(part in provisioner for part in single):
        advice = f"export {_PREFIX}STORAGE_MODE=ReadWriteOnce, or a class that can, such as NFS"
        return Finding("✗", "storage", f"{found}: classes of this kind refuse that", advice)
    return Finding("✓", "storage", found)


def _metrics(groups: set[str]) -> Finding:
    if "metrics.k8s.io/v1beta1" in groups:
        return Finding("✓", "metrics", "metrics.k8s.io; services scale on cpu")
    return Finding("–", "metrics", "no metrics-server; services cannot scale on cpu", "install metrics-server")


def _prometheus(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    if settings.prometheus is None:
        advice = f"export {_PREFIX}PROMETHEUS=http://name.namespace:9090"
        return Finding("–", "Prometheus", "not set; services cannot scale on rps, p95 or queue", advice)
    place = _IN_CLUSTER.fullmatch(settings.prometheus)
    if place is None:
        return Finding("–", "Prometheus", f"{settings.prometheus}: not a Service of the cluster, so it was not asked")
    service = f"{place['name']}:{place['port'] or 80}"
    path = (place["path"] or "").rstrip("/")
    try:
        cluster.text(f"/api/v1/namespaces/{place['namespace']}/services/{service}/proxy{path}/-/ready")
    except (NotFoundError, UnavailableError) as error:
        look = f"kubectl -n {place['namespace']} get services"
        return Finding("✗", "Prometheus", f"{settings.prometheus} does not answer: {error}", look)
    return Finding("✓", "Prometheus", f"{settings.prometheus} is ready")


def _gateway(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    if settings.gateway is None:
        advice = f"export {_PREFIX}GATEWAY=namespace/name"
        return Finding("–", "gateway", "not set; a canary's share is kept by numbers of instances", advice)
    namespace, _, name = settings.gateway.rpartition("/")
    found = cluster.get("Gateway", name, namespace)
    if found is None:
        return Finding("✗", "gateway", f"there is no Gateway {settings.gateway!r}", "kubectl get gateways -A")
    conditions = {one["type"]: one for one in found.get("status", {}).get("conditions", [])}
    for needed in ("Accepted", "Programmed"):
        if conditions.get(needed, {}).get("status") != "True":
            message = conditions.get(needed, {}).get("message", "no controller has looked at it")
            look = f"kubectl -n {namespace} describe gateway {name}"
            return Finding("✗", "gateway", f"{settings.gateway} is not {needed.lower()}: {message}", look)
    addresses = [one["value"] for one in found.get("status", {}).get("addresses", [])]
    where = settings.gateway_url or ", ".join(addresses)
    if not where:
        return Finding("✗", "gateway", f"{settings.gateway} has no address", f"export {_PREFIX}GATEWAY_URL=http://host")
    return Finding("✓", "gateway", f"{settings.gateway} at {where}")


def _image(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    """Say whether a node has the image already, which tells without a pod that it can be pulled."""
    nodes, _ = cluster.find("Node")
    names = {name for node in nodes for image in node["status"].get("images", []) for name in image.get("names") or ()}
    if any(name == settings.image or name.endswith(f"/{settings.image}") for name in names):
        return Finding("✓", "image", f"{settings.image} is on a node")
    return Finding("–", "image", f"{settings.image} is on no node yet", "try it: scanflow doctor --thorough")


def _pulled(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    """Start a pod with the image, and say whether it ran."""
    namespace = f"scanflow-doctor-{uuid.uuid4().hex[:8]}"
    labels = {"app.kubernetes.io/managed-by": MANAGER}
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
    try:
        return _tried(cluster, settings, namespace)
    finally:
        cluster.delete("Namespace", namespace)


def _tried(cluster: Cluster, settings: KubernetesSettings, namespace: str) -> Finding:
    container = {
        "name": "main",
        "image": settings.image,
        "imagePullPolicy": "Always",
        "command": ["python", "-c", "import scanflow; print(scanflow.__version__)"],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
    }
    spec: Manifest = {"restartPolicy": "Never", "containers": [container], "automountServiceAccountToken": False}
    metadata = {"name": "image", "namespace": namespace}
    start = time.monotonic()
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    pod = next(one for one in _states(cluster, namespace) if _is_decided(one))
    took = time.monotonic() - start
    phase = pod.get("status", {}).get("phase", "Pending")
    if phase == "Succeeded":
        said = b"".join(cluster.log("image", namespace)).decode(errors="replace").strip()
        return Finding("✓", "image", f"{settings.image} was pulled and ran in {took:.1f} s; it has scanflow {said}")
    if phase == "Failed":
        said = b"".join(cluster.log("image", namespace)).decode(errors="replace").strip().rpartition("\n")[2]
        return Finding("✗", "image", f"{settings.image} was pulled, and fails: {said}", "scanflow build")
    waits = why_pending(pod, cluster.find("Event", namespace)[0])
    return Finding("✗", "image", f"{settings.image}: {waits}", f"export {_PREFIX}IMAGE=registry/name:tag")


def _states(cluster: Cluster, namespace: str) -> Iterator[Manifest]:
    """Yield the pod as it is now and as it becomes; at the end of the time once more, to be taken as it is."""
    named = "metadata.name=image"
    pods, version = cluster.find("Pod", namespace, fields=named)
    yield from pods
    for event in cluster.watch("Pod", namespace, fields=named, since=version, within_s=PULLED_WITHIN_S):
        yield event.object
    yield {**(cluster.get("Pod", "image", namespace) or {}), "decided": True}


def _is_decided(pod: Manifest) -> bool:
    """Return whether a pod has ended, or will not begin."""
    waits = why_pending(pod) if "metadata" in pod else None
    return (
        pod.get("decided", False)
        or pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
        or (waits is not None and waits.reason in {"ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"})
    )
