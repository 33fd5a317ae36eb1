"""Runs of so many steps that their objects have to be made smaller."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.definition import SavedDefinition
from scanflow.backends.kubernetes.batch.pod_layout import DOCUMENT, PACKED_FILE
from scanflow.backends.kubernetes.batch.run_document import MAX_BYTES, RunDocument
from scanflow.backends.kubernetes.batch.shared_templates import share_templates
from scanflow.backends.kubernetes.batch.workflow_records import observe_workflow
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.run_definition import RunDefinition
from scanflow.errors import UsageError
from tests.golden import batch_shapes

MANY = 3000


def chain(count: int, **fields: Any) -> list[sf.Executor]:
    nodes = [batch_shapes.step("s0", **fields)]
    for number in range(1, count):
        nodes.append(batch_shapes.step(f"s{number}", parameters={"of": nodes[-1]["x"]}, **fields))
    return nodes


def templates(workflow: Manifest) -> dict[str, Manifest]:
    return {template["name"]: template for template in workflow["spec"]["templates"]}


def tasks(workflow: Manifest) -> list[Manifest]:
    return [task for template in templates(workflow).values() if "dag" in template for task in template["dag"]["tasks"]]


def as_run(workflow: Manifest, task: Manifest) -> Manifest:
    """Return the template of a task as Argo runs it for its step."""
    template = templates(workflow)[task["template"]]
    fields = {parameter["name"]: parameter["value"] for parameter in task.get("arguments", {}).get("parameters", [])}
    text = json.dumps({key: value for key, value in template.items() if key not in {"name", "inputs"}})
    return dict(json.loads(text.replace("{{inputs.parameters.step}}", fields.get("step", ""))))


@pytest.mark.parametrize("shape", batch_shapes.SHAPES)
def test_each_task_runs_the_same_with_shared_templates(shape: Callable[[], Manifest]) -> None:
    before = shape()
    after = share_templates(before)
    plain = {
        (step_task["name"], step_task["template"]): step_task
        for step_task in tasks(before)
        if step_task["template"].startswith("step-")
    }
    there = [step_task for step_task in tasks(after) if step_task["template"].startswith("step-")]
    assert len(there) == len(plain)
    for (_, template), task in zip(plain, there, strict=True):
        old = plain[task["name"], template]
        assert as_run(after, task) == as_run(before, old)
        fields = {key: value for key, value in task.items() if key not in {"template", "arguments"}}
        assert fields == {key: value for key, value in old.items() if key not in {"template", "arguments"}}
    assert [step_task for step_task in tasks(after) if not step_task["template"].startswith("step-")] == [
        step_task for step_task in tasks(before) if not step_task["template"].startswith("step-")
    ]


def test_steps_that_are_alike_share_a_template_once_there_are_too_many() -> None:
    few, many = batch_shapes.make_manifest(chain(50)), batch_shapes.make_manifest(chain(MANY))
    assert len(templates(few)) == 51
    assert len(templates(many)) < 10
    assert len(json.dumps(many)) < MAX_BYTES
    assert [task["name"] for task in tasks(many)] == [f"s{number}" for number in range(MANY)]


def test_what_fits_in_no_way_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"8,000 steps.*for_each"):
        batch_shapes.make_manifest([batch_shapes.step(f"s{number}") for number in range(8_000)])


def test_a_task_of_a_shared_template_is_its_step_s() -> None:
    workflow = share_templates(batch_shapes.static_fan_out())
    template = next(name for name in templates(workflow) if name.startswith("step-"))
    inputs = {"parameters": [{"name": "step", "value": "best"}, {"name": "index", "value": "2"}]}
    node = {"type": "Pod", "name": "w.x", "templateName": template, "phase": "Running", "inputs": inputs}
    workflow["status"] = {"phase": "Running", "nodes": {"w-1": node}}
    assert {name: task.step for name, task in observe_workflow(workflow).tasks.items()} == {"best.2": "best"}


def document(count: int, **parameters: Any) -> RunDocument:
    nodes = [batch_shapes.step(f"s{number}", parameters=parameters) for number in range(count)]
    workflow = sf.Workflow(name="wf", nodes=nodes)
    definition = RunDefinition(sf.Application(name="shop", workflows=[workflow]), workflow)
    return RunDocument(run="calm-otter-417", definition=SavedDefinition.from_definition(definition), created=1.0)


def test_a_long_document_is_kept_compressed_and_read_back(tmp_path: Path) -> None:
    workflow_document = document(MANY, rate=0.1)
    manifest = workflow_document.build_manifest("ns", {})
    assert len(json.dumps(manifest)) < 200_000 < len(workflow_document.model_dump_json())
    assert RunDocument.from_manifest(manifest) == workflow_document
    (tmp_path / PACKED_FILE).write_bytes(base64.b64decode(manifest["binaryData"][PACKED_FILE]))
    assert RunDocument.read(tmp_path) == workflow_document
    (tmp_path / PACKED_FILE).unlink()
    (tmp_path / DOCUMENT).write_text(workflow_document.model_dump_json())
    assert RunDocument.read(tmp_path) == workflow_document


def test_what_is_too_long_even_then_is_refused_with_its_size() -> None:
    with pytest.raises(UsageError, match=r"takes [\d,]+ bytes, more than the 1,000,000"):
        document(1, text=random.Random(1).randbytes(1_000_000).hex()).build_manifest("ns", {})
