"""A validating webhook that does not answer, and without which a cluster takes no objects: what is said, and what goes
on once it answers again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Kind
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.errors import UnavailableError
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend
from tests.cluster.online import Place
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

WEBHOOK = Kind("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", namespaced=False)
SMALL = sf.Resources(cpu="150m", memory="256Mi")


@contextmanager
def install_silent_webhook(cluster: Cluster, namespace: str, group: str, resource: str) -> Iterator[None]:
    """Have a webhook for new objects of one namespace, at an address that takes connections and says nothing."""
    api = urlsplit(cluster.address)
    with socket.create_connection((api.hostname or "", api.port or 443), timeout=5) as way:
        host = str(way.getsockname()[0])
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource]}
    with socket.create_server((host, 0)) as silent, pytest.MonkeyPatch.context() as patch:
        webhook: dict[str, Any] = {
            "name": "silent.tests.scanflow.dev",
            "clientConfig": {"url": f"https://{host}:{silent.getsockname()[1]}/"},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": [rule],
            "failurePolicy": "Fail",
            "timeoutSeconds": 1,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        kind, metadata = "ValidatingWebhookConfiguration", {"name": namespace}
        patch.setitem(KINDS, kind, WEBHOOK)
        try:
            cluster.apply(
                {"apiVersion": WEBHOOK.api_version, "kind": kind, "metadata": metadata, "webhooks": [webhook]}
            )
            wait_until(lambda: is_refused(cluster, namespace, group, resource), "the webhook is asked")
            yield
        finally:
            cluster.delete(kind, namespace)


def is_refused(cluster: Cluster, namespace: str, group: str, resource: str) -> bool:
    """Return whether an object of the namespace is not taken."""
    kind = next(
        name for name, entry in KINDS.items() if entry.plural == resource and entry.api_version.startswith(group)
    )
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "none", "image": "none"}]}}
    specs: dict[str, Any] = {
        "Pod": template["spec"],
        "Deployment": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
        "Workflow": {},
    }
    metadata = {"name": "none", "namespace": namespace}
    try:
        cluster.create(
            {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, "spec": specs[kind]},
            dry_run=True,
        )
    except UnavailableError as error:
        return "failed calling webhook" in str(error)
    return False


def test_a_service_where_the_objects_are_not_taken_is_named_and_deployed_once_they_are(
    place: Callable[..., Place],
) -> None:
    here = place()
    here.backend.environments().ensure(here.app())
    with install_silent_webhook(here.cluster, here.namespace, "apps", "deployments"):
        with pytest.raises(UnavailableError, match="failed calling webhook") as failed:
            here.deploy(2, resources=SMALL)
        assert f"deployments '{here.name}-r1' of the namespace '{here.namespace}'" in str(failed.value)
        assert "kubectl get validatingwebhookconfigurations" in str(failed.value)
        record = here.deployer.service(here.name)
        assert (record.state, record.generation, record.settled) == ("starting", 1, 0)
    assert (here.deploy(2, resources=SMALL).state, here.answer()) == ("ready", [2])


def test_pods_that_are_not_taken_are_reported_and_waited_for(place: Callable[..., Place]) -> None:
    here = place()
    here.deploy(2, resources=SMALL)
    with ThreadPoolExecutor(1) as pool:
        with install_silent_webhook(here.cluster, here.namespace, "", "pods"), here.load() as failed:
            grown = pool.submit(here.change, instances=2)
            wait_until(lambda: any("failed calling webhook" in message.text for message in here.seen), "it is told")
            assert not grown.done(), "it may pass"
            assert here.answer() == [2]
        assert [instance.state for instance in grown.result(timeout=90).instances] == ["ready", "ready"]
    (text,) = [event.text for event in here.seen if "failed calling webhook" in event.text]
    assert f"no pod of the Deployment {here.namespace}/{here.name}-r1 can be created" in text
    assert "Is the webhook's server up?" in text
    assert failed == []


def test_a_run_where_the_workflow_is_not_taken_says_so_and_is_gone_on_with(
    settings: Settings, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "say.py").write_text("print('said')\n", encoding="utf-8")
    work = sf.Workflow(name="work", nodes=[sf.Executor(name="say", mainfile="say.py")])
    app = sf.Application(
        name=f"hooks{threading.get_ident() % 10**6}", team="tests", app_dir=str(tmp_path / "app"), workflows=[work]
    )
    namespace = derive_namespace(app.name, app.team)
    with batch_backend(settings) as backend:
        deployer = EmbeddedDeployer(settings, backend=backend)
        try:
            backend.environments().ensure(app)
            with install_silent_webhook(cluster, namespace, "argoproj.io", "workflows"):
                with pytest.raises(UnavailableError, match="failed calling webhook") as failed:
                    deployer.run(RunRequest(app, "work"))
                assert f"workflows of the namespace '{namespace}'" in str(failed.value)
                (begun,) = deployer.runs()
                assert deployer.show(begun.name).state == "interrupted"
            record = deployer.run(RunRequest(run=begun.name))
            assert (record.state, [task.attempts for task in record.tasks]) == ("succeeded", [1])
            assert len(cluster.find("Workflow", namespace, labels=build_selector(run=str(begun.name)))[0]) == 1
        finally:
            cluster.delete("Namespace", namespace)
