"""Build Argo's ``Workflow`` of a run with Hera's models. Pure.

Each step is a template and a task of one graph; a fan-out is a template with a graph of its own, so that an empty list
differs from a skipped step. Inputs and outputs of steps are on the claim; only signals go through Argo.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from hera.workflows import models as argo

from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.batch import pod_layout, step_pods
from scanflow.backends.kubernetes.batch.finished_steps import FinishedSteps, add_skipped
from scanflow.backends.kubernetes.batch.pod_settings import PodSettings
from scanflow.backends.kubernetes.batch.retries import has_own_backoff
from scanflow.backends.kubernetes.batch.run_document import MAX_BYTES, RunDocument, check_size
from scanflow.backends.kubernetes.batch.shared_templates import share_templates
from scanflow.backends.kubernetes.batch.workflow_signals import (
    WRONG,
    Signal,
    format_static_items,
    get_root,
    list_signals,
)
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.backends.run_definition import RunDefinition

Sources = Mapping[str, str]
"""From a step to the task of Argo's graph that reports its signals."""


KNOWN: Final = "Known"
"""The task that reports the signals of steps that ended in an earlier drive. Steps have lower-case names."""

SUMMING: Final = "Signals"
"""The task inside a fan-out that reports the signals of all its outputs."""

_NO_RETRY: Final = "specified deadline$"
"""Argo's message about a pod that its node ended because its task was stopped or did not start."""

PATIENCE_S: Final = 300
"""Seconds that a pod may live beyond its step's timeout, to pull its image."""


STATUS_BYTES: Final = 150
"""Size of an ended step in its Workflow's status: 900 bytes, which Argo compresses to some 90 once there are many."""


@dataclass(frozen=True)
class _Graph:
    """The inputs of the graph's tasks."""

    document: RunDocument
    definition: RunDefinition
    finished: FinishedSteps
    pod_settings: PodSettings
    may_skip: frozenset[str]
    signals: tuple[Signal, ...]

    @property
    def workflow(self) -> Workflow:
        return self.definition.workflow

    def has_ended(self, step: str) -> bool:
        return step in self.finished.done or step in self.finished.skipped

    @cached_property
    def undecided(self) -> frozenset[str]:
        """The steps that may still be skipped at run time."""
        return self.may_skip - self.finished.done - self.finished.skipped

    @cached_property
    def sources(self) -> dict[str, str]:
        """By step: the task that reports its signals."""
        return {step: KNOWN if self.has_ended(step) else step for step in self.workflow.by_name}

    def select_signals(self, step: str) -> list[Signal]:
        """Return the signals of a step to steps that are still to run."""
        return [signal for signal in self.signals if signal.source == step and not self.has_ended(signal.step)]

    @property
    def ended_sources(self) -> list[str]:
        """The ended steps whose signals are still needed."""
        return sorted(
            {
                signal.source
                for signal in self.signals
                if self.has_ended(signal.source) and not self.has_ended(signal.step)
            }
        )


def build_workflow_manifest(
    document: RunDocument, definition: RunDefinition, finished: FinishedSteps, pod_settings: PodSettings
) -> Manifest | None:
    """Return the Workflow of a run's remaining steps; None: all have ended.

    Raises:
        UsageError: it is larger than an object of a cluster may be.
    """
    workflow, app = definition.workflow, definition.app
    finished = add_skipped(workflow, finished)
    graph = _Graph(
        document, definition, finished, pod_settings, frozenset(list_skippable(workflow)), tuple(list_signals(workflow))
    )
    remaining = [node for node in workflow.steps if not graph.has_ended(node.name)]
    if not remaining:
        return None
    tasks = [_build_task(graph, node) for node in remaining]
    templates = [template for node in remaining for template in _build_templates(graph, node)]
    if graph.ended_sources:
        tasks.insert(0, argo.DAGTask(name=KNOWN, template=_format_signals_template(KNOWN)))
        templates.append(_build_signals_template(graph, KNOWN, graph.ended_sources))
    spec = step_pods.build_spec(
        pod_settings, document.run, [argo.Template(name="run", dag=_build_dag(tasks)), *templates]
    )
    labels = build_labels(app.name, app.team, workflow=workflow.name, run=document.run)
    annotations = {pod_layout.DRIVE: str(document.drive)}
    if finished.attempts:
        annotations[pod_layout.ATTEMPTS] = json.dumps(dict(finished.attempts))
    manifest = build_manifest(
        "Workflow",
        {
            "name": pod_layout.format_workflow_name(document.run, document.drive),
            "namespace": pod_settings.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        spec=dump_model(spec),
    )
    if estimate_workflow_size(manifest, len(remaining)) > MAX_BYTES:
        manifest = share_templates(manifest)
    check_size(
        estimate_workflow_size(manifest, len(remaining)), f"The Workflow of the run {document.run!r}", len(remaining)
    )
    return manifest


def estimate_workflow_size(manifest: Manifest, steps: int) -> int:
    """Return the bytes that a Workflow will have: its manifest, and the status that Argo adds for each step."""
    return len(json.dumps(manifest, separators=(",", ":"))) + steps * STATUS_BYTES


def _build_dag(tasks: list[argo.DAGTask]) -> argo.DAGTemplate:
    """Return a graph whose independent tasks go on after a failure."""
    return argo.DAGTemplate(tasks=tasks, fail_fast=False)


def _build_task(graph: _Graph, node: Executor) -> argo.DAGTask:
    waits_for = [step for step in graph.workflow.parents[node.name] if not graph.has_ended(step)]
    ran = [step for step in graph.workflow.parents[node.name] if step in graph.finished.done]
    when = build_when(node, waits_for, graph.sources, graph.undecided, ran=ran)
    has_ended_source = any(signal.step == node.name and graph.has_ended(signal.source) for signal in graph.signals)
    dependencies = [*waits_for, *([KNOWN] if has_ended_source else [])]
    if node.for_each is None:
        return argo.DAGTask(
            name=node.name, template=_format_step_template(node), dependencies=dependencies or None, when=when
        )
    root = get_root(graph.workflow, node)
    if isinstance(root.for_each, Ref):
        items = format_items_reference(node, graph.sources[root.for_each.step or ""], graph.undecided)
    else:
        items = format_static_items(root, node, graph.document.kept.get(node.name, ()), graph.definition.step)
    return argo.DAGTask(
        name=node.name,
        template=f"each-{node.name}",
        dependencies=dependencies or None,
        when=when,
        arguments=argo.Arguments(parameters=[argo.Parameter(name="items", value=items)]),
    )


def _build_templates(graph: _Graph, node: Executor) -> list[argo.Template]:
    signals = graph.select_signals(node.name)
    if node.for_each is None:
        return [_build_step_template(graph, node, signals)]
    item = argo.DAGTask(
        name="item",
        template=_format_step_template(node),
        with_param="{{inputs.parameters.items}}",
        arguments=argo.Arguments(parameters=[argo.Parameter(name="index", value="{{item}}")]),
    )
    fan_out = argo.Template(
        name=f"each-{node.name}", inputs=argo.Inputs(parameters=[argo.Parameter(name="items")]), dag=_build_dag([item])
    )
    step = _build_step_template(graph, node, [])
    if not signals:
        return [fan_out, step]
    summing = argo.DAGTask(name=SUMMING, template=_format_signals_template(node.name), dependencies=["item"])
    fan_out.dag = _build_dag([item, summing])
    fan_out.outputs = argo.Outputs(
        parameters=[
            argo.Parameter(
                name=signal.name,
                value_from=argo.ValueFrom(parameter=format_output_reference(SUMMING, signal.name, default=None)),
            )
            for signal in signals
        ]
    )
    return [fan_out, step, _build_signals_template(graph, node.name, [node.name])]


def _build_step_template(graph: _Graph, node: Executor, signals: list[Signal]) -> argo.Template:
    is_fan_out = node.for_each is not None
    index = "{{inputs.parameters.index}}"
    task = f"{node.name}.{index}" if is_fan_out else node.name
    retries = node.retry.limit
    arguments = [
        node.name,
        *(["--index", index] if is_fan_out else []),
        *(["--retry", "{{retries}}"] if retries else []),
    ]
    attempts_before = graph.finished.attempts
    if attempts := {name: count for name, count in attempts_before.items() if name.partition(".")[0] == node.name}:
        arguments += ["--before", json.dumps(attempts)]
    app, run = graph.definition.app, graph.document.run
    template = step_pods.build_step_template(graph.pod_settings, app, node, arguments, run=run)
    template.name = _format_step_template(node)
    template.metadata = argo.Metadata(labels=build_labels(app.name, app.team, run=run, step=node.name, task=task))
    template.outputs = argo.Outputs(
        parameters=[
            _build_file_output(pod_layout.REPORT, ""),
            _build_file_output(pod_layout.OUTPUTS_PARAMETER, ""),
            *(_build_file_output(signal.name, None) for signal in signals),
        ]
    )
    template.retry_strategy = build_retry_strategy(node)
    if is_fan_out:
        template.inputs = argo.Inputs(parameters=[argo.Parameter(name="index")])
    if node.timeout_s is not None:
        template.active_deadline_seconds = _build_int_or_string(math.ceil(node.timeout_s) + PATIENCE_S)
    return template


def _build_signals_template(graph: _Graph, name: str, sources: list[str]) -> argo.Template:
    template = step_pods.build_small_template(graph.pod_settings, ["--signals", *sources])
    template.name = _format_signals_template(name)
    app = graph.definition.app
    template.metadata = argo.Metadata(labels=build_labels(app.name, app.team, run=graph.document.run))
    signals = [signal for source in sources for signal in graph.select_signals(source)]
    template.outputs = argo.Outputs(parameters=[_build_file_output(signal.name, None) for signal in signals])
    return template


def _build_file_output(name: str, default: str | None) -> argo.Parameter:
    """Return an output parameter that the step's program writes. Its default is unused: no task needs a failed step."""
    return argo.Parameter(
        name=name, value_from=argo.ValueFrom(path=str(pod_layout.REPORTED_FOLDER / name), default=default or "")
    )


def build_retry_strategy(node: Executor) -> argo.RetryStrategy | None:
    """Return Argo's retries of a step, with their waits. A stopped task is not retried.

    Argo multiplies waits by a whole number, without an upper bound. Other waits are kept by the step's own program.
    """
    retry = node.retry
    if not retry.limit:
        return None
    backoff = None
    if retry.delay and not has_own_backoff(node):
        backoff = argo.Backoff(
            duration=f"{math.ceil(float(retry.delay) * 1000)}ms", factor=_build_int_or_string(int(retry.factor))
        )
    return argo.RetryStrategy(
        limit=_build_int_or_string(retry.limit),
        retry_policy="Always",
        backoff=backoff,
        expression=f"lastRetry.exitCode != '{pod_layout.EXIT_STOPPED}' && !(lastRetry.message matches '{_NO_RETRY}')",
    )


def _build_int_or_string(number: int) -> argo.IntOrString:
    return argo.IntOrString.model_validate(number)


def _format_step_template(node: Executor) -> str:
    return f"step-{node.name}"


def _format_signals_template(name: str) -> str:
    return f"signals-{name.lower()}" if name == KNOWN else f"signals-of-{name}"


def dump_model(model: Any) -> Any:
    """Return a model as JSON data, without unset fields."""
    return json.loads(model.model_dump_json(by_alias=True, exclude_none=True))


def list_skippable(workflow: Workflow) -> set[str]:
    """Return the steps that may be skipped: by a condition, or with all their dependencies."""
    steps: set[str] = set()
    for name in (name for level in workflow.levels for name in level):
        node, parents = workflow.by_name[name], workflow.parents[name]
        if (isinstance(node, Executor) and node.when is not None) or (parents and steps.issuperset(parents)):
            steps.add(name)
    return steps


def build_when(
    node: Executor,
    waits_for: Collection[str],
    sources: Sources,
    may_skip: Collection[str],
    *,
    ran: Collection[str] = (),
) -> str | None:
    """Return the expression under which Argo runs a step; None: always.

    Args:
        node: The step.
        waits_for: Its dependencies that have not ended yet.
        sources: The task that reports each step's signals.
        may_skip: The steps that may be skipped.
        ran: Its dependencies that have run already.
    """
    clauses = []
    if waits_for and not ran and all(step in may_skip for step in waits_for):
        clauses.append(" || ".join(f"'{{{{tasks.{step}.status}}}}' == 'Succeeded'" for step in waits_for))
    if node.when is not None and node.when.left.step is not None:
        step = node.when.left.step
        skipped = ("true" if node.when.holds_if_skipped() else "false") if step in may_skip else None
        clauses.append(f"'{format_output_reference(sources[step], f'when-{node.name}', skipped)}' == 'true'")
    return " && ".join(f"({clause})" for clause in clauses) if len(clauses) > 1 else next(iter(clauses), None)


def format_items_reference(node: Executor, task: str, may_skip: Collection[str]) -> str:
    """Return the reference to the parameter of ``task`` that lists the tasks of a fan-out."""
    return format_output_reference(task, f"items-{node.name}", WRONG if task in may_skip else None)


def format_output_reference(task: str, name: str, default: str | None) -> str:
    """Return the reference to an output parameter, with ``default`` for a skipped task; None: it is never skipped."""
    if default is None:
        return f"{{{{tasks.{task}.outputs.parameters.{name}}}}}"
    reference = f"tasks['{task}']"
    return f"{{{{={reference}.status == 'Succeeded' ? {reference}.outputs.parameters['{name}'] : '{default}'}}}}"
