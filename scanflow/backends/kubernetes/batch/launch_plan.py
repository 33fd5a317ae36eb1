"""Plan the launches of steps that need no application in their pods, where ``launch.py`` reads them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scanflow.app.executor import Executor
from scanflow.app.plain_secrets import list_inherited_sources
from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.workflow_signals import list_signals
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.step_process import build_step_env, iterate_options, list_secret_sources
from scanflow.backends.task_parameters import StepInputs
from scanflow.backends.tasks import format_task_name
from scanflow.errors import ScanflowError


def plan_launches(
    definition: RunDefinition,
    run: str,
    drive: int,
    variables: Mapping[str, str],
    outputs: Path = Path(pod_layout.OUTPUTS),
) -> str:
    """Return the launches of a run's steps as JSON; empty: no step can be launched without the application.

    Args:
        definition: The run's.
        run: Its name.
        drive: The number of the run's Workflow.
        variables: Those that make a task log to the tracker, with ``@step@`` and ``@task@`` where they name it.
        outputs: The claim's mount path in its pods.
    """
    base = pod_layout.locate_run_outputs(outputs, run)
    sources = {signal.source for signal in list_signals(definition.workflow)}
    inputs = StepInputs(definition, read=lambda _: {}, outputs=base, max_fan_out=0)
    steps: dict[str, Any] = {}
    inherited = list_inherited_sources(definition.app)
    for node in definition.workflow.steps:
        if node.mainfile is None or node.references or node.for_each is not None or node.cache or node.name in sources:
            continue
        if list_secret_sources(node, inherited):
            continue  # what it prints is masked by the task's program
        try:
            steps[node.name] = _build_launch(node, definition, run, variables, inputs, base)
        except ScanflowError:
            continue  # its pod says so, where it is the step's own failure
    return json.dumps({"run": run, "drive": drive, "steps": steps}) if steps else ""


def _build_launch(
    node: Executor, definition: RunDefinition, run: str, variables: Mapping[str, str], inputs: StepInputs, base: Path
) -> dict[str, Any]:
    task, parameters = format_task_name(node.name, None), inputs.resolve_parameters(node).value
    app, workflow = definition.app, definition.workflow.name
    tracking = build_task_env(variables, node.name, task)
    own = build_step_env(app, workflow, run, node, task, base / node.name, tracking=lambda _: tracking)
    return {
        "mainfile": node.mainfile,
        "options": list(iterate_options(parameters, who=f"Executor {node.name!r}")),
        "variables": own,
        "timeout_s": node.timeout_s,
        "has_retries": bool(node.retry.limit),
    }


def build_task_env(variables: Mapping[str, str], step: str, task: str) -> dict[str, str]:
    """Return a run's tracker variables with the names of a step and a task."""
    return {name: text.replace("@step@", step).replace("@task@", task) for name, text in variables.items()}
