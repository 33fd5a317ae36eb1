"""The chart of the platform: what it renders to, to the letter, and which values it refuses. Needs ``helm``.

``REGENERATE_GOLDEN=1 pytest tests/golden/test_helm_chart.py`` writes the files again; read what changed first.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scanflow.backends.kubernetes import permissions
from scanflow.backends.kubernetes.kinds import KINDS
from tests.manifests import as_yaml
from tests.waiting import patient

HERE = Path(__file__).parent
CHART = HERE.parent.parent / "deploy" / "helm" / "scanflow"
GIVEN = ("server.token.secret=own-token", "server.tls.mode=secret", "server.tls.secret=own-tls")
PROXY = ("server.tls.mode=proxy", "gateway.enabled=true", "gateway.name=edge", "gateway.namespace=infra")

pytestmark = [
    pytest.mark.cluster,  # whose tools helm is one of
    pytest.mark.skipif(shutil.which("helm") is None, reason="the program helm is not installed"),
]


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *words], capture_output=True, text=True, timeout=patient(120))


def render_chart(*values: str) -> subprocess.CompletedProcess[str]:
    sets = [word for value in values for word in ("--set", value)]
    return helm("template", "prod", str(CHART), "--namespace", "platform", "--kube-version", "1.34.0", *sets)


def objects(*values: str) -> list[dict[str, Any]]:
    done = render_chart(*values)
    assert done.returncode == 0, done.stderr
    manifests = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]
    for manifest in manifests:
        if manifest["kind"] == "Secret":
            manifest["data"] = dict.fromkeys(sorted(manifest["data"]), "(random)")
    return sorted(manifests, key=lambda manifest: (manifest["kind"], manifest["metadata"]["name"]))


def of_kind(kind: str, *values: str) -> list[dict[str, Any]]:
    return [manifest for manifest in objects(*values) if manifest["kind"] == kind]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("default", ()),
        (
            "several",
            (
                *GIVEN,
                "server.replicas=3",
                "server.database.secret=postgres",
                "server.home.accessMode=ReadWriteMany",
                "tracker.secret=mlflow",
                "rbac.engines={argo,seldon,kserve,keda,gateway,volcano,mpi-operator}",
                "imageRegistry=registry.example.org/ml/",
                "imagePullSecrets={pull}",
            ),
        ),
        ("gateway", (*PROXY, "gateway.hostnames={scanflow.example.org}", "tracker.enabled=false")),
        ("one-namespace", (*GIVEN, "kubernetes.namespace=team-red", "tracker.enabled=false")),
    ],
)
def test_what_the_chart_renders_to(name: str, values: tuple[str, ...]) -> None:
    text = as_yaml(objects(*values))
    path = HERE / "helm" / f"{name}.yaml"
    if os.environ.get("REGENERATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_variables_of_sign_in_come_from_a_secret_and_none_without() -> None:
    for values, from_secrets in (((), None), (("server.signIn.secret=people",), [{"secretRef": {"name": "people"}}])):
        (server,) = (
            manifest for manifest in of_kind("Deployment", *values) if manifest["metadata"]["name"] == "prod-scanflow"
        )
        assert server["spec"]["template"]["spec"]["containers"][0].get("envFrom") == from_secrets


def test_the_chart_passes_helm_s_own_checks() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (("server.replicas=2",), "server"),
        (("server.replicas=2", "server.database.secret=postgres"), "accessMode"),
        (("server.tls.mode=none",), "mode"),
        (("server.tls.mode=secret",), "tls"),
        (("gateway.enabled=true", "gateway.name=edge"), "tls"),
        (("gateway.enabled=true", "server.tls.mode=proxy"), "gateway"),
        (("rbac.engines={everything}",), "engines"),
        (("tracker.url=http://mlflow",), "tracker"),
        (("server.home.size=much",), "size"),
        (("serverr.replicas=1",), "serverr"),
    ],
)
def test_values_that_cannot_work_are_refused_and_named(values: tuple[str, ...], named: str) -> None:
    done = render_chart(*values)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert named in done.stderr


def test_the_server_may_do_nothing_to_all_kinds_and_is_no_administrator() -> None:
    for role in (*of_kind("ClusterRole"), *of_kind("Role")):
        for rule in role["rules"]:
            assert all(rule[field] for field in ("apiGroups", "resources", "verbs"))
            assert "*" not in [word for words in rule.values() for word in words]
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
    (binding,) = of_kind("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == "platform-prod-scanflow"


@pytest.mark.parametrize("values", [(), PROXY])
def test_containers_are_locked_in_and_a_token_is_needed_with_or_without_tls(values: tuple[str, ...]) -> None:
    for deployment in of_kind("Deployment", *values):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    server = next(entry for entry in of_kind("Deployment", *values) if entry["metadata"]["name"] == "prod-scanflow")
    variables = {variable["name"]: variable for variable in server["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert variables["SCANFLOW_SERVER_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "prod-scanflow-token"
    assert ("SCANFLOW_TLS_CERT" in variables) != ("SCANFLOW_BEHIND_PROXY" in variables)


def test_of_one_namespace_the_server_has_no_right_elsewhere_but_in_its_own() -> None:
    manifests = objects("kubernetes.namespace=team-red")
    assert {manifest["metadata"].get("namespace") for manifest in manifests} == {"platform", "team-red"}
    assert not [manifest for manifest in manifests if manifest["kind"].startswith("ClusterRole")]


def test_the_server_may_do_all_that_the_backend_does() -> None:
    granted: set[tuple[str, str, str]] = set()
    for role in of_kind("ClusterRole", "rbac.engines={argo,seldon,kserve,keda,gateway,volcano,mpi-operator}"):
        for rule in role["rules"]:
            granted |= set(itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]))
    used = {
        (api_version.rpartition("/")[0], plural, verb)
        for kind, verbs in permissions.USED_VERBS.items()
        for api_version, plural in [KINDS[kind][:2]]
        for verb in verbs
    }
    used |= {(group, resource, verb) for resource, (group, verb) in permissions.SUBRESOURCES.items()}
    # Whoever may read through a node's proxy may run commands in its pods: the server does without kubelets' settings.
    assert used - granted == {("", "nodes/proxy", "get")}
