"""Derive the records of a run's tasks from a Workflow's status. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from scanflow.app.quantities import format_duration
from scanflow.backends.kubernetes.api_times import parse_optional_time
from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.shared_templates import STEP_INPUT
from scanflow.backends.kubernetes.batch.task_report import TaskReport, read_report
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.pods import explain_denied_pod
from scanflow.backends.run_records import TaskRecord, TaskState
from scanflow.backends.tasks import build_empty_record, format_task_name
from scanflow.names import StepName
from scanflow.text.failures import Failure

Phase = Literal["running", "succeeded", "failed", "stopped"]

_FINAL_PHASES: Final = frozenset({"Succeeded", "Failed", "Error"})
_QUIET: Final = ("ContainerCreating", "PodInitializing")
"""Waiting reasons of a starting pod."""

_EXIT: Final = re.compile(r"\(exit code (\d+)\)")


FileSizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class TaskPod:
    """One pod of a task."""

    task: StepName
    step: str
    number: int
    pod: str
    node: Mapping[str, Any]
    retry: int
    """The number of earlier failures in this Workflow."""

    record: TaskRecord


@dataclass(frozen=True, slots=True)
class ObservedWorkflow:
    """The observed state of a Workflow."""

    phase: Phase
    error: str | None
    """Argo's message about the Workflow itself: it is invalid, or not allowed."""

    tasks: Mapping[StepName, TaskRecord]
    widths: Mapping[str, int]
    waiting: Mapping[StepName, str]
    """Tasks whose pods have not started, with Argo's message."""

    attempts: tuple[TaskPod, ...]
    outputs: Mapping[StepName, Mapping[str, str]]
    """The reported named outputs of tasks, as JSON texts."""

    files: Mapping[StepName, FileSizes]
    """The reported files of ended tasks, by name, with their bytes."""

    retrying: frozenset[StepName]
    """Failed tasks that are retried."""

    given_up: Mapping[str, Any]
    """Tasks whose pods did not start in time, and why."""


def observe_workflow(manifest: Manifest) -> ObservedWorkflow:
    """Return the observed state of a Workflow."""
    status = manifest.get("status") or {}
    nodes = _read_nodes(status)
    asked_to_stop = set(_read_annotation(manifest, pod_layout.ASKED_TO_STOP, []))
    attempts_before = _read_annotation(manifest, pod_layout.ATTEMPTS, {})
    shut_down = bool(manifest["spec"].get("shutdown"))
    name = manifest["metadata"]["name"]
    given_up = _read_annotation(manifest, pod_layout.GIVEN_UP_ANNOTATION, {})
    namespace = manifest["metadata"].get("namespace", "")

    def record(step: str, task: StepName, number: int, node: Mapping[str, Any]) -> TaskRecord:
        if task in given_up and node.get("phase") in {"Failed", "Error"}:
            reason, bound_s = given_up[task]
            failure = build_pending_failure(task, reason, namespace, format_pod_name(name, node), bound_s)
            return TaskRecord(task=task, step=step, state="failed", attempts=number, failure=failure)
        stopping = shut_down or task in asked_to_stop
        return _build_record(task, step, number, node, stopping=stopping, namespace=namespace)

    attempts = tuple(_iterate_attempts(nodes, name, attempts_before, record))
    tasks: dict[StepName, TaskRecord] = {}
    waiting: dict[StepName, str] = {}
    outputs: dict[StepName, Mapping[str, str]] = {}
    files: dict[StepName, FileSizes] = {}
    for attempt in attempts:  # in their order, so that the last one of each task stays
        tasks[attempt.task] = attempt.record
        waiting.pop(attempt.task, None)
        outputs.pop(attempt.task, None)
        files.pop(attempt.task, None)
        if (reason := _read_waiting_reason(attempt.node)) is not None:
            waiting[attempt.task] = reason
        if attempt.node["phase"] == "Succeeded" and (
            text := _read_parameter(attempt.node, pod_layout.OUTPUTS_PARAMETER)
        ):
            outputs[attempt.task] = json.loads(text)
        if (report := read_report(_read_parameter(attempt.node, pod_layout.REPORT))) and report.files is not None:
            files[attempt.task] = report.files
    tasks |= _list_skipped(nodes, name)
    tasks |= _list_empty(nodes, name, {task.step for task in tasks.values()})
    return ObservedWorkflow(
        phase=_derive_phase(status, shut_down, tasks, given_up),
        error=_derive_error(status, tasks),
        tasks=tasks,
        widths=_count_widths(attempts),
        waiting=waiting,
        attempts=attempts,
        outputs=outputs,
        files=files,
        retrying=frozenset(_list_retrying(nodes, tasks)),
        given_up=given_up,
    )


def format_pod_name(workflow: str, node: Mapping[str, Any]) -> str:
    """Return the name of a node's pod, as Argo derives it."""
    prefix = f"{workflow}-{node['templateName']}"[:242]
    return f"{prefix}-{_hash_fnv32a(node['name'])}"


def _read_nodes(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    packed = status.get("compressedNodes")
    if packed:
        import base64
        import gzip

        nodes: dict[str, dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(packed)))
        return nodes
    return status.get("nodes") or {}


_ToRecord = Callable[[str, StepName, int, Mapping[str, Any]], TaskRecord]


def _iterate_attempts(
    nodes: Mapping[str, Any], workflow: str, attempts_before: Mapping[str, int], record: _ToRecord
) -> Iterator[TaskPod]:
    counts: dict[StepName, int] = {}
    pods = [node for node in nodes.values() if node.get("type") == "Pod" and _read_step(node) is not None]
    for node in sorted(pods, key=lambda node: (node["name"].count("("), _read_retry(node), node["name"])):
        step = _read_step(node) or ""
        index = _read_index(node)
        task = format_task_name(step, index if index is None or index >= 0 else None)
        counts[task] = counts.get(task, attempts_before.get(task, 0)) + 1
        number = counts[task]
        retry = number - 1 - attempts_before.get(task, 0)
        yield TaskPod(
            task, step, number, format_pod_name(workflow, node), node, retry, record(step, task, number, node)
        )


def _read_step(node: Mapping[str, Any]) -> str | None:
    """Return the step of a node; None: it is not a task of a step."""
    template = node.get("templateName") or ""
    if not template.startswith("step-"):
        return None
    return _read_input(node, STEP_INPUT) or template.removeprefix("step-")


def _read_retry(node: Mapping[str, Any]) -> int:
    """Return the retry number of a pod: 1 for ``wf.train(1)``, the second attempt."""
    _, _, last = node["name"].rpartition("(")
    text = last.removesuffix(")")
    return int(text) if text.isdecimal() else 0


def _read_index(node: Mapping[str, Any]) -> int | None:
    index = _read_input(node, "index")
    return None if index is None else int(index)


def _read_input(node: Mapping[str, Any], name: str) -> str | None:
    parameters = (node.get("inputs") or {}).get("parameters") or ()
    return next((str(parameter["value"]) for parameter in parameters if parameter["name"] == name), None)


def _build_record(
    task: StepName, step: str, number: int, node: Mapping[str, Any], *, stopping: bool, namespace: str
) -> TaskRecord:
    report = read_report(_read_parameter(node, pod_layout.REPORT)) or TaskReport()
    state = _derive_state(node, report, stopping=stopping)
    if state == "pending":
        return TaskRecord(task=task, step=step, state="pending", attempts=number - 1)
    began, ended = parse_optional_time(node.get("startedAt")), parse_optional_time(node.get("finishedAt"))
    return TaskRecord(
        task=task,
        step=step,
        state=state,
        attempts=number - 1 if report.origin else number,
        began=report.began or began,
        seconds=report.seconds if report.seconds is not None else _compute_seconds(began, ended, state),
        exit_code=report.exit_code if report.exit_code is not None else _read_exit_code(node, state),
        cpu_s=report.cpu_s,
        max_rss_bytes=report.max_rss_bytes,
        origin=report.origin,
        cache_note=report.cache_note,
        devices=report.devices,
        failure=None
        if state in {"running", "succeeded"}
        else report.failure or _derive_failure(node, state, namespace),
    )


def _derive_state(node: Mapping[str, Any], report: TaskReport, *, stopping: bool) -> TaskState:
    phase = node.get("phase")
    if phase == "Succeeded":
        return "succeeded"
    if phase in _FINAL_PHASES:
        return "stopped" if stopping or report.stopped else "failed"
    return "running" if phase == "Running" else "pending"


def _derive_failure(node: Mapping[str, Any], state: TaskState, namespace: str) -> Failure:
    """Return the failure of a task whose program wrote no report."""
    message = str(node.get("message") or "")
    if state == "stopped":
        return Failure(summary="stopped")
    if "OOMKilled" in message:
        return Failure(
            summary="killed because it exceeded its memory limit",
            cause=f"{message}. Raise the step's memory: resources=sf.Resources(memory='2Gi').",
        )
    if "deadline" in message.lower():
        return Failure(summary="its pod was terminated at its deadline", cause=message)
    if message == "pod deleted":
        return Failure(
            summary="its pod was deleted", cause="Its pod was deleted: by a person, or with the node it was on."
        )
    if "No module named 'scanflow" in message or "No module named scanflow" in message:
        return Failure(
            summary="its image has no scanflow", cause=f"{message} Build one that has it: scanflow build, or name none."
        )
    if code := _EXIT.search(message):
        return Failure(summary=f"exit code {code[1]}", cause=message)
    if (denial := explain_denied_pod(message, namespace)) is not None:
        return Failure(summary="its pod was refused", cause=denial)
    if not message:
        return Failure(summary="lost", cause="Argo does not say why.")
    return Failure(summary="Argo could not run it" if node.get("phase") == "Error" else "its pod failed", cause=message)


def _read_exit_code(node: Mapping[str, Any], state: TaskState) -> int | None:
    if state in {"running", "pending"}:
        return None
    if match := _EXIT.search(str(node.get("message") or "")):
        return int(match[1])
    code = (node.get("outputs") or {}).get("exitCode")
    return int(code) if code is not None and str(code).isdecimal() else None


def _read_waiting_reason(node: Mapping[str, Any]) -> str | None:
    """Return Argo's message about a pending pod; empty: it is starting. None: it has started."""
    message = str(node.get("message") or "")
    if node.get("phase") != "Pending":
        return None
    return "" if message.startswith(_QUIET) else message


def _list_skipped(nodes: Mapping[str, Any], workflow: str) -> dict[StepName, TaskRecord]:
    records = {}
    for node in nodes.values():
        step = node["name"].removeprefix(f"{workflow}.")
        if node.get("type") == "Skipped" and node.get("phase") == "Skipped" and re.fullmatch(r"[-a-z0-9]+", step):
            records[StepName(step)] = TaskRecord(task=StepName(step), step=step, state="skipped")
    return records


def _list_empty(nodes: Mapping[str, Any], workflow: str, begun_steps: Collection[str]) -> dict[StepName, TaskRecord]:
    """Return the fan-outs that ended without tasks in this Workflow; all their tasks may have ended in earlier ones."""
    steps = (
        node["name"].removeprefix(f"{workflow}.")
        for node in nodes.values()
        if node.get("type") == "DAG" and node.get("phase") == "Succeeded" and node["name"] != workflow
    )
    return {
        StepName(step): build_empty_record(step)
        for step in steps
        if re.fullmatch(r"[-a-z0-9]+", step) and step not in begun_steps
    }


def _list_retrying(nodes: Mapping[str, Any], tasks: Mapping[StepName, TaskRecord]) -> Iterator[StepName]:
    for node in nodes.values():
        if node.get("type") == "Retry" and node.get("phase") == "Running" and (step := _read_step(node)) is not None:
            task = format_task_name(step, _read_index(node))
            if task in tasks and tasks[task].state == "failed":
                yield task


def _count_widths(attempts: tuple[TaskPod, ...]) -> dict[str, int]:
    tasks: dict[str, set[str]] = {}
    for attempt in attempts:
        tasks.setdefault(attempt.step, set()).add(attempt.task)
    return {step: len(step_tasks) for step, step_tasks in tasks.items()}


def _derive_phase(
    status: Mapping[str, Any], shut_down: bool, tasks: Mapping[StepName, TaskRecord], given_up: Mapping[str, Any]
) -> Phase:
    phase = status.get("phase")
    if phase == "Succeeded":
        return "succeeded"
    if phase not in _FINAL_PHASES:
        return "running"
    states = {task.state for task in tasks.values()}
    if given_up:
        return "failed"
    return "stopped" if shut_down or ("stopped" in states and "failed" not in states) else "failed"


def _derive_error(status: Mapping[str, Any], tasks: Mapping[StepName, TaskRecord]) -> str | None:
    if status.get("phase") not in {"Failed", "Error"} or any(
        task.state in {"failed", "stopped"} for task in tasks.values()
    ):
        return None
    return f"Argo ended the Workflow: {status.get('message') or 'it does not say why'}."


def _read_annotation(manifest: Manifest, name: str, default: Any) -> Any:
    text = (manifest["metadata"].get("annotations") or {}).get(name)
    return json.loads(text) if text else default


def _read_parameter(node: Mapping[str, Any], name: str) -> str:
    for parameter in (node.get("outputs") or {}).get("parameters") or ():
        if parameter["name"] == name:
            return str(parameter.get("value") or "")
    return ""


def _compute_seconds(began: float | None, ended: float | None, state: TaskState) -> float | None:
    return None if began is None or ended is None or state in {"running", "pending"} else ended - began


def _hash_fnv32a(text: str) -> int:
    hash_value = 0x811C9DC5
    for byte in text.encode():
        hash_value = ((hash_value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return hash_value


def build_pending_failure(task: str, reason: str, namespace: str, pod: str, bound_s: float) -> Failure:
    """Return the failure of a task whose pod did not start in time."""
    advice = "Raise the namespace's quota, or ask for less: kubectl describe quota." if "quota" in reason else ""
    return Failure(
        summary=f"its pod did not start in {format_duration(bound_s)}",
        cause=f"The pod {namespace}/{pod} of {task!r} did not start: {reason.rstrip('.')}. {advice}".rstrip(),
    )
