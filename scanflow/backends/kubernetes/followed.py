"""Objects that are looked at again and again: from some looks on a watch tells of them, and looking asks nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from scanflow.backends.kubernetes.cluster import Cluster, ExpiredError
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.errors import ScanflowError

OFTEN: Final = 4
OFTEN_S: Final = 60.0
"""Who looks so many times in so many seconds, as a server does, gets a watch; a command never does."""

UNUSED_S: Final = 60.0
"""After so long without a look the watch ends."""

WATCH_S: Final = 60.0
"""How long one request of a watch lasts."""

_Made = TypeVar("_Made")
_Key = tuple[str, str]


class Followed:
    """For one cluster. Threads may share it. What it returns is shared too, and not to be changed."""

    def __init__(self, cluster: Callable[[], Cluster], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._lists: dict[tuple[str, str], _List] = {}
        self._made: dict[tuple[str, str], dict[_Key, tuple[str, object]]] = {}
        self._lock = threading.Lock()

    def find(self, kind: str, labels: str) -> list[Manifest]:
        """Return the objects of a kind with those labels, in all namespaces; of a watch, as it told of them last."""
        return self._list(kind, labels).objects(self._cluster())

    def renew(self, kind: str, labels: str) -> None:
        """Have the next look ask: some of these objects were written here, and a watch tells of that a moment later."""
        self._list(kind, labels).renew()

    def _list(self, kind: str, labels: str) -> _List:
        with self._lock:
            return self._lists.setdefault((kind, labels), _List(kind, labels, self._clock))

    def read(self, kind: str, labels: str, make: Callable[[Manifest], _Made]) -> list[_Made]:
        """Return what ``make`` reads from each of the objects; it is called once for each version of one."""
        before = self._made.get((kind, labels), {})
        now: dict[_Key, tuple[str, object]] = {}
        made: list[_Made] = []
        for one in self.find(kind, labels):
            key, version = _key(one), one["metadata"]["resourceVersion"]
            known = before.get(key)
            value: _Made = known[1] if known is not None and known[0] == version else make(one)  # type: ignore[assignment]
            now[key] = (version, value)
            made.append(value)
        self._made[kind, labels] = now
        return made


class _List:
    def __init__(self, kind: str, labels: str, clock: Callable[[], float]) -> None:
        self._kind, self._labels, self._clock = kind, labels, clock
        self._lock = threading.Lock()
        self._looks: list[float] = []
        self._followed: dict[_Key, Manifest] | None = None
        """As a watch has them; None: nothing watches."""

        self._version = 0
        """Up to which these are known: what a watch tells of earlier ones is over."""

        self._renew = False

    def renew(self) -> None:
        with self._lock:
            self._renew = True

    def objects(self, cluster: Cluster) -> list[Manifest]:
        with self._lock:
            now = self._clock()
            self._looks = [*[at for at in self._looks if now - at < OFTEN_S][1 - OFTEN :], now]
            if self._followed is not None and not self._renew:
                return list(self._followed.values())
            found, version = cluster.find(self._kind, labels=self._labels)
            self._renew = False
            begins = self._followed is None and len(self._looks) >= OFTEN
            if begins or self._followed is not None:
                self._followed, self._version = {_key(one): one for one in found}, int(version)
            if begins:
                name = f"watch of {self._kind}"
                threading.Thread(target=self._follow, args=(cluster, version), name=name, daemon=True).start()
            return found

    def _follow(self, cluster: Cluster, version: str) -> None:
        """Watch for as long as somebody looks; whatever ends it, the next look asks again."""
        labels = self._labels
        try:
            while self._clock() - self._looks[-1] < UNUSED_S:
                for event in cluster.watch(self._kind, labels=labels, since=version, within_s=WATCH_S, bookmarks=True):
                    version = event.object["metadata"]["resourceVersion"]
                    self._take(event.type, event.object)
            self._looks = []
        except ExpiredError:  # the next look lists, and a watch begins at once
            self._renew = True
        except (ScanflowError, RuntimeError):  # away, not allowed; or the connections are closed
            self._looks = []
        finally:
            with self._lock:
                self._followed = None

    def _take(self, what: str, one: Manifest) -> None:
        if what == "BOOKMARK":
            return
        with self._lock:
            if self._followed is None or int(one["metadata"]["resourceVersion"]) <= self._version:
                return
            if what == "DELETED":
                self._followed.pop(_key(one), None)
            else:
                self._followed[_key(one)] = one


def _key(one: Manifest) -> _Key:
    return one["metadata"].get("namespace", ""), one["metadata"]["name"]
