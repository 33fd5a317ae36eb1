"""Makes a Workflow smaller: steps that run alike share a template, which is told the step's name. Pure.

A Workflow is one object, and those have an end. Each step has a template of its own, as people read them best, until
they no longer fit; what then is left of a step that is like another is its task: its name, and what it waits for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import STEP, TASK

STEP_INPUT: Final = "step"
"""The input parameter of a shared template: whose task it is."""

_PREFIX: Final = "step-"
_NAME: Final = f"{{{{inputs.parameters.{STEP_INPUT}}}}}"


def with_shared_templates(workflow: Manifest) -> Manifest:
    """Return a Workflow that runs the same."""
    shared: dict[str, Manifest] = {}
    name_of: dict[str, str] = {}
    """By the name of a step's template: the one that it has instead."""

    rest: list[Manifest] = []
    for template in workflow["spec"]["templates"]:
        if not template["name"].startswith(_PREFIX):
            rest.append(template)
            continue
        general = _for_any_step(template)
        known = shared.setdefault(json.dumps(general, sort_keys=True), {**general, "name": template["name"]})
        name_of[template["name"]] = known["name"]
    templates = [_with_names(template, name_of) for template in rest]
    return {**workflow, "spec": {**workflow["spec"], "templates": [*templates, *shared.values()]}}


def _for_any_step(template: Manifest) -> Manifest:
    """Return a step's template without its name: it is told the step's."""
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


def _with_names(template: Manifest, name_of: dict[str, str]) -> Manifest:
    if "dag" not in template:
        return template
    return {**template, "dag": {**template["dag"], "tasks": list(_named(template["dag"]["tasks"], name_of))}}


def _named(tasks: list[Manifest], name_of: dict[str, str]) -> Iterator[Manifest]:
    for task in tasks:
        if task["template"] not in name_of:
            yield task
            continue
        step = {"name": STEP_INPUT, "value": task["template"].removeprefix(_PREFIX)}
        given = task.get("arguments", {}).get("parameters", [])
        yield {**task, "template": name_of[task["template"]], "arguments": {"parameters": [step, *given]}}
