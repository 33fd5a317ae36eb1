"""Pickled functions: kept in this home, and sent to a run's pods in its ConfigMap, signed."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

from scanflow.app.executor import Target
from scanflow.app.workflow import Workflow
from scanflow.backends.function_store import is_saved_function, save_function
from scanflow.backends.kubernetes.batch.home import BatchHome, RunHome
from scanflow.backends.kubernetes.batch.layout import KEY, KEY_SECRET, format_function_key
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.random_secret import ensure_random_secret
from scanflow.backends.pickles import add_signature, read_home_key, read_signed, write_pickle
from scanflow.errors import NotFoundError
from scanflow.files.private import create_private_folder, open_home


class Functions:
    """The pickled functions of this home."""

    def __init__(self, home: BatchHome) -> None:
        self._home = home

    def keep(self, pickled: bytes) -> str:
        """Keep a pickled function, and return its name."""
        return save_function(self._home.functions, pickled, self._key)

    def keep_live(self, workflow: Workflow, run: RunHome) -> None:
        """Keep the functions that the running program or notebook defines."""
        for node in workflow.steps:
            target = node.target
            if target is not None and target.call is not None and target.startswith("__main__:"):
                create_private_folder(run.functions)
                function = getattr(target.call, "function", target.call)
                write_pickle(run.functions / format_function_key(target), function, self._key)

    def check(self, target: Target, run: RunHome | None) -> bool:
        """Return whether a function is pickled rather than in a file.

        Raises:
            NotFoundError: its pickle is missing.
        """
        file = self._locate_file(target, run)
        if file is not None and target.call is None and not file.exists():
            raise NotFoundError(
                f"The function {str(target)!r} was defined by a program or notebook that has ended. Start the "
                "workflow from it again."
            )
        return file is not None

    def pack_functions(self, workflow: Workflow, run: RunHome, key: bytes) -> dict[str, str]:
        """Return the pickled functions of a workflow for its ConfigMap, signed with the namespace's key."""
        signed_functions = {}
        for node in workflow.steps:
            file = None if node.target is None else self._locate_file(node.target, run)
            if file is not None and node.target is not None:
                content = add_signature(read_signed(file, self._key), key)
                signed_functions[format_function_key(node.target)] = base64.b64encode(content).decode("ascii")
        return signed_functions

    @property
    def _key(self) -> bytes:
        return read_home_key(open_home(self._home.home))

    def _locate_file(self, target: Target, run: RunHome | None) -> Path | None:
        module = target.partition(":")[0]
        if is_saved_function(module):
            return self._home.functions / module
        if module != "__main__":
            return None
        return (run.functions if run is not None else self._home.functions) / format_function_key(target)


def ensure_namespace_key(cluster: Cluster, namespace: str, app: str, team: str) -> bytes:
    """Return the key that signs a namespace's pickles, created where it is missing."""
    return ensure_random_secret(
        cluster, namespace, KEY_SECRET, key=KEY, make=lambda: secrets.token_bytes(32), app=app, team=team
    )
