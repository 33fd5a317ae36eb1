"""Read the logs of a run's tasks from their pods, and copy them to this home."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from scanflow.backends.kubernetes.batch.log_framing import StreamSplitter, split_streams
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.log_reader import LogPage, LogPart, Stream
from scanflow.errors import NotFoundError, UnavailableError, UsageError
from scanflow.files.private import create_private_folder
from scanflow.processes.shared_files import write_atomically

MAIN = "main"
"""The step's container; Argo has others beside it."""

SILENCE_S = 30.0
"""How long a followed log may be silent before it is requested again."""


def copy_log(cluster: Cluster, pod: str, namespace: str, folder: Path) -> bool:
    """Copy the log of an ended pod; return whether it could be read."""
    try:
        streams = split_streams(cluster.log(pod, namespace, container=MAIN))
    except (NotFoundError, UsageError):  # the pod is gone, or its container never started
        return False
    create_private_folder(folder)
    for name, data in streams.items():
        write_atomically(folder / f"{name}.log", data)
    return True


class TaskPodLogs:
    """See :class:`~scanflow.backends.backend_port.LogReader`. Follows the log of a running pod."""

    def __init__(
        self, cluster: Cluster, pod: str, namespace: str, stream: Stream, has_ended: Callable[[], bool]
    ) -> None:
        self._cluster, self._pod, self._namespace, self._stream = cluster, pod, namespace, stream
        self._has_ended = has_ended
        self._lock = threading.Lock()
        self._parts: list[LogPart] = []
        self._closed = self._done = False
        self._error: Exception | None = None
        threading.Thread(target=self._follow, name="scanflow-pod-log", daemon=True).start()

    def read(self) -> LogPage:
        with self._lock:
            parts, self._parts = tuple(self._parts), []
            done, error = self._done, self._error
        if error is not None and not parts:
            raise error
        return LogPage(parts, ended=done and not parts)

    def close(self) -> None:
        self._closed = True

    def _follow(self) -> None:
        try:
            for name, data in self._read_streams():
                if self._closed:
                    return
                if self._stream in {name, "both"}:
                    with self._lock:
                        self._parts.append(LogPart(name, data))
        except Exception as error:  # noqa: BLE001  raised to whoever reads
            self._error = error
        finally:
            self._done = True

    def _read_streams(self) -> Iterator[tuple[str, bytes]]:
        """Yield the data of the streams; an interrupted log is requested again, skipping the part already read."""
        reader, seen = StreamSplitter(), 0
        while True:
            has_ended, skip = self._has_ended(), seen
            for block in self._read_blocks():
                seen += max(0, len(block) - skip)
                skip, block = max(0, skip - len(block)), block[skip:]
                yield from reader.feed(block)
            if has_ended or self._closed:
                yield from reader.feed(b"", last=True)
                return

    def _read_blocks(self) -> Iterator[bytes]:
        try:
            yield from self._cluster.log(
                self._pod, self._namespace, container=MAIN, follow=not self._has_ended(), within_s=SILENCE_S
            )
        except NotFoundError:
            return
        except (UsageError, UnavailableError):
            if self._has_ended():
                return
            threading.Event().wait(0.5)  # its container has not started yet, or the API server is away for a while
