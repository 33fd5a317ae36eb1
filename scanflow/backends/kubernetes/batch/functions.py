"""Functions that no file holds: kept in this home, and sent to a run's pods inside its ConfigMap, signed."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

from scanflow.app.executor import Target
from scanflow.app.workflow import Workflow
from scanflow.backends.kept_functions import is_kept_function, keep_function
from scanflow.backends.kubernetes.batch.home import BatchHome, RunHome
from scanflow.backends.kubernetes.batch.layout import KEY, KEY_SECRET, kept_function
from scanflow.backends.kubernetes.cluster import Cluster, ConflictError
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import labels_of
from scanflow.backends.pickles import home_key, read_signed, signed, write_pickle
from scanflow.errors import NotFoundError, UnavailableError
from scanflow.private import open_home, private_folder


class Functions:
    """The functions of this home that no file holds."""

    def __init__(self, home: BatchHome) -> None:
        self._home = home

    def keep(self, pickled: bytes) -> str:
        """Keep a function, pickled already; return what names it."""
        return keep_function(self._home.functions, pickled, self._key)

    def keep_live(self, workflow: Workflow, run: RunHome) -> None:
        """Keep what the running program or notebook defines itself."""
        for node in workflow.steps:
            target = node.target
            if target is not None and target.call is not None and target.startswith("__main__:"):
                private_folder(run.functions)
                function = getattr(target.call, "function", target.call)
                write_pickle(run.functions / kept_function(target), function, self._key)

    def check(self, target: Target, run: RunHome | None) -> bool:
        """Say whether a function is one that no file holds.

        Raises:
            NotFoundError: it is, and was not kept.
        """
        file = self._file(target, run)
        if file is not None and target.call is None and not file.exists():
            raise NotFoundError(
                f"The function {str(target)!r} was defined by a program or notebook that is gone. "
                "Run the workflow again from there."
            )
        return file is not None

    def sent(self, workflow: Workflow, run: RunHome, key: bytes) -> dict[str, str]:
        """Return the functions of a workflow as a ConfigMap has them, signed with a key of the cluster."""
        found = {}
        for node in workflow.steps:
            file = None if node.target is None else self._file(node.target, run)
            if file is not None and node.target is not None:
                content = signed(read_signed(file, self._key), key)
                found[kept_function(node.target)] = base64.b64encode(content).decode("ascii")
        return found

    @property
    def _key(self) -> bytes:
        return home_key(open_home(self._home.home))

    def _file(self, target: Target, run: RunHome | None) -> Path | None:
        module = target.partition(":")[0]
        if is_kept_function(module):
            return self._home.functions / module
        if module != "__main__":
            return None
        return (run.functions if run is not None else self._home.functions) / kept_function(target)


def namespace_key(cluster: Cluster, namespace: str, app: str, team: str) -> bytes:
    """Return what pickles of a namespace are signed with; the first who asks makes it."""
    found = cluster.get("Secret", KEY_SECRET, namespace)
    if found is None:
        made: Manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET, "namespace": namespace, "labels": labels_of(app, team)},
            "type": "Opaque",
            "data": {KEY: base64.b64encode(secrets.token_bytes(32)).decode("ascii")},
        }
        try:
            found = cluster.create(made)
        except ConflictError:
            found = cluster.get("Secret", KEY_SECRET, namespace)
    if found is None:
        raise UnavailableError(f"The Secret {namespace}/{KEY_SECRET} was deleted this moment. Try again.")
    return base64.b64decode(found["data"][KEY])
