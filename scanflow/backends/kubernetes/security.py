"""Security contexts of pods and containers: Kubernetes' Pod Security Standard ``restricted``. Pure."""

from __future__ import annotations

from typing import Final

from scanflow.backends.kubernetes.kinds import Manifest

USER: Final = 10001
"""The user and group of the images in ``deploy/images``."""


def build_pod_security() -> Manifest:
    """Return a pod's ``securityContext``: no root user, ownership of its volumes, and only the usual system calls."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def build_container_security() -> Manifest:
    """Return a container's ``securityContext``: no privilege escalation, and write access to its volumes only."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def build_helper_security() -> Manifest:
    """Return the ``securityContext`` of an engine's own container, which may need its root file system."""
    return {name: value for name, value in build_container_security().items() if name != "readOnlyRootFilesystem"}
