"""Read the logs of a service's instances from the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.online.observed_objects import get_instance_container
from scanflow.backends.log_reader import LogPage, LogPart
from scanflow.errors import ScanflowError

_PAUSE_S = 1.0


class ServiceLogs:
    """Continues from the last line that was read, by its timestamp: kubelets offer no other offset."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        find_pods: Callable[[], Iterable[Manifest] | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``find_pods`` returns the current pods; None: the service is deleted."""
        self._cluster, self._namespace, self._find_pods, self._clock = cluster, namespace, find_pods, clock
        self._last: dict[str, str] = {}
        self._read_at: float | None = None

    def read(self) -> LogPage:
        now = self._clock()
        if self._read_at is not None and now - self._read_at < _PAUSE_S:
            return LogPage((), ended=False)
        self._read_at = now
        pods = self._find_pods()
        if pods is None:
            return LogPage((), ended=True)
        parts = [LogPart(pod["metadata"]["name"], text) for pod in pods if (text := b"".join(self._read_lines(pod)))]
        return LogPage(tuple(parts), ended=False)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _read_lines(self, pod: Manifest) -> Iterator[bytes]:
        name, container = pod["metadata"]["name"], get_instance_container(pod)
        last = self._last.get(name, "")
        since = f"{last[:19]}Z" if last else None
        try:
            text = b"".join(self._cluster.log(name, self._namespace, container=container, timestamps=True, since=since))
        except ScanflowError:
            return  # its container has not started, or it is gone
        for line in text.splitlines(keepends=True):
            stamp, _, content = line.partition(b" ")
            timestamp = stamp.decode("ascii", "replace")
            if timestamp > last:
                self._last[name] = timestamp
                yield content
