"""Read the logs of pods page by page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.log_reader import LogPage, LogPart
from scanflow.errors import InvalidError, NotFoundError, UnavailableError


class PodLogs:
    """See :class:`~scanflow.backends.backend_port.LogReader`. Pods may come and go; the log has ended once there is
    none.

    A deleted pod's log is lost, and the log before a container's restart is not read.
    """

    def __init__(self, cluster: Cluster, namespace: str, labels: str) -> None:
        self._cluster, self._namespace, self._labels = cluster, namespace, labels
        self._read: dict[str, str] = {}

    def read(self) -> LogPage:
        pods, _ = self._cluster.find("Pod", self._namespace, labels=self._labels)
        parts = [LogPart(name, data) for name in sorted(_list_names(pods)) if (data := self._read_new(name))]
        return LogPage(tuple(parts), ended=not pods and not parts)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _read_new(self, pod: str) -> bytes:
        lines = read_lines_since(self._cluster, self._namespace, pod, self._read.get(pod, ""))
        if lines:
            self._read[pod] = lines[-1].stamp
        return b"".join(line.text + b"\n" for line in lines)


class LogLine(NamedTuple):
    """A line of a pod's log, without its end."""

    stamp: str
    """When it was written, in RFC 3339 format, to the nanosecond."""

    text: bytes


def read_lines_since(cluster: Cluster, namespace: str, pod: str, before: str) -> list[LogLine]:
    """Return the whole lines that a pod wrote after a time; none before its container starts or after its deletion."""
    try:
        text = b"".join(cluster.log(pod, namespace, since=before or None, timestamps=True))
    except (InvalidError, NotFoundError, UnavailableError):
        return []
    lines = []
    for line in text.split(b"\n"):
        stamp, _, words = line.partition(b" ")
        if (time := stamp.decode("ascii", "replace")) > before:
            lines.append(LogLine(time, words))
    return lines


def _list_names(pods: Iterable[dict[str, object]]) -> list[str]:
    return [str(pod["metadata"]["name"]) for pod in pods if isinstance(pod["metadata"], dict)]
