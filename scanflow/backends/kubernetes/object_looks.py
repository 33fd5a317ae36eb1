"""Looks at one object as it changes, through an API server that may be away for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from scanflow.backends.kubernetes.cluster import Cluster, ExpiredError
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.records import EnvironmentReady, Observer, Waiting
from scanflow.errors import UnavailableError
from scanflow.names import RunName

WATCH_S: Final = 5.0
"""How long one look lasts at most."""

AWAY_S: Final = 1.0
"""How often an API server that does not answer is asked again."""

API: Final = "the API server of the cluster"


class ObjectLooks:
    """Yields an object of a run. What it waits for is told."""

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

    def at(self, manifest: Manifest) -> Iterator[Manifest | None]:
        """Yield an object as it changes, and from time to time as it was; None: it was deleted.

        Raises:
            UnavailableError: the API server was away for too long.
        """
        kind, name, last = manifest["kind"], manifest["metadata"]["name"], manifest
        away: float | None = None
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
                self._back(away)
                away = None
                yield last
            except ExpiredError:
                found = self._cluster.get(kind, name, self._namespace)
                yield found
                if found is None:
                    return
                last = found
            except UnavailableError as error:
                away = self._gone(away, error)

    def _gone(self, since: float | None, error: UnavailableError) -> float:
        now = self._clock()
        if since is None:
            self._observe(Waiting(run=self._run, what=API))
        elif now - since > self._away_s:
            raise UnavailableError(
                f"{error} The run {self._run!r} goes on without anybody who watches. Then: scanflow resume {self._run}"
            ) from error
        self._sleep(AWAY_S)
        return now if since is None else since

    def _back(self, since: float | None) -> None:
        if since is not None:
            self._observe(EnvironmentReady(run=self._run, what=API, seconds=self._clock() - since))
