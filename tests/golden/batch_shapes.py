"""Batch runs of every shape: what the golden manifests are made of, and a cluster is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import scanflow as sf
from scanflow.backends.definition import SavedDefinition
from scanflow.backends.kubernetes.batch.argo_workflow import build_workflow_manifest
from scanflow.backends.kubernetes.batch.finished_steps import FinishedSteps
from scanflow.backends.kubernetes.batch.pod_settings import PodSettings, StepImage
from scanflow.backends.kubernetes.batch.run_document import RunDocument
from scanflow.backends.kubernetes.gpus import DevicePlugin
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.tasks import cut_down

CODE: Mapping[str, Any] = {"name": "code", "mountPath": "/app", "readOnly": True}


def step(name: str, **fields: Any) -> sf.Executor:
    return sf.Executor(name=name, mainfile=f"{name}.py", **fields)


def make_manifest(
    nodes: list[sf.Executor],
    *,
    only: str | None = None,
    finished: FinishedSteps | None = None,
    plugin: DevicePlugin | None = None,
    **more: Any,
) -> Manifest:
    workflow = sf.Workflow(name="wf", nodes=nodes)
    app = sf.Application(name="shop", team="data", workflows=[workflow], app_dir="/srv/shop")
    definition = cut_down(RunDefinition(app, workflow, step=only))
    more.setdefault("drive", 1)
    document = RunDocument(
        run="calm-otter-417", definition=SavedDefinition.from_definition(definition), created=1.0, **more
    )
    images = {node.name: StepImage("scanflow/base:1", (CODE,)) for node in nodes if node.image is None}
    place = PodSettings(
        namespace=derive_namespace(app.name, app.team),
        image="scanflow/base:1",
        service_account="scanflow-step",
        images=images | {node.name: StepImage(node.image) for node in nodes if node.image is not None},
        volumes=({"name": "code", "configMap": {"name": "code-0123456789abcdef"}},),
        pull_secret="registry",
        device_plugin=plugin or DevicePlugin(),
    )
    manifest = build_workflow_manifest(document, definition, finished or FinishedSteps(), place)
    assert manifest is not None
    return manifest


def sequence() -> Manifest:
    load = step("load", parameters={"rows": 10})
    train = step("train", parameters={"data": load["path"]}, timeout="1m30s", retries=sf.Retry(limit=2, delay="10s"))
    return make_manifest([load, train, step("report", parameters={"score": train["score"]})])


def placement() -> Manifest:
    own_cores = step("tune", image="shop/tune:3", resources=sf.Resources(cpu=2, memory="1Gi", gpu=1), affinity="cpumem")
    beside = step("load", resources=sf.Resources(cpu="250m", memory="256Mi"))
    kept_off = step(
        "train",
        affinity=sf.Affinity(
            node_selector={"disk": "ssd"}, near=["load"], apart_from=["tune"], avoid_services=["serving"]
        ),
    )
    return make_manifest([own_cores, beside, kept_off])


def gpus() -> Manifest:
    whole = step("train", resources=sf.Resources(gpu=2, gpu_memory="40Gi"), affinity=sf.Affinity(near=["score"]))
    return make_manifest([whole, step("score", resources=sf.Resources(gpu=0.5))])


def static_fan_out() -> Manifest:
    train = step("train", for_each=[1, 2, 4], parameters={"depth": sf.item}, retries=1)
    return make_manifest([train, step("best", parameters={"scores": train["score"]})])


def fan_outs() -> Manifest:
    load = step("load")
    clean = step("clean", for_each=load["files"], parameters={"file": sf.item})
    train = step("train", for_each=clean["path"], parameters={"file": sf.item})
    return make_manifest([load, clean, train, step("join", parameters={"all": train["model"]})])


def conditions() -> Manifest:
    check, other = step("check"), step("other")
    good = step("good", when=check["score"] >= 0.9)
    bad = step("bad", when=check["score"] < 0.9)
    after = step("after-good", parameters={"of": good["path"]})
    wide = step("wide", for_each=good["files"], parameters={"file": sf.item})
    none = step("none-good", when=good["path"].equals(None), parameters={"other": other["x"]})
    return make_manifest(
        [check, other, good, bad, after, wide, none, step("join", parameters={"a": good["x"], "b": bad["x"]})]
    )


def condition_on_a_fan_out() -> Manifest:
    load = step("load")
    score = step("score", for_each=load["files"], parameters={"file": sf.item})
    return make_manifest([load, score, step("alarm", when=score["ok"].equals([True, True]))])


def resumption() -> Manifest:
    load = step("load")
    clean = step("clean", for_each=load["files"], parameters={"file": sf.item})
    maybe = step("maybe", when=load["rows"] > 10)
    finished = FinishedSteps(done=frozenset({"load"}), attempts={"clean.1": 2})
    join = step("join", parameters={"all": clean["path"], "maybe": maybe["x"]})
    return make_manifest([load, clean, maybe, join], finished=finished, drive=2, kept={"clean": (0, 2)})


def one_task() -> Manifest:
    load = step("load")
    train = step("train", for_each=load["files"], parameters={"file": sf.item})
    finished = FinishedSteps(done=frozenset({"load"}))
    return make_manifest([load, train], only="train.3", finished=finished, origins={"load": "bold-crane-156"})


SHAPES: tuple[Callable[[], Manifest], ...] = (
    sequence,
    placement,
    gpus,
    static_fan_out,
    fan_outs,
    conditions,
    condition_on_a_fan_out,
    resumption,
    one_task,
)
