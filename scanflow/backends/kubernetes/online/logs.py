"""What the instances of a service wrote, read from the cluster as often as somebody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.online.observed import instance_of
from scanflow.backends.port import LogPage, LogPart
from scanflow.errors import ScanflowError

_EVERY_S = 1.0


class ServiceLogs:
    """Reads on from the last line that was read, by its time: a kubelet knows no other place."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        pods: Callable[[], Iterable[Manifest] | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pods``: those that there are; None: the service is deleted."""
        self._cluster, self._namespace, self._pods, self._clock = cluster, namespace, pods, clock
        self._last: dict[str, str] = {}
        self._looked: float | None = None

    def read(self) -> LogPage:
        now = self._clock()
        if self._looked is not None and now - self._looked < _EVERY_S:
            return LogPage((), ended=False)
        self._looked = now
        pods = self._pods()
        if pods is None:
            return LogPage((), ended=True)
        parts = [LogPart(pod["metadata"]["name"], text) for pod in pods if (text := b"".join(self._lines(pod)))]
        return LogPage(tuple(parts), ended=False)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _lines(self, pod: Manifest) -> Iterator[bytes]:
        name, container = pod["metadata"]["name"], instance_of(pod)
        last = self._last.get(name, "")
        since = f"{last[:19]}Z" if last else None
        try:
            text = b"".join(self._cluster.log(name, self._namespace, container=container, timestamps=True, since=since))
        except ScanflowError:
            return  # it has not begun, or has gone
        for line in text.splitlines(keepends=True):
            at, _, rest = line.partition(b" ")
            moment = at.decode("ascii", "replace")
            if moment > last:
                self._last[name] = moment
                yield rest
