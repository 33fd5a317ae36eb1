"""The errors of an API server's answers, each of the class that shows who can act on it. Pure."""

from __future__ import annotations

from scanflow.backends.kubernetes.kinds import KINDS, Manifest, build_group_path
from scanflow.errors import (
    AccessDeniedError,
    InvalidError,
    NotFoundError,
    ScanflowError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)


class ConflictError(UsageError):
    """An object exists already, was changed meanwhile, or another manager owns a field that was to be set."""


class ExpiredError(UnavailableError):
    """The version that a watch started from is too old: list again, and watch from there."""


def build_missing_kind_error(kind: str) -> UnsupportedError:
    """Return the error for a kind that the cluster does not have."""
    resource = KINDS[kind]
    engine = resource.engine or "a newer Kubernetes"
    return UnsupportedError(
        f"The cluster has no {kind} ({resource.api_version}): it needs {engine}. Install it, then check: "
        "scanflow doctor --backend kubernetes"
    )


def build_api_error(code: int, status: Manifest, path: str) -> ScanflowError:
    """Return the error, of the class that shows who can act on it, with the API server's message."""
    reason, message = str(status.get("reason", "")), str(status.get("message") or f"status {code}")
    if code == 401:
        return AccessDeniedError(
            f"The cluster could not authenticate the request: {message}. Renew the kubeconfig's credentials."
        )
    if code == 403 and "exceeded quota" in message:
        return UsageError(f"The request exceeds the namespace's quota: {message}. Raise the quota, or request less.")
    if any(words in message for words in ("denied the request", "denied request", "violates PodSecurity")):
        return InvalidError(
            f"The cluster's admission control rejects {_describe_object(path, status)}: {message}. Change what it "
            "rejects, or ask the cluster's administrator to allow it."
        )
    if "failed calling webhook" in message:
        return UnavailableError(
            f"The cluster cannot admit {_describe_object(path, status)} now: {message}. Is the webhook's server up? "
            "Look: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"
        )
    if code == 403:
        return AccessDeniedError(
            f"The cluster forbids the request: {message}. Look: scanflow doctor --backend kubernetes"
        )
    if code == 404:
        return _build_not_found_error(message, path)
    if code == 409:
        return ConflictError(message)
    if code == 410 or reason == "Expired":
        return ExpiredError(message)
    if code in {400, 413, 415, 422}:
        return InvalidError(f"The cluster rejects {_describe_object(path, status)}: {message}")
    return UnavailableError(f"The API server could not handle the request ({code}): {message}")


def _describe_object(path: str, status: Manifest) -> str:
    """Describe the object at a path: ``deployments 'a' of the namespace 'b'``; a new one by the server's answer."""
    parts = path.split("/")
    if "namespaces" not in parts or len(parts) < (at := parts.index("namespaces")) + 3:
        return path
    _, namespace, plural, *names = parts[at:]
    name = next(iter(names), "") or (status.get("details") or {}).get("name", "")
    return f"{plural}{f' {name!r}' if name else ''} of the namespace {namespace!r}"


def _build_not_found_error(message: str, path: str) -> ScanflowError:
    """Return the error for a missing object or, by the API server's message, for a missing kind."""
    is_kind = "could not find the requested resource" in message or "page not found" in message
    kind = find_kind(path) if is_kind else None
    return NotFoundError(message) if kind is None else build_missing_kind_error(kind)


def find_kind(path: str) -> str | None:
    """Return the kind of the object or list at a path."""
    for kind, resource in KINDS.items():
        if path.startswith(build_group_path(resource.api_version)) and resource.plural in path.split("/"):
            return kind
    return None
