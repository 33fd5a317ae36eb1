"""What runs in a pod that reads outputs for a machine that reaches only the cluster's API server."""

from __future__ import annotations

import base64
import gzip
import json
import secrets
import sys
from pathlib import PurePosixPath

from scanflow.backends.kubernetes.batch.folders import Folders
from scanflow.backends.kubernetes.batch.object_storage import ObjectStorage, open_store
from scanflow.backends.kubernetes.batch.pod_storage import open_storage
from scanflow.errors import ScanflowError
from scanflow.names import StepName


def fetch_folders(folders: list[str]) -> None:
    """Bring folders from an object store to where they are on a claim."""
    try:
        ObjectStorage.open(Folders.from_environment()).fetch_folders(map(PurePosixPath, folders))
    except ScanflowError as error:
        sys.exit(str(error))


def print_files(run: str, tasks: list[str]) -> None:
    """Print the names and bytes of the files that tasks left."""
    try:
        storage = open_storage(Folders.from_environment())
        _print_packed({task: storage.list_files(run, StepName(task)) for task in tasks})
    except ScanflowError as error:
        sys.exit(str(error))


def print_tasks(run: str) -> None:
    """Print the tasks of a run whose outputs are in an object store."""
    try:
        _print_packed(ObjectStorage.open(Folders.from_environment()).list_tasks(run))
    except ScanflowError as error:
        sys.exit(str(error))


def try_store() -> None:
    """Write, read, list and delete an object where outputs are."""
    try:
        store = open_store(Folders.from_environment())
        name = f"check-{secrets.token_hex(8)}"
        store.write(name, name.encode())
        if store.read(name) != name.encode() or name not in [entry.name for entry in store.list_objects("")]:
            sys.exit("what was written to the object store is not there")
        store.delete(name)
    except ScanflowError as error:
        sys.exit(str(error))


def _print_packed(value: object) -> None:
    sys.stdout.write(base64.b64encode(gzip.compress(json.dumps(value).encode())).decode())
