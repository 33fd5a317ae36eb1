"""Pickled functions: kept in this home, and sent to a run's pods in its ConfigMap, signed."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from pathlib import Path

from scanflow.app.executor import Target
from scanflow.app.workflow import Workflow
from scanflow.backends.function_store import build_lost_function_error, compute_name, is_saved_function, save_function
from scanflow.backends.kubernetes.batch.batch_home import BatchHome
from scanflow.backends.kubernetes.batch.pod_layout import KEY, KEY_SECRET
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.expiring_set import ExpiringSet
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.random_secret import ensure_random_secret
from scanflow.backends.pickles import add_signature, check_signature, read_home_key, read_signed
from scanflow.errors import InvalidError
from scanflow.files.private import open_home


class Functions:
    """The pickled functions of this home."""

    def __init__(self, home: BatchHome) -> None:
        self._home = home

    def keep(self, pickled: bytes) -> str:
        """Keep a pickled function, and return its name."""
        return save_function(self._home.functions, pickled, self._key)

    def check(self, target: Target) -> bool:
        """Return whether a function is pickled rather than in a file.

        Raises:
            NotFoundError: its pickle is missing.
        """
        file = self._locate_file(target)
        if file is not None and not file.exists():
            raise build_lost_function_error(target)
        return file is not None

    def pack_functions(self, workflow: Workflow, key: bytes) -> dict[str, str]:
        """Return the pickled functions of a workflow for its ConfigMap, signed with the namespace's key."""
        signed_functions = {}
        for node in workflow.steps:
            file = None if node.target is None else self._locate_file(node.target)
            if file is not None:
                content = add_signature(read_signed(file, self._key), key)
                signed_functions[file.name] = base64.b64encode(content).decode("ascii")
        return signed_functions

    def lacks(self, workflow: Workflow) -> bool:
        """Return whether this home lacks a function of a workflow."""
        files = [self._locate_file(node.target) for node in workflow.steps if node.target is not None]
        return any(file is not None and not file.exists() for file in files)

    def restore(self, workflow: Workflow, config_map: Manifest, read_key: Callable[[], bytes]) -> None:
        """Keep the functions of a run that this home lacks, as the run's ConfigMap has them.

        Raises:
            InvalidError: one was not signed with the namespace's key.
        """
        binary = config_map.get("binaryData") or {}
        for node in workflow.steps:
            file = None if node.target is None else self._locate_file(node.target)
            if file is None or file.exists() or (packed := binary.get(file.name)) is None:
                continue
            pickled = check_signature(base64.b64decode(packed), read_key())
            if pickled is None or compute_name(pickled) != file.name:
                raise InvalidError(
                    f"The function of the step {node.name!r} is not taken from the cluster: it was not signed by a "
                    "run of its namespace. Give the application: client.resume(run, app=app)"
                )
            self.keep(pickled)

    @property
    def _key(self) -> bytes:
        return read_home_key(open_home(self._home.home))

    def _locate_file(self, target: Target) -> Path | None:
        name = target.partition(":")[0]
        return self._home.functions / name if is_saved_function(name) else None


class NamespaceKeys:
    """The keys that sign the pickles of namespaces, each created where it is missing.

    Args:
        cluster: The cluster.
        ensured: The namespaces whose environment was ensured a moment ago. In others a key is fetched again, as the
            namespace may have been recreated.
    """

    def __init__(self, cluster: Cluster, ensured: ExpiringSet) -> None:
        self._cluster, self._ensured = cluster, ensured
        self._keys: dict[str, bytes] = {}

    def get(self, namespace: str, app: str, team: str) -> bytes:
        """Return the key of an application's namespace."""
        if not (namespace in self._ensured and namespace in self._keys):
            self._keys[namespace] = ensure_random_secret(
                self._cluster, namespace, KEY_SECRET, key=KEY, make=lambda: secrets.token_bytes(32), app=app, team=team
            )
        return self._keys[namespace]
