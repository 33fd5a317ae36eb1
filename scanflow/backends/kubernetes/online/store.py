"""The services of a cluster, each kept in a ConfigMap of its application's namespace. Any process may read and change
them: a change is made on what was read, and made again where another was quicker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from scanflow.backends.kubernetes.cluster import Cluster, ConflictError, until_unchanged
from scanflow.backends.kubernetes.followed import Followed
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import SERVICE
from scanflow.backends.kubernetes.online.objects import DOCUMENT, STATE, state_map
from scanflow.backends.service_desired import DesiredState
from scanflow.errors import InternalError, NotFoundError, did_you_mean

_SERVICES: Final = f"{STATE}=service"

RENDERED: Final = "scanflow.dev/rendered"
"""An annotation of a service's object: what tells its objects, as they were applied last, from others, by kind and
name."""

ANSWERS: Final = "scanflow.dev/answers"
"""An annotation of a service's object: which service answers in its stead, while one does."""


class KeptService(NamedTuple):
    """A service, and the version of the object that holds it."""

    state: DesiredState
    namespace: str
    object: str
    version: str
    notes: Mapping[str, str] = {}
    """Annotations of the object."""

    @property
    def key(self) -> tuple[str, str]:
        """Its namespace and name."""
        return self.namespace, self.state.name

    @property
    def rendered(self) -> Mapping[str, str]:
        """What tells its objects, as they were applied last, from others."""
        found: dict[str, str] = json.loads(self.notes.get(RENDERED, "{}"))
        return found

    @property
    def answered_by(self) -> str | None:
        """The backup, while it answers."""
        return self.notes.get(ANSWERS)


class ServiceStore:
    """See the module."""

    def __init__(self, cluster: Cluster, followed: Followed | None = None) -> None:
        self._cluster, self._followed = cluster, followed or Followed(lambda: cluster)

    def all(self) -> list[KeptService]:
        """Return all services, by name."""
        found = self._followed.read("ConfigMap", _SERVICES, _kept)
        return sorted(found, key=lambda one: one.state.name)

    def find(self, name: str) -> KeptService | None:
        found, _ = self._cluster.find("ConfigMap", labels=f"{_SERVICES},{SERVICE}={name}")
        return _kept(found[0]) if found else None

    def get(self, name: str) -> KeptService:
        """Return a service.

        Raises:
            NotFoundError: there is none of that name.
        """
        found = self.find(name)
        if found is None:
            names = [one.state.name for one in self.all()]
            hint = did_you_mean(name, names) if names else " There is none yet. Start one: scanflow deploy app.py"
            raise NotFoundError(f"There is no service {name!r}.{hint}")
        return found

    def change(self, name: str, make: Callable[[DesiredState | None], DesiredState | None]) -> DesiredState | None:
        """Replace what is kept of a service by what ``make`` returns for it; None from it: leave it. Return what it
        then is."""

        def attempt() -> DesiredState | None:
            found = self.find(name)
            before = None if found is None else found.state
            after = make(before)
            if after is None or after == before:
                return before
            try:
                self._write(found, after)
            except NotFoundError as gone:
                if found is None:
                    raise  # its namespace is not there
                raise ConflictError(f"The service {name!r} was deleted a moment ago.") from gone
            return after

        return until_unchanged(f"The service {name!r}", attempt)

    def note(self, stored: KeptService, **notes: str | None) -> KeptService:
        """Keep or forget annotations of a service's object, by what follows ``scanflow.dev/`` in their names; return
        the service with them.

        Raises:
            ConflictError: it was changed since it was read.
        """
        annotations = {f"scanflow.dev/{name}": text for name, text in notes.items()}
        change = {"metadata": {"resourceVersion": stored.version, "annotations": annotations}}
        noted = _kept(self._cluster.patch("ConfigMap", stored.object, stored.namespace, change))
        self._followed.renew("ConfigMap", _SERVICES)
        return noted

    def is_as_it_was(self, stored: KeptService) -> bool:
        """Say whether nothing else is wanted of a service than when it was read, and the same one answers."""
        now = self.find(stored.state.name)
        return now is not None and now.state == stored.state and now.answered_by == stored.answered_by

    def remove(self, stored: KeptService) -> None:
        """Forget a service.

        Raises:
            ConflictError: it was changed since it was read.
        """
        self._cluster.delete("ConfigMap", stored.object, stored.namespace, version=stored.version)
        self._followed.renew("ConfigMap", _SERVICES)

    def _write(self, found: KeptService | None, after: DesiredState) -> None:
        manifest = state_map(after)
        if found is None:
            self._cluster.create(manifest)
        else:
            patch = {"metadata": {"resourceVersion": found.version}, "data": manifest["data"]}
            self._cluster.patch("ConfigMap", found.object, found.namespace, patch)
        self._followed.renew("ConfigMap", _SERVICES)


def _kept(manifest: Manifest) -> KeptService:
    metadata = manifest["metadata"]
    try:
        state = DesiredState.model_validate_json(manifest.get("data", {})[DOCUMENT])
    except (LookupError, ValueError) as error:
        raise InternalError(
            f"The ConfigMap {metadata['namespace']}/{metadata['name']} holds no service that can be read: {error}"
        ) from error
    return KeptService(
        state, metadata["namespace"], metadata["name"], metadata["resourceVersion"], metadata.get("annotations", {})
    )
