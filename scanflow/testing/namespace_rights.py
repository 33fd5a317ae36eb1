"""The rights of the stock role ``admin`` in one namespace, as a cluster in memory checks them. Pure."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from scanflow.backends.kubernetes.kinds import KINDS, Manifest

_READ: Final = frozenset({"get", "list", "watch"})
_READ_ONLY: Final = frozenset({"LimitRange", "Namespace", "ResourceQuota"})
_FOR_ALL: Final = frozenset({"SelfSubjectAccessReview", "SelfSubjectReview"})
_VERBS: Final = {"apply": "patch", "find": "list"}


@dataclass(frozen=True, slots=True)
class NamespaceRights:
    """What the role ``admin`` allows in a namespace, and what each user may do besides it."""

    namespace: str
    engines: Collection[str] = ("Argo Workflows",)
    """The engines whose kinds are aggregated to the role: the installation of Argo does that."""

    def allows(self, verb: str, kind: str, namespace: str | None, name: str | None = None) -> bool:
        """Return whether a request is allowed. ``verb``: of a cluster's method, or of the API."""
        if kind in _FOR_ALL:
            return True
        verb, resource = _VERBS.get(verb, verb), KINDS[kind]
        where = name if kind == "Namespace" else namespace
        if where != self.namespace or not (resource.namespaced or kind == "Namespace"):
            return False
        if resource.engine is not None and resource.engine not in self.engines:
            return False
        return kind not in _READ_ONLY or verb in _READ

    def allows_path(self, path: str) -> bool:
        """Return whether a document of the API server may be read: discovery, and what is in the namespace."""
        parts = path.strip("/").split("/")
        if "namespaces" in parts:
            return parts[parts.index("namespaces") + 1] == self.namespace
        return "nodes" not in parts


def review_access(
    manifest: Manifest, rights: NamespaceRights | None, denied: Collection[tuple[str, str]] = ()
) -> Manifest:
    """Return the answer to who asks the cluster what they may do, or who they are.

    Args:
        manifest: The question: a SelfSubjectAccessReview, or a SelfSubjectReview.
        rights: What is allowed. None: everything.
        denied: What is not allowed in spite of that: verbs, each with a resource.
    """
    if manifest["kind"] == "SelfSubjectReview":
        return {**manifest, "status": {"userInfo": {"username": "system:serviceaccount:team:ada"}}}
    attributes = manifest["spec"]["resourceAttributes"]
    verb, resource, namespace = attributes["verb"], attributes["resource"], attributes.get("namespace")
    allowed = (verb, resource) not in denied
    if rights is not None:
        own_kinds = [kind for kind, info in KINDS.items() if info.plural == resource]
        allowed &= all(rights.allows(verb, kind, namespace) for kind in own_kinds)
    return {**copy.deepcopy(manifest), "status": {"allowed": allowed}}
