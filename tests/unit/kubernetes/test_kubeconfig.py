"""What is wrong with a kubeconfig is named: the file, the context, and what it lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from lightkube.config.client_adapter import user_auth

from scanflow.backends.kubernetes.kubeconfig import read_kubeconfig
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.errors import UsageError

WHOLE = {
    "clusters": [{"name": "lab", "cluster": {"server": "https://lab.invalid"}}],
    "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "ada"}}],
    "users": [{"name": "ada", "user": {"token": "t"}}],
    "current-context": "lab",
}


def read(tmp_path: Path, text: str, context: str | None = None) -> Any:
    file = tmp_path / "config"
    file.write_text(text, encoding="utf-8")
    return read_kubeconfig(KubernetesSettings(kubeconfig=str(file), context=context))


def test_a_whole_file_names_the_cluster_and_the_user(tmp_path: Path) -> None:
    config = read(tmp_path, json.dumps(WHOLE))
    assert (config.cluster.server, config.user.token, config.fname) == ("https://lab.invalid", "t", tmp_path / "config")


@pytest.mark.parametrize(
    ("change", "context", "message"),
    [
        ({"users": [{"name": "bob", "user": {}}]}, None, r"context 'lab' .*names the user 'ada'.*It has 'bob'"),
        ({"users": []}, None, r"names the user 'ada'.*It has no user.*set-credentials"),
        ({"clusters": []}, None, r"names the cluster 'lab'.*It has no cluster.*set-cluster"),
        ({}, "labb", r"no context 'labb'. Did you mean 'lab'"),
        ({"current-context": None}, None, r"no current context"),
        ({"contexts": "lab"}, None, r"cannot be read"),
    ],
)
def test_what_a_context_lacks_is_named(
    tmp_path: Path, change: dict[str, Any], context: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, json.dumps({**WHOLE, **change}), context)


@pytest.mark.parametrize("text", ["", "[]", "{", "a", "clusters: [1]", "\0"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"config' cannot be read .*kubectl config view"):
        read(tmp_path, text)


PLUGIN = """#!/bin/sh
case "$KUBERNETES_EXEC_INFO" in
  *client.authentication.k8s.io/{version}\\"*ExecCredential*) echo '{{"status": {{"token": "of-{version}"}}}}' ;;
  *) exit 1 ;;
esac
"""


@pytest.mark.parametrize("version", ["v1beta1", "v1"])
def test_a_credential_plugin_of_each_version_gives_the_token(tmp_path: Path, version: str) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN.format(version=version), encoding="utf-8")
    plugin.chmod(0o700)
    user = {"exec": {"apiVersion": f"client.authentication.k8s.io/{version}", "command": str(plugin)}}
    config = read(tmp_path, json.dumps(WHOLE | {"users": [{"name": "ada", "user": user}]}))
    auth = user_auth(config.user)
    assert auth is not None
    request = next(auth.sync_auth_flow(httpx2.Request("GET", config.cluster.server)))
    assert request.headers["authorization"] == f"Bearer of-{version}"
