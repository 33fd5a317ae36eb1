"""The parts of pods that steps, instances, agents and our own programs share: the security contexts of Kubernetes' Pod
Security Standard ``restricted``, and secrets by reference to Secrets of the environment's namespace. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scanflow.app.secrets import Secret
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.errors import UnsupportedError
from scanflow.files.secret_sources import format_pod_variable

_K8S: Final = "k8s:"
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


def check_pod_secrets(secrets: Iterable[Secret], *, who: str) -> None:
    """Check that pods can have these secrets.

    Raises:
        UnsupportedError: one is in a file of this machine; the message begins with ``who``.
    """
    for secret in secrets:
        if secret.kind == "file":
            raise UnsupportedError(
                f"{who} uses the secret {secret.source!r}, and pods do not have the files of this machine. Write "
                "k8s:SECRET/KEY, after: kubectl create secret generic SECRET --from-file=KEY=PATH"
            )


def build_secret_variables(sources: Iterable[str]) -> list[Manifest]:
    """Return the variables by which a container gets the secrets ``k8s:SECRET/KEY``; other references need none."""
    variables = []
    for source in sorted({source for source in sources if source.startswith(_K8S)}):
        name, _, key = source.removeprefix(_K8S).partition("/")
        reference = {"secretKeyRef": {"name": name, "key": key}}
        variables.append({"name": format_pod_variable(source), "valueFrom": reference})
    return variables
