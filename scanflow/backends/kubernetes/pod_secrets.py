"""Secrets in pods: by reference to Secrets of the environment's namespace. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scanflow.app.secrets import Secret
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.errors import UnsupportedError
from scanflow.files.secret_sources import format_pod_variable

_K8S = "k8s:"


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
