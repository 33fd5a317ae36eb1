"""The client of the API server: objects as plain mappings, its errors as ours. No other module sends requests to it.

lightkube reads the kubeconfig, certificates, tokens and credential plugins, and makes the HTTP client; the requests
are sent here, since its typed resources have no proxies, no raw logs and no unknown fields.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeVar

import httpx2
from lightkube import Client
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError
from pydantic_core import from_json

from scanflow.backends.kubernetes.api_errors import ConflictError, build_api_error, build_missing_kind_error, find_kind
from scanflow.backends.kubernetes.kinds import KINDS, Manifest, build_group_path, build_object_path, drop_empty
from scanflow.backends.kubernetes.kubeconfig import read_kubeconfig
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import MANAGER
from scanflow.backends.kubernetes.request_body import describe_manifest, encode_body
from scanflow.errors import (
    AccessDeniedError,
    NotFoundError,
    ScanflowError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)

_PAGE: Final = 500
_TRIES: Final = 20
_NAMESPACE_HINT: Final = (
    "With rights in one namespace alone, name it, and the application is there: export "
    "SCANFLOW_KUBERNETES_NAMESPACE=NAMESPACE"
)
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_CASCADE: Final = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}

Changed = TypeVar("Changed")


def retry_on_conflict(what: str, attempt: Callable[[], Changed]) -> Changed:
    """Call ``attempt``, which reads, changes and writes an object, again while the write conflicts.

    Raises:
        UnavailableError: every attempt conflicted. ``what`` names the object.
    """
    for _ in range(_TRIES):
        try:
            return attempt()
        except ConflictError:
            continue
    raise UnavailableError(f"{what} is being changed by other clients. Try again in a moment.")


class WatchEvent(NamedTuple):
    """An event of a watch."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Manifest


class Cluster:
    """The client of one cluster. It connects on first use; threads may share it. Close it after use."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._closed = False
        self._reading = 0
        """The number of requests and watches in flight."""

    # Objects

    def apply(self, manifest: Manifest, *, force: bool = False, dry_run: bool = False) -> Manifest:
        """Create or change an object by server-side apply; return it.

        Args:
            manifest: The fields to own. Fields of an earlier apply that are missing here are removed.
            force: Take fields over from other managers.
            dry_run: Check everything, admission included, and change nothing.

        Raises:
            ConflictError: another manager set a field to something else.
        """
        params = {"fieldManager": MANAGER, "force": str(force).lower(), **_build_dry_run_params(dry_run)}
        return self.fetch_json(
            "PATCH",
            _build_path(manifest),
            params=params,
            headers={"Content-Type": "application/apply-patch+yaml"},
            content=encode_body(manifest, what=describe_manifest(manifest)),
        )

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create an object, and return it.

        Raises:
            ConflictError: there is one of that name.
        """
        path = _build_path(manifest).rpartition("/")[0] if "name" in manifest["metadata"] else _build_path(manifest)
        return self.fetch_json(
            "POST",
            path,
            params={"fieldManager": MANAGER, **_build_dry_run_params(dry_run)},
            headers={"Content-Type": "application/json"},
            content=encode_body(manifest, what=describe_manifest(manifest)),
        )

    def get(
        self, kind: str, name: str, namespace: str | None = None, *, metadata_only: bool = False
    ) -> Manifest | None:
        """Return an object, or only its ``metadata``; None: there is none."""
        headers = {"Accept": _METADATA} if metadata_only else None
        try:
            return self.fetch_json("GET", build_object_path(kind, name, namespace=namespace), headers=headers)
        except NotFoundError:
            return None

    def find(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> tuple[list[Manifest], str]:
        """Return the objects of a kind, in one namespace or in all, and the version to watch from.

        ``managedFields`` are dropped, as in :meth:`watch`: they are half of an object's size. ``metadata_only``:
        all but ``metadata`` is dropped, by the API server.

        Raises:
            UnsupportedError: the cluster has no such kind.
        """
        objects: list[Manifest] = []
        params = {"limit": str(_PAGE)} | drop_empty(labelSelector=labels, fieldSelector=fields)
        own_type = {"apiVersion": KINDS[kind].api_version, "kind": kind}
        headers = {"Accept": _METADATA_LIST} if metadata_only else None
        while True:
            page = self.fetch_json("GET", build_object_path(kind, namespace=namespace), params=params, headers=headers)
            objects += [{**own_type, **_drop_managed_fields(manifest), **own_type} for manifest in page["items"] or ()]
            if not (more := page["metadata"].get("continue")):
                return objects, page["metadata"].get("resourceVersion", "")
            params["continue"] = more

    def list_optional(self, kind: str, namespace: str, *, labels: str = "") -> list[Manifest]:
        """Return the objects of a kind, none where the cluster lacks it or forbids the caller to list it."""
        try:
            return self.find(kind, namespace, labels=labels)[0]
        except (AccessDeniedError, UnsupportedError):
            return []

    def has_kind(self, kind: str) -> bool:
        """Return whether the cluster has a kind, which each user may ask, whatever else he may do."""
        resource = KINDS[kind]
        try:
            listing = self.fetch_json("GET", build_group_path(resource.api_version))
        except NotFoundError:
            return False
        return any(entry["name"] == resource.plural for entry in listing["resources"])

    def has_any(self, kind: str, *, labels: str) -> bool:
        """Return whether there is an object of a kind, in any namespace."""
        return bool(
            self.fetch_json("GET", build_object_path(kind), params={"limit": "1", "labelSelector": labels})["items"]
        )

    def patch(
        self, kind: str, name: str, namespace: str | None, patch: Any, *, subresource: str = "", dry_run: bool = False
    ) -> Manifest:
        """Change fields of an object by a JSON merge patch (None removes one); return it."""
        return self.fetch_json(
            "PATCH",
            build_object_path(kind, name, namespace=namespace) + (f"/{subresource}" if subresource else ""),
            params={"fieldManager": MANAGER, **_build_dry_run_params(dry_run)},
            headers={"Content-Type": "application/merge-patch+json"},
            content=encode_body(patch, what=f"The change of the {kind} {name!r}"),
        )

    def delete(
        self,
        kind: str,
        name: str,
        namespace: str | None = None,
        *,
        grace_s: int | None = None,
        version: str | None = None,
    ) -> bool:
        """Delete an object and its dependents, in the background; return whether it existed.

        Raises:
            ConflictError: it has another ``resourceVersion`` than ``version``.
        """
        options: dict[str, Any] = _CASCADE if grace_s is None else {**_CASCADE, "gracePeriodSeconds": grace_s}
        if version is not None:
            options = {**options, "preconditions": {"resourceVersion": version}}
        try:
            self.fetch_json("DELETE", build_object_path(kind, name, namespace=namespace), json=options)
        except NotFoundError:
            return False
        return True

    def watch(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        since: str = "",
        within_s: float = 60.0,
        bookmarks: bool = False,
    ) -> Iterator[WatchEvent]:
        """Yield changes after the version ``since`` of a list, as they happen, until ``within_s`` has passed.

        To go on, watch again from the ``resourceVersion`` of the last object. Where objects seldom change, that version
        expires meanwhile: ``bookmarks`` are objects with nothing but a newer one.

        Raises:
            ExpiredError: ``since`` is too old.
        """
        params = {"watch": "true", "timeoutSeconds": str(max(1, round(within_s)))} | drop_empty(
            labelSelector=labels,
            fieldSelector=fields,
            resourceVersion=since,
            allowWatchBookmarks="true" if bookmarks else "",
        )
        timeout = httpx2.Timeout(self._settings.request_timeout_s, read=within_s + self._settings.request_timeout_s)
        with self._stream(build_object_path(kind, namespace=namespace), params, timeout) as response:
            for line in _split_lines(response):
                event = from_json(line, cache_strings="all")
                if event["type"] == "ERROR":
                    raise self._build_error(
                        int(event["object"].get("code", 500)), event["object"], build_object_path(kind)
                    )
                if event["type"] != "BOOKMARK" or bookmarks:
                    yield WatchEvent(event["type"], _drop_managed_fields(event["object"]))

    # Pods

    def log(
        self,
        pod: str,
        namespace: str,
        *,
        container: str | None = None,
        follow: bool = False,
        since: str | None = None,
        timestamps: bool = False,
        previous: bool = False,
        within_s: float = 60.0,
    ) -> Iterator[bytes]:
        """Yield a container's log as it grows; with ``follow`` until it ends or is silent for ``within_s``.

        Args:
            pod: Its name.
            namespace: Where it is.
            container: Its name. None: the only one.
            follow: Go on while it runs.
            since: Only what was written after this time (RFC 3339).
            timestamps: Begin each line with its time.
            previous: What the container wrote before it was restarted.
            within_s: The longest silence.
        """
        params = drop_empty(
            container=container or "",
            sinceTime=since or "",
            follow="true" if follow else "",
            timestamps="true" if timestamps else "",
            previous="true" if previous else "",
        )
        timeout = httpx2.Timeout(self._settings.request_timeout_s, read=within_s)
        with self._stream(f"{build_object_path('Pod', pod, namespace=namespace)}/log", params, timeout) as response:
            try:
                yield from response.iter_bytes()
            except httpx2.ReadTimeout:
                return

    def exec(self, pod: str, namespace: str, command: list[str], *, container: str | None = None) -> str:
        """Run a command in a container; return its output.

        Raises:
            UnavailableError: the container does not run, or the command failed.
        """
        try:
            with Client(self._config, trust_env=True) as client:
                completed = client.exec(
                    pod,
                    namespace=namespace,
                    container=container,
                    command=command,
                    stdout=True,
                    stderr=True,
                    timeout=self._settings.request_timeout_s,
                )
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise UnavailableError(
                f"The command {command[0]!r} could not be run in the pod {namespace}/{pod}: {error}"
            ) from error
        if completed.exit_code:
            text = str(completed.stderr or completed.stdout or "").strip()
            raise UnavailableError(f"{command[0]!r} failed in the pod {namespace}/{pod}: {text:.300}")
        return str(completed.stdout or "")

    def fetch_text(self, path: str, *, timeout_s: float | None = None) -> str:
        """Return the text at a path of the API server, such as ``/version`` or ``/api/v1/nodes/n/proxy/configz``.

        ``timeout_s``: limit of this request. None: that of all requests.
        """
        return self._send("GET", path, **({} if timeout_s is None else {"timeout": timeout_s})).text

    # Connections

    @property
    def address(self) -> str:
        """The API server's address."""
        return str(self._config.cluster.server)

    def close(self) -> None:
        """Close the connections, as soon as the last request or watch of other threads has ended."""
        with self._lock:
            self._closed = True
            self._release()

    def _release(self) -> None:
        # Never while a thread reads: the next connection may reuse the closed file descriptor, and the reader would
        # take its bytes.
        if self._closed and not self._reading and "_client" in self.__dict__:
            self._client.close()

    @contextmanager
    def _acquire_client(self) -> Iterator[httpx2.Client]:
        with self._lock:
            if self._closed:
                raise RuntimeError("The connections to the cluster are closed.")
            client = self._client
            self._reading += 1
        try:
            yield client
        except (httpx2.HTTPError, ConfigError, OSError) as error:
            raise self._build_unreachable_error(error) from error
        finally:
            with self._lock:
                self._reading -= 1
                self._release()

    @cached_property
    def _config(self) -> SingleConfig:
        return read_kubeconfig(self._settings)

    @cached_property
    def _client(self) -> httpx2.Client:
        timeout = httpx2.Timeout(self._settings.request_timeout_s)
        try:
            client = client_adapter.Client(self._config, client_adapter.ConnectionParams(timeout=timeout))
        except (ConfigError, OSError, ValueError, AssertionError) as error:
            raise UsageError(f"The cluster's kubeconfig cannot be used: {error}") from error
        weakref.finalize(self, client.close)  # what nobody closes, such as a notebook's
        return client

    def fetch_json(self, method: str, path: str, **request: Any) -> Manifest:
        """Send a request to a path of the API server, and return the object that it answers.

        For what no other method sends, such as a pod's eviction; ``request``: parts of an HTTP request of httpx.
        """
        manifest: Manifest = from_json(self._send(method, path, **request).content, cache_strings="all")
        return manifest

    def _send(self, method: str, path: str, **request: Any) -> httpx2.Response:
        with self._acquire_client() as client:
            response = client.request(method, path, **request)
        if response.is_error:
            raise self._build_error(response.status_code, _read_status(response), path)
        return response

    @contextmanager
    def _stream(self, path: str, params: dict[str, str], timeout: httpx2.Timeout) -> Iterator[httpx2.Response]:
        with self._acquire_client() as client, client.stream("GET", path, params=params, timeout=timeout) as response:
            if response.is_error:
                response.read()
                raise self._build_error(response.status_code, _read_status(response), path)
            yield response

    def _build_error(self, code: int, status: Manifest, path: str) -> ScanflowError:
        """Return the error for a response. A kind that the cluster does not have is forbidden to most users."""
        error = build_api_error(code, status, path)
        if code != 403 or not isinstance(error, AccessDeniedError):
            return error
        kind = find_kind(path)
        if kind is not None and KINDS[kind].engine is not None and not self.has_kind(kind):
            return build_missing_kind_error(kind)
        return error if self._settings.namespace is not None else AccessDeniedError(f"{error}. {_NAMESPACE_HINT}")

    def _build_unreachable_error(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"The API server {self.address} does not answer ({type(error).__name__}: {error}). Is it up? Look: "
            "kubectl cluster-info"
        )


def _drop_managed_fields(manifest: Manifest) -> Manifest:
    manifest["metadata"].pop("managedFields", None)
    return manifest


def _build_path(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return build_object_path(manifest["kind"], metadata.get("name"), namespace=metadata.get("namespace"))


def _build_dry_run_params(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _split_lines(response: httpx2.Response) -> Iterator[bytes]:
    """Yield whole lines; ``iter_lines`` of httpx2 also splits at characters that JSON may hold."""
    rest = b""
    for part in response.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        yield from (line for line in lines if line)


def _read_status(response: httpx2.Response) -> Manifest:
    try:
        body = response.json()
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {"message": response.text.strip()[:500]}
