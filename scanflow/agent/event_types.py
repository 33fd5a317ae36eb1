"""The types of events that the server and the template agents record: what each means, and its data.

Agents and other programs may record events of other types (``POST /api/v1/events``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class EventType(NamedTuple):
    """A type of event."""

    subject: str
    """What the event is about: ``run/NAME``."""

    meaning: str
    """When it is recorded, in one sentence."""

    data: Mapping[str, str] = {}
    """The meaning of each of its data. One that does not apply may be missing or null."""

    recorded_by: str = "server"


_RUN_END: Final = {
    "workflow": "The workflow.",
    "drive": "How many times the run was started or resumed.",
    "action": "What was requested: `run`, `resume` or `spin`.",
    "seconds": "The duration of the run, in seconds.",
    "error": "Why it failed.",
}
_SERVICE_STATE: Final = {
    "state": "The state of the service now.",
    "before": "The state before.",
    "error": "Why the service is not ready.",
}
_INTENT: Final = {
    "id": "The id of the intent, which is the id of its action.",
    "agent": "The agent that requested it.",
    "strategy": "The strategy of the agent.",
    "by": "The person who requested it, in place of an agent; of `action.reverted`: the person, or `the guard`.",
    "primitive": "The name of the primitive.",
}
_LABEL: Final = {
    "id": "The id of the sample.",
    "run": "The detection that selected the sample.",
    "label": "The label.",
    "by": "The person or program that gave the label.",
    "in_use": "The label that is used, where labels of the sample differ.",
    "in_use_by": "The person who gave the label that is used.",
}
_DETECTION: Final = {
    "run": "The run that detected drift.",
    "predictions": "The number of predictions that were compared.",
    "samples": "The number of independent samples among the predictions.",
    "anomalies": "The number of outliers among the predictions.",
    "picked": "The number of samples that people are to label.",
    "statistic": "The statistic of the test.",
    "threshold": "The threshold of the statistic.",
    "p_value": "The p-value of the test.",
    "columns": "The drift of each column.",
    "why": "Why the check was decided so.",
    "model": "The model that was in use.",
    "version": "Its version.",
}
_VERSION: Final = {"version": "The version of the model."}

EVENT_TYPES: Final[Mapping[str, EventType]] = {
    "run.started": EventType(
        "run/NAME",
        "A run was started or resumed through the server.",
        {name: _RUN_END[name] for name in ("workflow", "drive", "action")} | {"by": "The token's name."},
    ),
    "run.succeeded": EventType("run/NAME", "All steps of a run succeeded or were skipped.", _RUN_END),
    "run.failed": EventType("run/NAME", "A run failed.", _RUN_END),
    "run.stopped": EventType("run/NAME", "A run was stopped by request.", _RUN_END),
    "service.changed": EventType(
        "service/NAME",
        "A deployment or another change of a service took effect.",
        {
            "operation": "The id of the operation.",
            "kind": "The kind of change: `deploy`, `change` or `delete`.",
            "generation": "The generation of the service after the change.",
            "instances": "The number of instances after the change.",
        },
    ),
    "service.unchanged": EventType(
        "service/NAME",
        "A change of a service failed and was undone.",
        {"operation": "The id of the operation.", "kind": "The kind of change.", "error": "Why it failed."},
    ),
    "service.version": EventType(
        "service/NAME",
        "A service answers with another version of a model.",
        {
            "before": 'The models by node before, such as `{"cnn": "models:/cnn/3"}`.',
            "now": "The models by node now.",
            "created": "When the service was created, in seconds since 1970.",
            "how": "`person`, `agent`, `comparison` (the rule of a canary) or `unknown`.",
            "by": "The person or agent.",
            "action": "The id of the action: `scanflow why ID` explains it.",
            "strategy": "The strategy of the agent.",
            "reason": "The rule of the canary that held.",
        },
    ),
    "service.unready": EventType("service/NAME", "A service stopped being well.", _SERVICE_STATE),
    "service.ready": EventType("service/NAME", "A service is well again.", _SERVICE_STATE),
    "service.restarted": EventType(
        "service/NAME",
        "An instance of a service was restarted.",
        {
            "instance": "The name of the instance.",
            "restarts": "The number of its restarts until then.",
            "error": "How the instance ended.",
        },
    ),
    "service.mended": EventType(
        "service/NAME", "The server restored objects of a service on a cluster.", {"text": "What was restored."}
    ),
    "agent.started": EventType(
        "agent/NAME",
        "An agent started, or has a new address.",
        {"url": "The address of the agent.", "pid": "The process id of the agent."},
    ),
    "agent.limits": EventType(
        "agent/NAME",
        "The limits of an agent's strategies were set.",
        {"by": "The token's name.", "strategies": "The names of the strategies."},
    ),
    "agent.missed": EventType(
        "agent/NAME",
        "An agent stopped sending heartbeats, or its sensors missed firings.",
        {
            "seen": "The time of the last heartbeat, in seconds since 1970.",
            "count": "The number of firings that were missed since the last such event.",
            "in_all": "The number of firings that were missed in total.",
        },
        "server, agent",
    ),
    "agent.mended": EventType(
        "agent/NAME", "The server restarted or restored an agent.", {"text": "What was restored."}
    ),
    "sample": EventType(
        "agent/NAME",
        "A sensor gave a sample that led to something, or failed.",
        {
            "sensor": "The name of the sensor.",
            "sample": "The id of the sample.",
            "cause": "The cause of the firing, such as `interval:2026-01-31T06:00:00Z`.",
            "value": "The sample, where it is shorter than 2000 characters.",
            "error": "Why the sensor, or a rule, failed.",
            "hops": "How many samples in a row led to this one by their events.",
        },
        "agent",
    ),
    "strategy.withheld": EventType(
        "agent/NAME",
        "A limit of a strategy held back a call or a function.",
        {
            "strategy": "The name of the strategy.",
            "requests": "The call or function that was held back.",
            "limit": "The limit: `autonomy`, `cool_down` or `budget`.",
            "reason": "Why it was held back, as a sentence.",
        },
        "agent",
    ),
    "intent": EventType(
        "workflow/NAME, service/NAME, run/NAME",
        "The arbiter, or a person, decided on an intent.",
        _INTENT | {"verdict": "The decision: `act`, `refuse`, `queue`, `approve`, ...", "reason": "Why."},
    ),
    "action.succeeded": EventType("as of `intent`", "An action took effect.", _INTENT | {"result": "Its result."}),
    "action.failed": EventType(
        "as of `intent`", "An action failed, or could not be reverted.", _INTENT | {"error": "Why it failed."}
    ),
    "action.reverted": EventType("as of `intent`", "An action was reverted by its inverse.", _INTENT),
    "label.added": EventType("label/ID", "A sample was labelled.", _LABEL),
    "label.replaced": EventType(
        "label/ID", "The label of a sample was replaced.", _LABEL | {"before": "The label before."}
    ),
    "labels.given": EventType(
        "labels",
        "Several samples were labelled at once.",
        {"count": "The number of samples.", "by": "The person or program that gave the labels."},
    ),
    "notification.failed": EventType(
        "application/NAME",
        "A webhook did not receive an event.",
        {
            "event": "The number of that event.",
            "type": "The type of that event.",
            "error": "Why the request failed.",
            "then": "What happens next: another attempt, or none.",
        },
    ),
    "events.gone": EventType(
        "",
        "Events between two numbers were deleted with age before a client read them. It is in event streams only.",
        {"after": "The number of the last event that the client read.", "until": "The number of the last deleted one."},
    ),
    "predictions.counted": EventType(
        "agent/NAME",
        "The tracker handed predictions over to the checker.",
        {
            "predictions": "The number of predictions that are unchecked.",
            "new": "The number of those that were not handed over before.",
        },
        "tracker",
    ),
    "stream.changed": EventType(
        "agent/NAME",
        "The mean of a stream of predictions changed.",
        {
            "column": "The column that is followed.",
            "detector": "The detector of changes.",
            "before": "The mean before the change.",
            "after": "The mean after the change.",
            "files": "The number of files with predictions that were read.",
        },
        "stream",
    ),
    "drift.found": EventType("workflow/NAME", "Drift was confirmed.", _DETECTION, "checker"),
    "drift.suspected": EventType(
        "workflow/NAME", "A check found drift, and more checks have to confirm it.", _DETECTION, "checker"
    ),
    "drift.continues": EventType("workflow/NAME", "A drift that is known was found again.", _DETECTION, "checker"),
    "drift.none": EventType("workflow/NAME", "A check found no drift.", _DETECTION, "checker"),
    "drift.unknown": EventType(
        "workflow/NAME",
        "Detections on the same predictions failed several times, and these predictions were set aside.",
        {
            "run": "The last detection that failed.",
            "error": "Why it failed.",
            "tries": "The number of attempts.",
            "files": "The number of tracked runs with the predictions.",
        },
        "checker",
    ),
    "accuracy.measured": EventType(
        "model/NAME",
        "The accuracy of the model in use was measured on labelled samples.",
        _VERSION
        | {
            "expected": "The accuracy that its training measured.",
            "tolerance": "Of a regression, how far off a right prediction may be.",
            "value": "The accuracy, 0 to 1.",
            "low": "The lower bound of its confidence interval.",
            "high": "The upper bound of its confidence interval.",
            "n": "The number of labelled samples.",
        },
        "planner",
    ),
    "model.judged": EventType(
        "model/NAME",
        "A challenger was compared with the champion.",
        _VERSION
        | {
            "champion": "The version in use.",
            "run": "The run that trained or evaluated the challenger.",
            "metric": "The metric: `accuracy`.",
            "champion_metric": "The accuracy of the champion on current data, 0 to 1.",
            "challenger_metric": "The accuracy of the challenger on current data, 0 to 1.",
            "began": "When the training began, in seconds since 1970.",
            "better": "Whether the challenger is to be promoted.",
            "evidence": "The comparison on each slice of the data, and its reason.",
        },
        "planner",
    ),
    "model.promoted": EventType(
        "model/NAME",
        "A version of a model became the champion.",
        _VERSION
        | {
            "before": "The version in use before.",
            "action": "The id of the action.",
            "by": "The person who approved or decided it.",
            "why": "The reason that the person gave.",
        },
        "executor, client",
    ),
    "model.rejected": EventType(
        "model/NAME",
        "A version of a model was rejected, or taken out of use.",
        _VERSION | {"why": "Why it was rejected.", "action": "The id of the action."},
        "executor, client",
    ),
    "service.measured": EventType(
        "service/NAME",
        "The requests of a service since the last such event, for each version that answered some.",
        {
            "version": "The version of the model.",
            "requests": "The number of requests.",
            "errors": "The number of requests that failed.",
            "p95_s": "The 95th percentile of the latency, in seconds.",
            "since": "Since when, in seconds since 1970.",
        },
        "executor",
    ),
    "service.tuned": EventType(
        "service/NAME",
        "A search for the best number and size of instances ended.",
        {
            "run": "The run of the search.",
            "winner": "The best configuration, or null.",
            "default": "The configuration before.",
            "comparison": "The comparison of both.",
            "trials": "The number of configurations that were measured.",
            "history": "The measurements.",
            "goal": "What was optimized: `throughput`, `latency` or `cost`.",
            "evidence": "The result as a sentence, under `reason`.",
        },
        "planner",
    ),
    "placement.interference": EventType(
        "service/NAME",
        "A neighbour on the same machine slows a service down.",
        {
            "neighbour": "The workflow or service that slows it down.",
            "reason": "The result as a sentence.",
            "alone_p95_s": "The 95th percentile of the latency without the neighbour, in seconds.",
            "beside_p95_s": "The 95th percentile of the latency beside the neighbour, in seconds.",
            "ratio": "The ratio of both.",
            "n": "The number of pairs of windows that were compared.",
            "p": "The p-value of the comparison.",
            "looks": "How many of the last checks agreed.",
            "revision": "The revision of the service.",
            "alone": "The newest windows without the neighbour: requests per second, and latency in seconds.",
            "beside": "The newest windows beside the neighbour.",
        },
        "planner",
    ),
    "placement.verified": EventType(
        "service/NAME",
        "A neighbour was moved to other cores, and the latency was compared again.",
        {
            "neighbour": "The workflow or service that was moved.",
            "action": "The id of the action.",
            "better": "Whether the latency fell.",
            "before_p95_s": "The 95th percentile of the latency before, in seconds.",
            "after_p95_s": "The 95th percentile of the latency after, in seconds.",
            "ratio": "The ratio of both.",
            "n": "The number of pairs of windows that were compared.",
            "p": "The p-value of the comparison.",
        },
        "planner",
    ),
    "metric": EventType(
        "the name of the metric",
        "A value of a metric, which a guard may watch. Agents and other programs record it.",
        {"value": "The value, a number."},
        "planner, any program",
    ),
}
