"""Whether a namespace takes the pods of an MPI job: a job whose pods are refused would wait for them without a word."""

from __future__ import annotations

from typing import Final

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.pods import explain_denied_pod
from scanflow.errors import InvalidError, UsageError

_NOT_LASTING: Final = ("quota", "cannot create resource", "service account")
"""Parts of messages of what passes, as a quota that is used up, or says nothing of what the job's controller may do."""


def check_admission(cluster: Cluster, job: Manifest) -> None:
    """Raise for a job whose pods its namespace refuses, by a dry run of each.

    Raises:
        InvalidError: Pod Security, a LimitRange or a policy refuses them.
    """
    metadata = job["metadata"]
    for number, template in enumerate(_list_templates(job)):
        own = {
            **template.get("metadata", {}),
            "name": f"{metadata['name']}-{number}",
            "namespace": metadata["namespace"],
        }
        spec = {"restartPolicy": "Never", **template["spec"]}
        try:
            cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": spec}, dry_run=True)
        except UsageError as error:
            denial = explain_denied_pod(str(error), metadata["namespace"])
            if denial is None or any(words in str(error) for words in _NOT_LASTING):
                return
            raise InvalidError(
                f"The namespace {metadata['namespace']!r} refuses the pods of MPI jobs: {denial}"
            ) from error


def _list_templates(job: Manifest) -> list[Manifest]:
    """Return the pod templates of a job of either engine."""
    spec = job["spec"]
    replicas = spec["tasks"] if job["kind"] == "Job" else spec["mpiReplicaSpecs"].values()
    return [group["template"] for group in replicas]
