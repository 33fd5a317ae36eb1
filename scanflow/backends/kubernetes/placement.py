"""Translate ``sf.Affinity`` to fields of a pod's spec. Pure.

Kubernetes schedules a pod once, by the pods that exist then. So a wish that may fail is written as a preference, and
what must hold as a requirement:

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
from scanflow.backends.kubernetes.kinds import Manifest, drop_empty
from scanflow.backends.kubernetes.object_labels import APP, RUN, SERVICE, STEP, TEAM
from scanflow.errors import UnsupportedError

NODE: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
_WEIGHT: Final = 100  # the most that a preference can weigh


def build_step_placement(affinity: Affinity | str | None, *, app: str, team: str, run: str) -> Manifest:
    """Return ``nodeSelector`` and ``affinity`` of a batch step's pods, where not empty.

    Pods of steps carry the labels of their app, team, run and step, those of instances of their service.
    """
    if not isinstance(affinity, Affinity):
        return {}
    own = {APP: app, TEAM: team}
    near = [_build_preference(_build_pod_term({**own, RUN: run}, STEP, affinity.near))] if affinity.near else []
    apart = [_build_pod_term({**own, RUN: run}, STEP, affinity.apart_from)] if affinity.apart_from else []
    avoided = (
        [_build_preference(_build_pod_term(own, SERVICE, affinity.avoid_services))] if affinity.avoid_services else []
    )
    return drop_empty(
        nodeSelector=dict(affinity.node_selector),
        affinity=drop_empty(
            podAffinity=drop_empty(preferredDuringSchedulingIgnoredDuringExecution=near),
            podAntiAffinity=drop_empty(
                requiredDuringSchedulingIgnoredDuringExecution=apart,
                preferredDuringSchedulingIgnoredDuringExecution=avoided,
            ),
        ),
    )


def build_instance_placement(services: Iterable[Service], labels: Mapping[str, str]) -> Manifest:
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
            "affinity.avoid_services": (affinity.avoid_services, "only batch steps can avoid services."),
        }
        for field, (requested, problem) in problems.items():
            if requested:
                raise UnsupportedError(
                    f"Service {node.name!r}: the backend 'kubernetes' does not support {field}: {problem}"
                )
        for label, value in affinity.node_selector.items():
            if selected.setdefault(label, value) != value:
                raise UnsupportedError(
                    f"Service {node.name!r}: the backend 'kubernetes' does not support affinity.node_selector: it asks "
                    f"for {label}={value}, another node of the graph for {label}={selected[label]}, and all are in one "
                    "pod. Make two workflows."
                )
    return drop_empty(
        nodeSelector=selected,
        topologySpreadConstraints=[_build_spread_constraint(topology, labels) for topology in (NODE, ZONE)],
    )


def _build_spread_constraint(topology: str, labels: Mapping[str, str]) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": topology,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(labels)},
    }


def _build_pod_term(labels: Mapping[str, str], label: str, values: Iterable[str]) -> Manifest:
    """Return the affinity term of nodes with pods that have these labels, and one of the values of ``label``."""
    chosen = {"key": label, "operator": "In", "values": list(values)}
    return {"topologyKey": NODE, "labelSelector": {"matchLabels": dict(labels), "matchExpressions": [chosen]}}


def _build_preference(term: Manifest) -> Manifest:
    return {"weight": _WEIGHT, "podAffinityTerm": term}
