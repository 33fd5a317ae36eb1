"""What Argo tells of a Workflow, as records."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from scanflow.backends.kubernetes.batch.log_framing import BEGIN, FINAL_MARK, StreamSplitter, build_frame, split_streams
from scanflow.backends.kubernetes.batch.pod_layout import ASKED_TO_STOP, ATTEMPTS, GIVEN_UP_ANNOTATION
from scanflow.backends.kubernetes.batch.workflow_records import observe_workflow
from scanflow.names import StepName

BEGAN, ENDED = "2026-01-02T03:04:05Z", "2026-01-02T03:04:15Z"


def pod(name: str, phase: str, *, step: str, index: int | None = None, **more: Any) -> dict[str, Any]:
    outputs = {"parameters": [{"name": key, "value": text} for key, text in more.pop("left", {}).items()]}
    inputs = {} if index is None else {"inputs": {"parameters": [{"name": "index", "value": str(index)}]}}
    times = {"startedAt": BEGAN} | ({"finishedAt": ENDED} if phase in {"Succeeded", "Failed", "Error"} else {})
    own = {"name": name, "type": "Pod", "phase": phase, "templateName": f"step-{step}", "outputs": outputs}
    return {**own, **times, **inputs, **more}


def workflow(*nodes: dict[str, Any], phase: str = "Running", packed: bool = False, **metadata: Any) -> dict[str, Any]:
    nodes_by_name = {node["name"]: node for node in nodes}
    status: dict[str, Any] = {"phase": phase, "startedAt": BEGAN, "finishedAt": ENDED}
    if packed:
        status["compressedNodes"] = base64.b64encode(gzip.compress(json.dumps(nodes_by_name).encode())).decode()
    else:
        status["nodes"] = nodes_by_name
    spec = metadata.pop("spec", {})
    return {"metadata": {"name": "wf", "namespace": "ns", **metadata}, "spec": spec, "status": status}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_pods_become_tasks_with_their_attempts(packed: bool) -> None:
    report = json.dumps({"exit_code": 3, "seconds": 2.5, "failure": {"summary": "exit code 3", "cause": "OSError"}})
    listed = json.dumps({"files": [["a.txt", 4]]})
    observation = observe_workflow(
        workflow(
            pod("wf.load", "Succeeded", step="load", left={"outputs": '{"result": "[1]"}', "report": listed}),
            pod("wf.train.item(0:0)(0)", "Failed", step="train", index=0, left={"report": report}),
            pod("wf.train.item(0:0)(1)", "Running", step="train", index=0),
            pod("wf.train.item(1:1)(0)", "Pending", step="train", index=1, message="Unschedulable: no cpu"),
            {"name": "wf.off", "type": "Skipped", "phase": "Skipped", "templateName": "step-off"},
            {"name": "wf.late", "type": "Skipped", "phase": "Omitted", "templateName": "step-late"},
            packed=packed,
        )
    )
    assert {name: (task.state, task.attempts) for name, task in observation.tasks.items()} == {
        "load": ("succeeded", 1),
        "train.0": ("running", 2),
        "train.1": ("pending", 0),
        "off": ("skipped", 0),
    }
    assert observation.tasks[StepName("load")].seconds == 10.0
    first = next(attempt for attempt in observation.attempts if attempt.task == "train.0")
    assert (first.number, first.record.exit_code, first.record.seconds) == (1, 3, 2.5)
    assert first.record.failure is not None
    assert first.record.failure.cause == "OSError"
    assert (observation.phase, observation.widths, dict(observation.waiting)) == (
        "running",
        {"load": 1, "train": 2},
        {"train.1": "Unschedulable: no cpu"},
    )
    assert observation.outputs == {"load": {"result": "[1]"}}
    assert observation.files == {"load": (("a.txt", 4),)}


def test_a_fan_out_that_succeeded_without_pods_had_no_items() -> None:
    def graph(name: str, phase: str) -> dict[str, Any]:
        return {"name": name, "type": "DAG", "phase": phase, "templateName": "each"}

    observed = observe_workflow(
        workflow(
            graph("wf", "Succeeded"),
            graph("wf.none", "Succeeded"),
            graph("wf.some", "Succeeded"),
            pod("wf.some.item(0:0)(0)", "Succeeded", step="some", index=0),
            graph("wf.later", "Running"),
        )
    )
    states = {name: task.state for name, task in observed.tasks.items()}
    assert states == {"none": "empty", "some.0": "succeeded"}


@pytest.mark.parametrize(
    ("message", "summary"),
    [
        ("OOMKilled (exit code 137)", "killed because it exceeded its memory limit"),
        ("Error (exit code 3)", "exit code 3"),
        ("pod deleted", "its pod was deleted"),
        ("Pod was active on the node longer than the specified deadline", "its pod was terminated at its deadline"),
        ("The node was low on resource: memory.", "its pod failed"),
        ("", "lost"),
    ],
)
def test_what_a_pod_could_not_report_is_what_argo_says(message: str, summary: str) -> None:
    observation = observe_workflow(workflow(pod("wf.a", "Failed", step="a", message=message), phase="Failed"))
    failure = observation.tasks[next(iter(observation.tasks))].failure
    assert failure is not None
    assert (failure.summary, observation.phase) == (summary, "failed")


def test_an_error_of_argo_itself_is_said_to_be_one() -> None:
    failed = pod("wf.a", "Error", step="a", message="failed to resolve {{workflow.x}}")
    failure = observe_workflow(workflow(failed, phase="Error")).tasks[StepName("a")].failure
    assert failure is not None
    assert (failure.summary, failure.cause) == ("Argo could not run it", "failed to resolve {{workflow.x}}")


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        (
            'pods "wf" is forbidden: maximum cpu usage per Container is 1, but limit is 2',
            "kubectl describe limits -n ns",
        ),
        ('pods "wf" is forbidden: exceeded quota: small, requested: cpu=2', "kubectl describe quota -n ns"),
        (
            'pods "wf" is forbidden: failed quota: q: must specify limits.memory for: init,wait',
            "have a LimitRange give defaults",
        ),
        ('pods "wf" is forbidden: violates PodSecurity "restricted:latest": x', "pod-security.kubernetes.io/enforce"),
        ('admission webhook "policy" denied the request: no', "Change what it rejects"),
        ('Pod "wf" is invalid: spec.containers[0].resources.requests: too much', "kubectl get events -n ns"),
    ],
)
def test_a_pod_that_is_refused_is_said_to_be_with_what_to_do(message: str, remedy: str) -> None:
    observation = observe_workflow(workflow(pod("wf.a", "Error", step="a", message=message), phase="Failed"))
    failure = observation.tasks[StepName("a")].failure
    assert failure is not None
    assert failure.summary == "its pod was refused"
    assert message in failure.cause
    assert remedy in failure.cause


def test_attempts_of_earlier_drives_are_counted() -> None:
    before = {ATTEMPTS: '{"a": 2}'}
    observation = observe_workflow(workflow(pod("wf-2.a", "Running", step="a"), annotations=before))
    assert [task.attempts for task in observation.tasks.values()] == [3]


def test_who_was_requested_to_stop_did_not_fail() -> None:
    failed = pod("wf.a", "Failed", step="a", message="Error (exit code 130)")
    single = observe_workflow(workflow(failed, phase="Failed", annotations={ASKED_TO_STOP: '["a"]'}))
    all_of_it = observe_workflow(workflow(failed, phase="Failed", spec={"shutdown": "Terminate"}))
    for observation in (single, all_of_it):
        assert ([task.state for task in observation.tasks.values()], observation.phase) == (["stopped"], "stopped")


def test_a_pod_that_was_not_waited_for_any_longer_is_named_with_its_reason() -> None:
    reason = "ImagePullBackOff: not found. Nodes cannot pull the image."
    failed = pod("wf.a", "Error", step="a", message="pod deleted")
    given_up = {GIVEN_UP_ANNOTATION: json.dumps({"a": [reason, 300.0]})}
    observation = observe_workflow(workflow(failed, phase="Failed", annotations=given_up))
    failure = next(iter(observation.tasks.values())).failure
    assert failure is not None
    assert failure.summary == "its pod did not start in 5m 00s"
    assert failure.cause.startswith("The pod ns/wf-step-a-")
    assert "ImagePullBackOff: not found" in failure.cause


def test_a_workflow_that_argo_cannot_make_sense_of_says_so() -> None:
    observation = observe_workflow(workflow(phase="Error"))
    assert (observation.phase, observation.error) == ("failed", "Argo ended the Workflow: it does not say why.")


def test_streams_are_known_again_however_a_log_is_cut() -> None:
    log = (
        b"one\n"
        + build_frame(b"warning\n", error=True)
        + b"two\n"
        + build_frame(b"x", error=True)
        + b"end"
        + FINAL_MARK
        + b"argo"
    )
    whole = {"stdout": b"one\ntwo\nend", "stderr": b"warning\nx"}
    assert split_streams([log]) == whole
    for size in range(1, len(BEGIN) + 2):
        reader, output = StreamSplitter(), {"stdout": b"", "stderr": b""}
        for at in range(0, len(log), size):
            for stream, piece in reader.feed(log[at : at + size]):
                output[stream] += piece
        assert output == whole
    assert list(StreamSplitter().feed(b"plain \x1b[0m", last=True)) == [("stdout", b"plain \x1b[0m")]


def test_what_argo_writes_after_a_step_that_was_killed_is_not_its_log() -> None:
    log = b'half\ntime="2026-01-02T03:04:05Z" level=info msg="sub-process exited" argo=true error="<nil>"\n'
    assert split_streams([log]) == {"stdout": b"half\n", "stderr": b""}
