"""Fetch outputs and logs that this home lacks, through a temporary pod that reads the claim."""

from __future__ import annotations

import base64
import gzip
import io
import json
import secrets
import tarfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.batch_home import RunHome
from scanflow.backends.kubernetes.batch.pod_settings import SMALL
from scanflow.backends.kubernetes.batch.storage_volumes import (
    build_outputs_volume,
    build_store_mounts,
    build_store_variables,
    build_store_volumes,
)
from scanflow.backends.kubernetes.batch.store_address import locate_store
from scanflow.backends.kubernetes.batch.workflow_records import FileSizes
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.environment.manifests import OUTPUTS, STEPS, build_env_from
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import MANAGER, RUN
from scanflow.backends.kubernetes.pod_spec import build_container_security, build_pod_security
from scanflow.errors import InvalidError, NotFoundError, UnavailableError
from scanflow.files.private import create_private_folder, write_private
from scanflow.names import StepName
from scanflow.outputs import OUTPUTS_FOLDER

MAX_DURATION_S: Final = 120.0
MAX_BYTES: Final = 4_000_000
"""Bytes of outputs that are fetched; a kubelet keeps 10 MB of a log."""

_PROGRAM: Final = """
import base64, io, os, sys, tarfile
base, longest, folders = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
found = io.BytesIO()
with tarfile.open(fileobj=found, mode="w:gz") as packed:
    for number, name in enumerate(folders):
        folder = os.path.join(base, name)
        for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            packed.add(os.path.join(folder, file), arcname="%d/%s" % (number, file), recursive=False)
text = base64.b64encode(found.getvalue())
if len(text) > longest:
    sys.exit("they are %d bytes" % len(text))
sys.stdout.write(text.decode())
"""

_READER: Final = "import sys; from scanflow.backends.kubernetes.batch.storage_reader import "
_FETCH_OBJECTS: Final = f"{_READER}fetch_folders; fetch_folders(sys.argv[3:])"
_PRINT_FILES: Final = f"{_READER}print_files; print_files(sys.argv[1], sys.argv[2:])"
_TRY_STORE: Final = f"{_READER}try_store; try_store()"
_PRINT_TASKS: Final = f"{_READER}print_tasks; print_tasks(sys.argv[1])"


def fetch_outputs(
    cluster: Cluster, settings: KubernetesSettings, namespace: str, run: str, homes: Mapping[StepName, RunHome]
) -> None:
    """Copy the named outputs of tasks from the claim into this home.

    Raises:
        InvalidError: they are too large.
        UnavailableError: no pod could be started.
    """
    folders = {
        f"{run}/{task.replace('.', '/', 1)}/{OUTPUTS_FOLDER}": home.locate_outputs(task) / OUTPUTS_FOLDER
        for task, home in homes.items()
    }
    _fetch(cluster, settings, namespace, run, folders)


def fetch_log(
    cluster: Cluster, settings: KubernetesSettings, namespace: str, run: str, task: str, attempt: int, folder: Path
) -> None:
    """Copy the log of an attempt from the claim into this home; see :func:`fetch_outputs`."""
    there = pod_layout.locate_attempt_logs(Path(), run, task, attempt)
    _fetch(cluster, settings, namespace, run, {str(there): folder})


def fetch_files(
    cluster: Cluster, settings: KubernetesSettings, namespace: str, run: str, tasks: Sequence[StepName]
) -> dict[StepName, FileSizes]:
    """Return the names and bytes of the files that tasks left; see :func:`fetch_outputs`."""
    store = locate_store(cluster, settings, namespace)
    text = _run_pod(cluster, build_reader_pod(settings, namespace, run, [_PRINT_FILES, run, *tasks], store), run)
    listed = json.loads(gzip.decompress(base64.b64decode(text)))
    return {task: tuple((str(name), int(size)) for name, size in listed[task]) for task in tasks}


def are_tasks_missing(
    cluster: Cluster, settings: KubernetesSettings, namespace: str, home: RunHome, finished: Collection[StepName]
) -> bool:
    """Return whether an object store lacks outputs of finished tasks; see :func:`fetch_outputs`."""
    store, run = locate_store(cluster, settings, namespace), home.path.name
    if store is None or not finished:
        return False
    text = _run_pod(cluster, build_reader_pod(settings, namespace, run, [_PRINT_TASKS, run], store), run)
    return not set(finished) <= set(json.loads(gzip.decompress(base64.b64decode(text))))


def try_store(cluster: Cluster, settings: KubernetesSettings, namespace: str) -> None:
    """Let a pod of an environment write, read and delete an object where outputs are; see :func:`fetch_outputs`."""
    _run_pod(cluster, build_reader_pod(settings, namespace, "", [_TRY_STORE], settings.outputs), "")


def _fetch(
    cluster: Cluster, settings: KubernetesSettings, namespace: str, run: str, target_folders: Mapping[str, Path]
) -> None:
    """Copy the files of folders on the claim, or in the object store, into local folders."""
    store = locate_store(cluster, settings, namespace)
    program = _PROGRAM if store is None else f"{_FETCH_OBJECTS}\n{_PROGRAM}"
    arguments = [program, str(pod_layout.OUTPUTS), str(MAX_BYTES), *target_folders]
    text = _run_pod(cluster, build_reader_pod(settings, namespace, run, arguments, store), run)
    folders = list(target_folders.values())
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(text)), mode="r:gz") as packed:
        for folder in folders:
            create_private_folder(folder)
        for member in packed:
            number, _, file = member.name.partition("/")
            content = packed.extractfile(member) if member.isfile() and "/" not in file else None
            if content is not None and file not in {"", ".", ".."}:
                write_private(folders[int(number)] / file, content.read())


def _run_pod(cluster: Cluster, pod: Manifest, run: str) -> bytes:
    """Run a pod to its end, and return its log."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    cluster.create(pod)
    try:
        phase = _wait_until_ended(cluster, name, namespace)
        text = b"".join(cluster.log(name, namespace))
    finally:
        cluster.delete("Pod", name, namespace, grace_s=0)
    if phase != "Succeeded":
        words = text.decode(errors="replace").strip()[-700:].rstrip(".")
        if not run:
            raise InvalidError(f"{words}.")
        raise InvalidError(
            f"The outputs of the run {run!r} cannot be fetched: {words}. Read them in a step, or have steps output "
            "file names rather than values."
        )
    return text


def build_reader_pod(
    settings: KubernetesSettings, namespace: str, run: str, arguments: list[str], store: str | None
) -> Manifest:
    """Return a pod that runs a program of Python with the outputs of an environment.

    Args:
        settings: Its image, and the Secret of the store.
        namespace: The environment's.
        run: The run's.
        arguments: The program's text, and its arguments.
        store: The environment's address in an object store; None: the outputs are on the claim.
    """
    secret = settings.outputs_secret if store else None
    own_rights = {"serviceAccountName": STEPS} if store and not secret else {}
    return build_manifest(
        "Pod",
        {
            "name": f"read-{secrets.token_hex(4)}",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": MANAGER, **({RUN: run} if run else {})},
        },
        spec={
            "restartPolicy": "Never",
            **own_rights,
            "automountServiceAccountToken": False,
            "activeDeadlineSeconds": round(MAX_DURATION_S),
            "securityContext": build_pod_security(),
            **({"imagePullSecrets": [{"name": settings.pull_secret}]} if settings.pull_secret else {}),
            "containers": [
                {
                    "name": "read",
                    "image": settings.image,
                    "command": ["python", "-c", *arguments],
                    **_build_store_environment(store),
                    "resources": {"requests": SMALL},
                    "securityContext": build_container_security(),
                    "volumeMounts": [
                        {
                            "name": "outputs",
                            "mountPath": str(pod_layout.OUTPUTS),
                            **({} if store else {"readOnly": True}),
                        },
                        *build_store_mounts(secret),
                    ],
                }
            ],
            "volumes": [build_outputs_volume(OUTPUTS, store, readOnly=True), *build_store_volumes(secret)],
        },
    )


def _build_store_environment(store: str | None) -> Manifest:
    """Return the variables of a container that reads from a store: those that steps have."""
    if store is None:
        return {}
    variables = [{"name": name, "value": value} for name, value in build_store_variables(store).items()]
    return {"env": variables, "envFrom": build_env_from()}


def _wait_until_ended(cluster: Cluster, name: str, namespace: str) -> str:
    """Wait until a pod has ended, and return its phase."""
    deadline = time.monotonic() + MAX_DURATION_S
    while (remaining_s := deadline - time.monotonic()) > 0:
        pod = cluster.get("Pod", name, namespace)
        if pod is None:
            raise NotFoundError(f"The pod {namespace}/{name}, which reads outputs, was deleted. Try again.")
        phase = str(pod["status"].get("phase"))
        if phase in {"Succeeded", "Failed"}:
            return phase
        since = pod["metadata"]["resourceVersion"]
        events = cluster.watch(
            "Pod", namespace, fields=f"metadata.name={name}", since=since, within_s=max(1.0, min(remaining_s, 10.0))
        )
        for event in events:
            if event.object["status"].get("phase") in {"Succeeded", "Failed"} or event.type == "DELETED":
                break
    raise UnavailableError(
        f"The pod {namespace}/{name}, which was to read outputs, did not end in {MAX_DURATION_S:g} s. Look: "
        f"kubectl get pods -n {namespace}"
    )
