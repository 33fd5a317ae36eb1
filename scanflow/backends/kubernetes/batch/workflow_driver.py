"""Drive a Workflow: watch it to its end, report and record events, and copy logs before its pods are deleted.

Argo runs it by itself. The watching process may be killed at any instant; the next one reads the run's state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.api_times import parse_epoch_s
from scanflow.backends.kubernetes.batch.batch_home import RunHome
from scanflow.backends.kubernetes.batch.pod_layout import GIVEN_UP_ANNOTATION
from scanflow.backends.kubernetes.batch.stopping import annotate, end_on_node
from scanflow.backends.kubernetes.batch.task_pod_logs import copy_log
from scanflow.backends.kubernetes.batch.workflow_facts import Facts
from scanflow.backends.kubernetes.batch.workflow_records import ObservedWorkflow, TaskPod, observe_workflow
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.object_labels import build_selector
from scanflow.backends.kubernetes.object_watcher import ObjectWatcher
from scanflow.backends.kubernetes.pods import NODE_NOT_READY, explain_pending
from scanflow.backends.run_records import EnvironmentReady, Observer, TaskEnded, TaskRecord, TaskStarted, Waiting
from scanflow.backends.tasks import split_task
from scanflow.errors import UnavailableError
from scanflow.names import RunName, StepName

NODES_CHECK_S: Final = 20.0
"""How often the pods of a run are listed: a cluster takes 40 s to notice that a node does not answer."""

QUIET_S: Final = 10.0
"""How long a starting pod is not reported."""


@dataclass(slots=True)
class _ReportedEvents:
    """The events that were reported."""

    started: set[tuple[StepName, int]] = field(default_factory=set)
    ended: set[tuple[StepName, int]] = field(default_factory=set)
    waiting: dict[StepName, tuple[float, str]] = field(default_factory=dict)
    """Of pending pods: since when, and why."""


class WorkflowDriver:
    """Watches one Workflow to its end."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        run: RunName,
        workflow: Workflow,
        facts: Facts,
        home: RunHome,
        *,
        observe: Observer,
        pending_s: float,
        away_s: float,
        previous_tasks: dict[StepName, TaskRecord],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._namespace, self._run, self._workflow = cluster, namespace, run, workflow
        self._facts, self._home, self._observe = facts, home, observe
        self._pending_s, self._clock = pending_s, clock
        self._watcher = ObjectWatcher(cluster, namespace, run, observe=observe, away_s=away_s, sleep=sleep, clock=clock)
        self._silent = SilentNodes(cluster, namespace, run, observe=observe, clock=clock)
        self._previous_tasks, self._emitted = previous_tasks, _ReportedEvents()
        self._position = {name: level_index for level_index, level in enumerate(workflow.levels) for name in level}
        self._stopping = False

    def watch(self, manifest: Manifest, *, adopted: bool) -> ObservedWorkflow | None:
        """Watch a Workflow until it has ended, and return it; None: it was deleted.

        Raises:
            UnavailableError: the API server was away for too long.
        """
        name, current = manifest["metadata"]["name"], manifest
        while True:
            try:
                return self._watch(current, adopted=adopted)
            except KeyboardInterrupt:
                if self._stopping:
                    raise  # the second Ctrl-C: Argo goes on terminating it unwatched
                self.stop(name)
                existing, adopted = self._cluster.get("Workflow", name, self._namespace), False
                if existing is None:
                    return None
                current = existing

    def _watch(self, manifest: Manifest, *, adopted: bool) -> ObservedWorkflow | None:
        observed = self._handle_update(manifest, adopted=adopted)
        if adopted:
            self._emitted.ended |= {
                (attempt.task, attempt.number) for attempt in observed.attempts if self._was_recorded(attempt)
            }
        for current in self._watcher.watch(manifest):
            if current is None:
                return None
            observed = self._handle_update(current)
            if observed.phase != "running":
                break
        return observed

    def _was_recorded(self, attempt: TaskPod) -> bool:
        previous = self._previous_tasks.get(attempt.task)
        return (
            previous is not None
            and previous.attempts == attempt.number
            and previous.state not in {"running", "pending"}
        )

    def stop(self, name: str) -> None:
        """Ask Argo to terminate the Workflow."""
        self._stopping = True
        self._cluster.patch("Workflow", name, self._namespace, {"spec": {"shutdown": "Terminate"}})

    # Events

    def _handle_update(self, manifest: Manifest, *, adopted: bool = False) -> ObservedWorkflow:
        observed = observe_workflow(manifest)
        self._facts.note(observed.tasks)
        self._facts.keep_outputs(observed)
        self._report_waiting(observed, manifest)
        self._silent.check(
            {attempt.pod: attempt.task for attempt in observed.attempts if attempt.record.state == "running"}
        )
        attempts = sorted(observed.attempts, key=self._compute_order)
        for attempt in attempts:
            key = (attempt.task, attempt.number)
            if attempt.node.get("phase") != "Pending" and key not in self._emitted.started:
                self._emitted.started.add(key)
                if not (adopted and attempt.record.state != "running"):
                    self._report_started(attempt, observed, adopted=adopted)
        last = {attempt.task: attempt.number for attempt in attempts}
        for attempt in attempts:
            key = (attempt.task, attempt.number)
            if attempt.record.state in {"running", "pending"} or key in self._emitted.ended:
                continue
            if adopted and self._was_recorded(attempt):
                continue
            self._emitted.ended.add(key)
            self._report_ended(attempt, observed, again=attempt.number < last[attempt.task])
        begun_before = {record.step for record in self._previous_tasks.values()}
        for name, task in observed.tasks.items():
            is_new = task.state == "skipped" or (task.state == "empty" and task.step not in begun_before)
            if is_new and (name, 0) not in self._emitted.ended:
                self._emitted.ended.add((name, 0))
                self._observe(TaskEnded(run=self._run, record=task, width=1))
        return observed

    def _compute_order(self, attempt: TaskPod) -> tuple[float, int, int, int]:
        finished_at = attempt.node.get("finishedAt")
        ended_at = parse_epoch_s(finished_at) if finished_at else float("inf")
        position = self._position.get(attempt.step, len(self._position))
        return ended_at, position, split_task(attempt.task)[1] or 0, attempt.number

    def _report_started(self, attempt: TaskPod, observed: ObservedWorkflow, *, adopted: bool) -> None:
        if attempt.record.origin is not None:
            return
        self._observe(
            TaskStarted(
                run=self._run,
                task=attempt.task,
                step=attempt.step,
                width=self._count_width(attempt.step, observed),
                attempt=attempt.number,
                adopted=adopted,
            )
        )

    def _report_ended(self, attempt: TaskPod, observed: ObservedWorkflow, *, again: bool) -> None:
        copy_log(self._cluster, attempt.pod, self._namespace, self._home.locate_attempt(attempt.task, attempt.number))
        node = self._workflow.by_name.get(attempt.step)
        wait_s = None
        if isinstance(node, Executor) and (again or attempt.task in observed.retrying):
            wait_s = node.retry.wait_s(max(1, attempt.retry + 1))
        width = self._count_width(attempt.step, observed)
        # Several may have ended since the last update; each is reported in its turn.
        reported_tasks = {name for name, _ in self._emitted.ended}
        reported_tasks |= {name for name, task in self._previous_tasks.items() if task.state == "succeeded"}
        done = {
            name
            for name, task in {**self._previous_tasks, **observed.tasks}.items()
            if task.step == attempt.step and task.state == "succeeded" and name in reported_tasks
        }
        self._observe(
            TaskEnded(
                run=self._run, record=attempt.record, width=width, left=max(0, width - len(done)), retry_in_s=wait_s
            )
        )

    def _count_width(self, step: str, observed: ObservedWorkflow) -> int:
        return (
            len({name for name, task in {**self._previous_tasks, **observed.tasks}.items() if task.step == step}) or 1
        )

    # Pending pods

    def _report_waiting(self, observed: ObservedWorkflow, manifest: Manifest) -> None:
        now = self._clock()
        for task in set(self._emitted.waiting) - set(observed.waiting):
            since, reason = self._emitted.waiting.pop(task)
            if reason and observed.tasks[task].state != "failed":
                self._observe(EnvironmentReady(run=self._run, what=f"the pod of {task}", seconds=now - since))
        pods = {attempt.task: attempt.pod for attempt in observed.attempts}
        late: dict[StepName, str] = {}
        events: list[Manifest] | None = None  # of this update, for all pending pods: claims' events are no pod's own
        for task, message in observed.waiting.items():
            since, previous_reason = self._emitted.waiting.get(task, (now, ""))
            self._emitted.waiting[task] = (since, previous_reason)
            if not message and now - since < QUIET_S:
                continue
            if events is None:
                events, _ = self._cluster.find("Event", self._namespace)
            reason = self._explain_waiting(pods[task], events) or message
            if _classify_reason(reason) != _classify_reason(previous_reason):
                self._emitted.waiting[task] = (since, reason)
                self._observe(Waiting(run=self._run, what=f"the pod of {task}", why=reason))
            if now - since > self._pending_s and task not in observed.given_up:
                late[task] = reason or "nothing says why"
        if late:
            self._give_up(late, manifest, pods)

    def _explain_waiting(self, pod_name: str, events: list[Manifest]) -> str:
        """Return why a pod is pending, with a remedy."""
        pod = self._cluster.get("Pod", pod_name, self._namespace)
        if pod is None:
            return ""
        pending = explain_pending(pod, events)
        return "" if pending is None else str(pending)

    def _give_up(self, late: dict[StepName, str], manifest: Manifest, pods: dict[StepName, str]) -> None:
        """End tasks whose pods do not start: through the pod's node or, if the pod has none, by ending the whole run.

        Deleting a pod would not do: Argo makes another one.
        """
        reasons = {task: [reason, self._pending_s] for task, reason in late.items()}
        annotate(self._cluster, manifest, GIVEN_UP_ANNOTATION, lambda entries: {**entries, **reasons}, empty={})
        ended_on_node = [end_on_node(self._cluster, pods[task], self._namespace) for task in late]
        if not all(ended_on_node):
            self.stop(manifest["metadata"]["name"])


def _classify_reason(reason: str) -> str:
    """Return the class of a reason, which stays the same while a pod waits for the same thing."""
    return "image" if reason.startswith(("ErrImage", "ImagePull")) else reason.partition(":")[0]


class SilentNodes:
    """Reports tasks on nodes that do not answer, which Argo sees only once their pods are deleted."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        run: RunName,
        *,
        observe: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._namespace, self._run = cluster, namespace, run
        self._observe, self._clock, self._last = observe, clock, clock()
        self._since: dict[StepName, float] = {}

    def check(self, running: Mapping[str, StepName]) -> None:
        """Report each task whose node stopped answering or answers again; ``running``: the tasks by pod."""
        now = self._clock()
        if not (running or self._since) or now - self._last < NODES_CHECK_S:
            return
        self._last = now
        try:
            pods, _ = self._cluster.find(
                "Pod", self._namespace, labels=build_selector(run=self._run), fields="status.phase=Running"
            )
        except UnavailableError:
            return  # reported by the watch of the Workflow
        silent: set[StepName] = set()
        for pod in pods:
            task, why = running.get(pod["metadata"]["name"]), explain_pending(pod)
            if task is None or why is None or why.reason != NODE_NOT_READY:
                continue
            silent.add(task)
            if task not in self._since:
                self._since[task] = now
                self._observe(Waiting(run=self._run, what=f"the node of {task}", why=str(why)))
        for task in set(self._since) - silent:
            self._observe(
                EnvironmentReady(run=self._run, what=f"the node of {task}", seconds=now - self._since.pop(task))
            )
