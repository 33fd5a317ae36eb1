"""On which nodes pods run: what ``sf.Affinity`` asks for, as fields of a pod's spec. Pure.

Kubernetes decides where a pod goes once, when it starts, and by the pods that are there then. So a wish that the
scheduler may only try to meet is written as a preference, and what must hold as a requirement:

* ``node_selector`` and ``apart_from`` must hold; a pod waits until they can.
* ``near`` is preferred: the pod of a step that has ended is nowhere, and nothing could be near it.
* ``avoid_services`` is preferred: where the service has pods on all nodes, a step runs on any of them.
* The instances of a service are spread over nodes and zones, where there are several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from scanflow.app.resources import Affinity
from scanflow.app.service import Service
from scanflow.backends.kubernetes.kinds import Manifest, given
from scanflow.backends.kubernetes.labels import APP, RUN, SERVICE, STEP, TEAM
from scanflow.errors import UnsupportedError

NODE: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
_WEIGHT: Final = 100  # the most that a preference can weigh


def step_placement(affinity: Affinity | str | None, *, app: str, team: str, run: str) -> Manifest:
    """Return ``nodeSelector`` and ``affinity`` of a batch step's pods, what there is of them.

    Pods of steps carry the labels of their app, team, run and step, those of instances of their service.
    """
    if not isinstance(affinity, Affinity):
        return {}
    own = {APP: app, TEAM: team}
    near = [_preferred(_pods({**own, RUN: run}, STEP, affinity.near))] if affinity.near else []
    apart = [_pods({**own, RUN: run}, STEP, affinity.apart_from)] if affinity.apart_from else []
    avoided = [_preferred(_pods(own, SERVICE, affinity.avoid_services))] if affinity.avoid_services else []
    return given(
        nodeSelector=dict(affinity.node_selector),
        affinity=given(
            podAffinity=given(preferredDuringSchedulingIgnoredDuringExecution=near),
            podAntiAffinity=given(
                requiredDuringSchedulingIgnoredDuringExecution=apart,
                preferredDuringSchedulingIgnoredDuringExecution=avoided,
            ),
        ),
    )


def instance_placement(services: Iterable[Service], labels: Mapping[str, str]) -> Manifest:
    """Return ``nodeSelector`` and ``topologySpreadConstraints`` of the pods of an online workflow.

    Args:
        services: The nodes of its graph. All are in each pod, so that ``near`` always holds.
        labels: What selects the pods that are spread: those of the revision.

    Raises:
        UnsupportedError: nodes ask for what one pod cannot have.
    """
    selected: dict[str, str] = {}
    for node in services:
        affinity = node.affinity if isinstance(node.affinity, Affinity) else Affinity()
        problems = {
            "affinity.apart_from": (affinity.apart_from, "all nodes of a graph are in one pod. Make two workflows."),
            "affinity.avoid_services": (affinity.avoid_services, "batch steps keep off services, not services."),
        }
        for field, (wanted, problem) in problems.items():
            if wanted:
                raise UnsupportedError(
                    f"Service {node.name!r}: the backend 'kubernetes' cannot honour {field}: {problem}"
                )
        for label, value in affinity.node_selector.items():
            if selected.setdefault(label, value) != value:
                raise UnsupportedError(
                    f"Service {node.name!r}: the backend 'kubernetes' cannot honour affinity.node_selector: it asks "
                    f"for {label}={value}, another node of the graph for {label}={selected[label]}, and all are in one "
                    "pod. Make two workflows."
                )
    return given(nodeSelector=selected, topologySpreadConstraints=[_spread(one, labels) for one in (NODE, ZONE)])


def _spread(topology: str, labels: Mapping[str, str]) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": topology,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(labels)},
    }


def _pods(labels: Mapping[str, str], label: str, values: Iterable[str]) -> Manifest:
    """Return a term: the nodes that have pods with these labels, and with one of the values of another."""
    chosen = {"key": label, "operator": "In", "values": list(values)}
    return {"topologyKey": NODE, "labelSelector": {"matchLabels": dict(labels), "matchExpressions": [chosen]}}


def _preferred(term: Manifest) -> Manifest:
    return {"weight": _WEIGHT, "podAffinityTerm": term}
