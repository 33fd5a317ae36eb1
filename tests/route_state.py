"""Whether the controllers of a Gateway have accepted a route, by its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scanflow.backends.kubernetes.kinds import Manifest


class RouteState(NamedTuple):
    """The status of a route, from the controllers of its Gateways."""

    accepted: bool
    """Whether each of its Gateways has accepted its current generation."""

    parents: tuple[str, ...]
    """The Gateways that have accepted it: ``namespace/name``."""

    problem: str | None
    """Why a Gateway has not accepted it, as reported; None: no Gateway reports a problem."""


def read_route_state(route: Manifest) -> RouteState:
    """Return the state of a route, from its status."""
    required = {_format_parent(ref, route) for ref in route["spec"].get("parentRefs", ())}
    accepting: set[str] = set()
    problem = None
    for parent in route.get("status", {}).get("parents", ()):
        conditions = {
            condition["type"]: condition for condition in parent.get("conditions", ()) if _is_current(condition, route)
        }
        failed = next((condition for condition in conditions.values() if condition["status"] != "True"), None)
        if failed is not None:
            problem = f"{failed['type']}: {failed.get('message') or failed.get('reason')}"
        elif "Accepted" in conditions:
            accepting.add(_format_parent(parent["parentRef"], route))
    return RouteState(required <= accepting and problem is None, tuple(sorted(accepting)), problem)


def _format_parent(ref: Mapping[str, Any], route: Manifest) -> str:
    return f"{ref.get('namespace', route['metadata']['namespace'])}/{ref['name']}"


def _is_current(condition: Mapping[str, Any], route: Manifest) -> bool:
    generation = route["metadata"].get("generation", 0)
    return bool(condition.get("observedGeneration", generation) >= generation)
