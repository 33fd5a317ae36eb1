"""Shrink a Workflow: equal steps share a template, with the step's name as its parameter. Pure.

A Workflow is one object, of bounded size. Each step has its own template, which people read best, until they no longer
fit; then only the task of a step that equals another remains: its name and dependencies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.object_labels import STEP, TASK

STEP_INPUT: Final = "step"
"""The input parameter of a shared template: its task's step."""

_PREFIX: Final = "step-"
_NAME: Final = f"{{{{inputs.parameters.{STEP_INPUT}}}}}"


def share_templates(workflow: Manifest) -> Manifest:
    """Return an equivalent Workflow whose equal steps share templates."""
    shared: dict[str, Manifest] = {}
    shared_names: dict[str, str] = {}
    """The name of the shared template, by the name of a step's template."""

    other_templates: list[Manifest] = []
    for template in workflow["spec"]["templates"]:
        if not template["name"].startswith(_PREFIX):
            other_templates.append(template)
            continue
        general = _generalize(template)
        shared_template = shared.setdefault(json.dumps(general, sort_keys=True), {**general, "name": template["name"]})
        shared_names[template["name"]] = shared_template["name"]
    templates = [_rename_in_dag(template, shared_names) for template in other_templates]
    return {**workflow, "spec": {**workflow["spec"], "templates": [*templates, *shared.values()]}}


def _generalize(template: Manifest) -> Manifest:
    """Return a step's template with the step's name as its parameter."""
    step = template["name"].removeprefix(_PREFIX)
    labels = template["metadata"]["labels"]
    own = {STEP: _NAME, TASK: _NAME + labels[TASK].removeprefix(step)}
    inputs = template.get("inputs", {}).get("parameters", [])
    container = template["container"]
    return {
        **{key: value for key, value in template.items() if key != "name"},
        "inputs": {"parameters": [{"name": STEP_INPUT}, *inputs]},
        "metadata": {**template["metadata"], "labels": {**labels, **own}},
        "container": {**container, "args": [_NAME, *container["args"][1:]]},
    }


def _rename_in_dag(template: Manifest, shared_names: dict[str, str]) -> Manifest:
    if "dag" not in template:
        return template
    return {
        **template,
        "dag": {**template["dag"], "tasks": list(_rename_templates(template["dag"]["tasks"], shared_names))},
    }


def _rename_templates(tasks: list[Manifest], shared_names: dict[str, str]) -> Iterator[Manifest]:
    for task in tasks:
        if task["template"] not in shared_names:
            yield task
            continue
        step = {"name": STEP_INPUT, "value": task["template"].removeprefix(_PREFIX)}
        parameters = task.get("arguments", {}).get("parameters", [])
        yield {**task, "template": shared_names[task["template"]], "arguments": {"parameters": [step, *parameters]}}
