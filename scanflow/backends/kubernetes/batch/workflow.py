"""From a run to Argo's ``Workflow``, built with Hera's models. Pure.

Each step is a template and a task of one graph; a fan-out is a template with a graph of its own, so that an empty list
differs from a skipped step. What a step was given, and what it leaves, is on the claim; only signals go through Argo.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from hera.workflows import models as argo

from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.batch import layout, pods
from scanflow.backends.kubernetes.batch.conditions import items_of, output_of, skippable, when_of
from scanflow.backends.kubernetes.batch.document import LARGEST, RunDocument, check_size
from scanflow.backends.kubernetes.batch.finished import Finished, with_skipped
from scanflow.backends.kubernetes.batch.place import Place
from scanflow.backends.kubernetes.batch.retries import waits_itself
from scanflow.backends.kubernetes.batch.sharing import with_shared_templates
from scanflow.backends.kubernetes.batch.signals import Signal, root_of, signals_of, static_items
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.labels import labels_of
from scanflow.backends.port import RunDefinition

KNOWN: Final = "Known"
"""The task that tells the signals of steps that ended in an earlier drive. Steps are named in lower case."""

SUMMING: Final = "Signals"
"""The task inside a fan-out that tells the signals about all its outputs."""

_NO_RETRY: Final = "specified deadline$"
"""What Argo says of a pod that its node ended since its task was stopped or it did not start."""

PATIENCE_S: Final = 300
"""Longer than its step's timeout may a pod live: it has to fetch its image."""


STATUS_BYTES: Final = 150
"""Of a step that has ended, in the status of its Workflow: 900, which Argo packs to some 90 once there are many."""


@dataclass(frozen=True)
class _Graph:
    """What the graph's tasks are made from."""

    document: RunDocument
    definition: RunDefinition
    finished: Finished
    place: Place
    may_skip: frozenset[str]
    signals: tuple[Signal, ...]

    @property
    def workflow(self) -> Workflow:
        return self.definition.workflow

    def ended(self, step: str) -> bool:
        return step in self.finished.done or step in self.finished.skipped

    @cached_property
    def unknown(self) -> frozenset[str]:
        """The steps of which only Argo will know whether they were skipped."""
        return self.may_skip - self.finished.done - self.finished.skipped

    @cached_property
    def sources(self) -> dict[str, str]:
        """By step: the task that tells its signals."""
        return {step: KNOWN if self.ended(step) else step for step in self.workflow.by_name}

    def signals_for(self, step: str) -> list[Signal]:
        """Return what is told of a step to those that are still to run."""
        return [one for one in self.signals if one.source == step and not self.ended(one.step)]

    @property
    def known(self) -> list[str]:
        """Return the steps whose signals nobody tells any more."""
        return sorted({one.source for one in self.signals if self.ended(one.source) and not self.ended(one.step)})


def workflow_manifest(
    document: RunDocument, definition: RunDefinition, finished: Finished, place: Place
) -> Manifest | None:
    """Return the Workflow that brings a run to its end; None: nothing of it is left to run.

    Raises:
        UsageError: it is larger than an object of a cluster may be.
    """
    workflow, app = definition.workflow, definition.app
    finished = with_skipped(workflow, finished)
    graph = _Graph(document, definition, finished, place, frozenset(skippable(workflow)), tuple(signals_of(workflow)))
    left = [node for node in workflow.steps if not graph.ended(node.name)]
    if not left:
        return None
    tasks = [_task(graph, node) for node in left]
    templates = [template for node in left for template in _templates(graph, node)]
    if graph.known:
        tasks.insert(0, argo.DAGTask(name=KNOWN, template=_signals_name(KNOWN)))
        templates.append(_signals_template(graph, KNOWN, graph.known))
    spec = pods.spec(place, document.run, [argo.Template(name="run", dag=_dag(tasks)), *templates])
    labels = labels_of(app.name, app.team, workflow=workflow.name, run=document.run)
    annotations = {layout.DRIVE: str(document.drive)}
    if finished.attempts:
        annotations[layout.ATTEMPTS] = json.dumps(dict(finished.attempts))
    made = {
        "apiVersion": KINDS["Workflow"].api_version,
        "kind": "Workflow",
        "metadata": {
            "name": layout.workflow_object(document.run, document.drive),
            "namespace": place.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": plain(spec),
    }
    if workflow_size(made, len(left)) > LARGEST:
        made = with_shared_templates(made)
    check_size(workflow_size(made, len(left)), f"The Workflow of the run {document.run!r}", len(left))
    return made


def workflow_size(manifest: Manifest, steps: int) -> int:
    """Return the bytes that a Workflow will take: what is asked for, and what Argo adds of each step as it runs."""
    return len(json.dumps(manifest, separators=(",", ":"))) + steps * STATUS_BYTES


def _dag(tasks: list[argo.DAGTask]) -> argo.DAGTemplate:
    """What does not need a step that failed or was stopped goes on."""
    return argo.DAGTemplate(tasks=tasks, fail_fast=False)


def _task(graph: _Graph, node: Executor) -> argo.DAGTask:
    before = [step for step in graph.workflow.parents[node.name] if not graph.ended(step)]
    ran = [step for step in graph.workflow.parents[node.name] if step in graph.finished.done]
    when = when_of(node, before, graph.sources, graph.unknown, ran=ran)
    known_before = any(one.step == node.name and graph.ended(one.source) for one in graph.signals)
    waits = [*before, *([KNOWN] if known_before else [])]
    if node.for_each is None:
        return argo.DAGTask(name=node.name, template=_step_name(node), dependencies=waits or None, when=when)
    root = root_of(graph.workflow, node)
    if isinstance(root.for_each, Ref):
        items = items_of(node, graph.sources[root.for_each.step or ""], graph.unknown)
    else:
        items = static_items(root, node, graph.document.kept.get(node.name, ()), graph.definition.step)
    return argo.DAGTask(
        name=node.name,
        template=f"each-{node.name}",
        dependencies=waits or None,
        when=when,
        arguments=argo.Arguments(parameters=[argo.Parameter(name="items", value=items)]),
    )


def _templates(graph: _Graph, node: Executor) -> list[argo.Template]:
    own = graph.signals_for(node.name)
    if node.for_each is None:
        return [_step_template(graph, node, own)]
    item = argo.DAGTask(
        name="item",
        template=_step_name(node),
        with_param="{{inputs.parameters.items}}",
        arguments=argo.Arguments(parameters=[argo.Parameter(name="index", value="{{item}}")]),
    )
    each = argo.Template(
        name=f"each-{node.name}", inputs=argo.Inputs(parameters=[argo.Parameter(name="items")]), dag=_dag([item])
    )
    step = _step_template(graph, node, [])
    if not own:
        return [each, step]
    summing = argo.DAGTask(name=SUMMING, template=_signals_name(node.name), dependencies=["item"])
    each.dag = _dag([item, summing])
    each.outputs = argo.Outputs(
        parameters=[
            argo.Parameter(
                name=one.name, value_from=argo.ValueFrom(parameter=output_of(SUMMING, one.name, without=None))
            )
            for one in own
        ]
    )
    return [each, step, _signals_template(graph, node.name, [node.name])]


def _step_template(graph: _Graph, node: Executor, signals: list[Signal]) -> argo.Template:
    wide = node.for_each is not None
    index = "{{inputs.parameters.index}}"
    task = f"{node.name}.{index}" if wide else node.name
    retries = node.retry.limit
    arguments = [node.name, *(["--index", index] if wide else []), *(["--retry", "{{retries}}"] if retries else [])]
    before = graph.finished.attempts
    if known := {name: count for name, count in before.items() if name.partition(".")[0] == node.name}:
        arguments += ["--before", json.dumps(known)]
    app, run = graph.definition.app, graph.document.run
    found = pods.step_template(graph.place, app, node, arguments, run=run)
    found.name = _step_name(node)
    found.metadata = argo.Metadata(labels=labels_of(app.name, app.team, run=run, step=node.name, task=task))
    found.outputs = argo.Outputs(
        parameters=[
            _file_output(layout.REPORT, ""),
            _file_output(layout.LEFT, ""),
            *(_file_output(one.name, None) for one in signals),
        ]
    )
    found.retry_strategy = retry_strategy(node)
    if wide:
        found.inputs = argo.Inputs(parameters=[argo.Parameter(name="index")])
    if node.timeout_s is not None:
        found.active_deadline_seconds = _int_or_text(math.ceil(node.timeout_s) + PATIENCE_S)
    return found


def _signals_template(graph: _Graph, name: str, sources: list[str]) -> argo.Template:
    found = pods.small_template(graph.place, ["--signals", *sources])
    found.name = _signals_name(name)
    app = graph.definition.app
    found.metadata = argo.Metadata(labels=labels_of(app.name, app.team, run=graph.document.run))
    signals = [one for source in sources for one in graph.signals_for(source)]
    found.outputs = argo.Outputs(parameters=[_file_output(one.name, None) for one in signals])
    return found


def _file_output(name: str, default: str | None) -> argo.Parameter:
    """Return an output parameter that the step's program writes; a signal of a step that fails is never asked for."""
    return argo.Parameter(name=name, value_from=argo.ValueFrom(path=str(layout.REPORTED / name), default=default or ""))


def retry_strategy(node: Executor) -> argo.RetryStrategy | None:
    """Return how often, and after which waits, Argo tries again. A task that was asked to stop is not.

    Argo doubles or multiplies a wait by a whole number, without an upper end. Other waits are kept by the step's own
    program.
    """
    retry = node.retry
    if not retry.limit:
        return None
    backoff = None
    if retry.delay and not waits_itself(node):
        backoff = argo.Backoff(
            duration=f"{math.ceil(float(retry.delay) * 1000)}ms", factor=_int_or_text(int(retry.factor))
        )
    return argo.RetryStrategy(
        limit=_int_or_text(retry.limit),
        retry_policy="Always",
        backoff=backoff,
        expression=f"lastRetry.exitCode != '{layout.STOPPED}' && !(lastRetry.message matches '{_NO_RETRY}')",
    )


def _int_or_text(number: int) -> argo.IntOrString:
    return argo.IntOrString.model_validate(number)


def _step_name(node: Executor) -> str:
    return f"step-{node.name}"


def _signals_name(name: str) -> str:
    return f"signals-{name.lower()}" if name == KNOWN else f"signals-of-{name}"


def plain(model: Any) -> Any:
    """Return a model as JSON has it, without what is unset."""
    return json.loads(model.model_dump_json(by_alias=True, exclude_none=True))
