"""A cache of lists of objects: lists that are read often are kept current by a watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from scanflow.backends.kubernetes.api_errors import ExpiredError
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.errors import ScanflowError

OFTEN: Final = 4
OFTEN_S: Final = 60.0
"""This number of reads within this time starts a watch, as in a server; a command never reads so often."""

IDLE_TIMEOUT_S: Final = 60.0
"""The time without a read after which the watch ends."""

WATCH_S: Final = 60.0
"""How long one request of a watch lasts."""

_Value = TypeVar("_Value")
_Key = tuple[str, str]


class ListCache:
    """The cached lists of one cluster. Threads may share it; do not change the returned objects, which are shared."""

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._namespace, self._clock = cluster, namespace, clock
        self._metadata_only = metadata_only
        self._lists: dict[tuple[str, str], _List] = {}
        self._cache: dict[tuple[str, str], dict[_Key, tuple[str, object]]] = {}
        self._lock = threading.Lock()

    def find(self, kind: str, labels: str) -> list[Manifest]:
        """Return the objects of a kind with those labels, in the cache's namespace or in all; from the watch where
        there is one."""
        return self._list(kind, labels).list_objects(self._cluster())

    def renew(self, kind: str, labels: str) -> None:
        """Make the next read list again: this process wrote objects, which the watch reports only a moment later."""
        self._list(kind, labels).renew()

    def _list(self, kind: str, labels: str) -> _List:
        with self._lock:
            return self._lists.setdefault(
                (kind, labels), _List(kind, self._namespace, labels, self._clock, metadata_only=self._metadata_only)
            )

    def read(self, kind: str, labels: str, make: Callable[[Manifest], _Value]) -> list[_Value]:
        """Return the result of ``make`` for each object; it is called once for each version of an object."""
        previous = self._cache.get((kind, labels), {})
        current: dict[_Key, tuple[str, object]] = {}
        values: list[_Value] = []
        for manifest in self.find(kind, labels):
            key, version = _identify(manifest), manifest["metadata"]["resourceVersion"]
            cached = previous.get(key)
            value: _Value = cached[1] if cached is not None and cached[0] == version else make(manifest)  # type: ignore[assignment]
            current[key] = (version, value)
            values.append(value)
        self._cache[kind, labels] = current
        return values


class _List:
    def __init__(
        self, kind: str, namespace: str | None, labels: str, clock: Callable[[], float], *, metadata_only: bool
    ) -> None:
        self._kind, self._namespace, self._labels, self._clock = kind, namespace, labels, clock
        self._metadata_only = metadata_only
        self._lock = threading.Lock()
        self._read_times: list[float] = []
        self._watched: dict[_Key, Manifest] | None = None
        """As the watch reported them; None: there is no watch."""

        self._version = 0
        """The version of the list: earlier events of the watch are ignored."""

        self._renew = False

    def renew(self) -> None:
        with self._lock:
            self._renew = True

    def list_objects(self, cluster: Cluster) -> list[Manifest]:
        with self._lock:
            now = self._clock()
            self._read_times = [*[at for at in self._read_times if now - at < OFTEN_S][1 - OFTEN :], now]
            if self._watched is not None and not self._renew:
                return list(self._watched.values())
            manifests, version = cluster.find(
                self._kind, self._namespace, labels=self._labels, metadata_only=self._metadata_only
            )
            self._renew = False
            begins = self._watched is None and len(self._read_times) >= OFTEN
            if begins or self._watched is not None:
                self._watched, self._version = {_identify(manifest): manifest for manifest in manifests}, int(version)
            if begins:
                name = f"watch of {self._kind}"
                threading.Thread(target=self._watch, args=(cluster, version), name=name, daemon=True).start()
            return manifests

    def _watch(self, cluster: Cluster, version: str) -> None:
        """Watch for as long as the list is read; after it ends, the next read lists again."""
        try:
            while self._clock() - self._read_times[-1] < IDLE_TIMEOUT_S:
                for event in cluster.watch(
                    self._kind, self._namespace, labels=self._labels, since=version, within_s=WATCH_S, bookmarks=True
                ):
                    version = event.object["metadata"]["resourceVersion"]
                    self._apply_event(event.type, event.object)
            self._read_times = []
        except ExpiredError:  # the next read lists, and a watch begins at once
            self._renew = True
        except (ScanflowError, RuntimeError):  # unavailable, not allowed; or the connections are closed
            self._read_times = []
        finally:
            with self._lock:
                self._watched = None

    def _apply_event(self, event_type: str, manifest: Manifest) -> None:
        if event_type == "BOOKMARK":
            return
        with self._lock:
            if self._watched is None or int(manifest["metadata"]["resourceVersion"]) <= self._version:
                return
            if event_type == "DELETED":
                self._watched.pop(_identify(manifest), None)
            else:
                own = {"metadata": manifest["metadata"]} if self._metadata_only else manifest
                self._watched[_identify(manifest)] = own


def _identify(manifest: Manifest) -> _Key:
    return manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]
