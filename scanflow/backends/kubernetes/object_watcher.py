"""Watch one object, through temporary outages of the API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from scanflow.backends.kubernetes.api_errors import ExpiredError
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.run_records import EnvironmentReady, Observer, Waiting
from scanflow.errors import UnavailableError
from scanflow.names import RunName

WATCH_S: Final = 5.0
"""Longest request of a watch."""

RETRY_PAUSE_S: Final = 1.0
"""Interval of retries while the API server does not answer."""

API: Final = "the API server of the cluster"


class ObjectWatcher:
    """Watches an object of a run, and reports outages of the API server to the observer."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        run: RunName,
        *,
        observe: Observer,
        away_s: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._namespace, self._run = cluster, namespace, run
        self._observe, self._away_s, self._sleep, self._clock = observe, away_s, sleep, clock

    def watch(self, manifest: Manifest) -> Iterator[Manifest | None]:
        """Yield an object as it changes, and unchanged from time to time; None: it was deleted.

        Raises:
            UnavailableError: the API server was away for too long.
        """
        kind, name, last = manifest["kind"], manifest["metadata"]["name"], manifest
        away_since: float | None = None
        yield last
        while True:
            try:
                since = last["metadata"]["resourceVersion"]
                for event in self._cluster.watch(
                    kind, self._namespace, fields=f"metadata.name={name}", since=since, within_s=WATCH_S
                ):
                    if event.type == "DELETED":
                        yield None
                        return
                    last = event.object
                    yield last
                self._report_recovery(away_since)
                away_since = None
                yield last
            except ExpiredError:
                current = self._cluster.get(kind, name, self._namespace)
                yield current
                if current is None:
                    return
                last = current
            except UnavailableError as error:
                away_since = self._wait_for_api_server(away_since, error)

    def _wait_for_api_server(self, since: float | None, error: UnavailableError) -> float:
        now = self._clock()
        if since is None:
            self._observe(Waiting(run=self._run, what=API))
        elif now - since > self._away_s:
            raise UnavailableError(
                f"{error} The run {self._run!r} continues, but nothing watches it. To watch it again: scanflow resume "
                f"{self._run}"
            ) from error
        self._sleep(RETRY_PAUSE_S)
        return now if since is None else since

    def _report_recovery(self, since: float | None) -> None:
        if since is not None:
            self._observe(EnvironmentReady(run=self._run, what=API, seconds=self._clock() - since))
