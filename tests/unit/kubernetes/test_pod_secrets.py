"""Secrets in pods come from the namespace's Secrets, and manifests name them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.app.application_files import dump_document
from scanflow.backends.agent_hosting import HostedAgent
from scanflow.backends.kubernetes.agents.agent_manifests import build_objects
from scanflow.backends.kubernetes.batch.launch_plan import plan_launches
from scanflow.backends.kubernetes.batch.run_checks import check_definition
from scanflow.backends.kubernetes.environment.tracker_manifests import resolve_tracker_uri
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.online.instance_pods import build_config_map, build_pod_template
from scanflow.backends.kubernetes.online.service_checks import check_workflow
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.shapes import compute_shape
from scanflow.errors import UnsupportedError
from scanflow.files.secret_sources import format_pod_variable
from tests.golden.batch_shapes import make_manifest, step
from tests.unit.kubernetes.test_batch_step import Claim
from tests.unit.kubernetes.test_online_manifests import GIVEN, definition

KEY, SIGN = sf.secret("k8s:api/key"), sf.secret("k8s:api/sign-2")


def refer(secret: sf.Secret) -> dict[str, Any]:
    name, _, key = secret.place.partition("/")
    reference = {"secretKeyRef": {"name": name, "key": key}}
    return {"name": format_pod_variable(secret.source), "valueFrom": reference}


def test_a_step_has_the_secrets_that_it_refers_to_and_no_others() -> None:
    a = step("a", parameters={"key": KEY, "deep": [{"sign": SIGN}]}, env={"KEY": KEY, "MODE": "x"})
    manifest = make_manifest([a, step("b")])
    containers = {
        template["name"]: template["container"]
        for template in manifest["spec"]["templates"]
        if template["name"].startswith("step-")
    }
    no_gpus, *secrets = containers["step-a"]["env"]
    assert secrets == sorted(
        [refer(KEY), refer(SIGN)], key=lambda variable: variable["valueFrom"]["secretKeyRef"]["key"]
    )
    assert containers["step-b"]["env"] == [no_gpus]


def test_an_instance_has_the_secrets_of_its_graph_and_its_variables() -> None:
    spec = definition()
    node = replace(spec.current.nodes[0], parameters={"key": {"$secret": KEY.source}})
    spec = spec.with_changes(
        revisions=(replace(spec.current, nodes=(node,)),),
        serving=spec.serving.replace(env={"SIGN": SIGN, "MODE": "x"}, record=0.5),
    )
    instance, recorder = build_pod_template(spec, spec.current, GIVEN)["spec"]["containers"]
    assert [variable for variable in instance["env"] if "secretKeyRef" in variable.get("valueFrom", {})] == [
        refer(KEY),
        refer(SIGN),
    ]
    assert {**refer(SIGN), "name": "SIGN"} in recorder["env"]
    config = build_config_map(spec, spec.current, GIVEN)["data"]
    assert json.loads(config["instance.json"])["secrets"] == {"SIGN": SIGN.source}
    assert json.loads(config["desired.json"])["revisions"][0]["nodes"][0]["parameters"] == {
        "key": {"$secret": KEY.source}
    }


def test_an_agent_has_the_secrets_of_its_parameters() -> None:
    agent = sf.Agent(name="watch", modules=["watch.py"], parameters={"chat": [KEY]})
    app = sf.Application(name="shop", team="red", agents=[agent])
    hosted = HostedAgent("shop", "red", "watch", document=dump_document(app), version="1", code="c")
    deployment = build_objects(hosted, agent, KubernetesSettings())[-1]
    assert refer(KEY) in deployment["spec"]["template"]["spec"]["containers"][0]["env"]


def test_files_of_this_machine_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    secret = sf.secret("file:key.txt")
    batch = sf.Workflow(name="w", nodes=[sf.Executor(name="a", mainfile="a.py", env={"KEY": secret})])
    service = sf.Service(name="m", implementation="a.py:M", parameters={"key": secret})
    online = sf.Workflow(name="o", type="online", nodes=[service])
    app = sf.Application(name="shop", app_dir=tmp_path, workflows=[batch, online])
    with pytest.raises(UnsupportedError, match=r"Executor 'a' uses the secret 'file:key.txt'.*Write k8s:SECRET/KEY"):
        check_definition(RunDefinition(app, batch), lambda _: False, lambda *_: None)
    with pytest.raises(UnsupportedError, match=r"Workflow 'o' uses the secret 'file:key.txt'"):
        check_workflow(app, online, compute_shape(online), KubernetesSettings())
    with pytest.raises(UnsupportedError, match=r"Tracker\.uri as the secret 'env:T'"):
        resolve_tracker_uri(app.replace(tracker=sf.Tracker(uri=sf.secret("env:T"))), KubernetesSettings())


def test_a_step_with_secrets_is_not_launched_without_what_masks() -> None:
    workflow = sf.Workflow(name="w", nodes=[step("a", env={"KEY": KEY}), step("b")])
    definition_ = RunDefinition(sf.Application(name="shop", workflows=[workflow]), workflow)
    assert set(json.loads(plan_launches(definition_, "r", 1, {}))["steps"]) == {"b"}


@pytest.mark.processes
def test_a_step_gets_its_secrets_in_its_pod_and_prints_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(format_pod_variable(KEY.source), "canary-pod-1")
    secrets = {"to": KEY, "deep": {"a": [KEY]}}
    script = step("script", parameters=secrets, env={"OWN": KEY})
    function = sf.Executor(name="function", function="own.py:tell", parameters={"to": KEY}, env={"OWN": KEY})
    missing = sf.Executor(name="missing", mainfile="script.py", parameters={"to": SIGN})
    claim = Claim(tmp_path, [script, function, missing])
    (tmp_path / "app" / "script.py").write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['OWN'], open('/proc/self/cmdline').read().count('canary'))\n"
        "print([name for name in os.environ if name.startswith('SCANFLOW_SECRET')])"
    )
    (tmp_path / "app" / "own.py").write_text(
        "import os\n\ndef tell(to: str) -> int:\n    print(to, os.environ['OWN'])\n    return len(to)\n"
    )
    code, streams = claim.pod("script")
    assert (code, streams["stdout"]) == (0, b"['--to', '***', '--deep', '{\"a\": [\"***\"]}'] *** 0\n[]\n")
    code, streams = claim.pod("function")
    assert (code, streams["stdout"], json.loads(claim.read_report("outputs") or "")) == (
        0,
        b"*** ***\n",
        {"result": "12"},
    )
    code, _ = claim.pod("missing")
    assert code != 0
    assert "There is no secret in 'k8s:api/sign-2'" in claim.report["failure"]["cause"]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert [file for file in files if b"canary-pod" in file.read_bytes()] == []
