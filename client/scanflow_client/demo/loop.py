"""The loop of the demo: send digits to a service that agents watch, until they promote a better model.

The agents decide; this module only generates the data: clean until the first check, drifted from then on. The rate is
lower while they work, since a laptop has few cores, and higher while the model is swapped.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from scanflow.agent.agent_records import Event
from scanflow.app.application import Application
from scanflow.errors import ScanflowError, StepFailedError, UnavailableError
from scanflow.reports.event_report import report_page
from scanflow.reports.loop_events import collect_versions, request_counts, select_loop_events
from scanflow.reports.report_data import ScoredAnswers
from scanflow_client.control_client import ControlClient
from scanflow_client.demo.demo_traffic import Responses, TrafficProgram
from scanflow_client.formatting.text import format_percent
from scanflow_client.report import fetch_labels

TIMEOUT_S, TIMEOUT_TIMES = 600.0, 6.0  # limit of the time to a promotion: this, or this multiple of the start-up
MIN_ANSWERS = 40  # per point of the report's accuracy
TAIL_S = 4.0  # how long traffic goes on after it, so that the new champion can be compared with the old one
COUNT_TIMEOUT_S = 5.0  # longest wait of the report then, until agents have counted all requests to the new champion
_POLL_S = 0.25


class Phase(Enum):
    """A phase of the demo: the kind of digits, their rate per second, and the activity as text."""

    CLEAN = "clean", 100, "sending clean digits, until there are enough to check"
    CHECKING = "clean", 4, "comparing the clean digits with the training data"
    DRIFTED = "drifted", 100, "sending drifted digits, until there are enough to check"
    DETECTING = "drifted", 4, "comparing the drifted digits with the training data"
    LEARNING = "drifted", 4, "retraining the model on labelled drifted digits"
    SWAPPING = "drifted", 20, "swapping in the better model, and watching it"
    PROMOTED = "drifted", 100, "the new champion predicts drifted digits"

    @property
    def order(self) -> str:
        """Return the command to the traffic program: ``drifted 100``."""
        return f"{self.value[0]} {self.value[1]}"

    @property
    def activity(self) -> str:
        return self.value[2]


def advance_phase(phase: Phase, event: Event) -> Phase:
    """Return the phase after an event."""
    match phase, event.type:
        case Phase.CLEAN, _ if _is_check_start(event):
            return Phase.CHECKING
        case Phase.DRIFTED, _ if _is_check_start(event):
            return Phase.DETECTING
        case Phase.DRIFTED | Phase.DETECTING, "drift.found":
            return Phase.LEARNING
        case Phase.LEARNING, "model.judged" if event.data.get("better"):
            return Phase.SWAPPING
        case _, "model.promoted":
            return Phase.PROMOTED
        case Phase.CLEAN | Phase.CHECKING, "drift.none" | "drift.suspected" | "drift.found":
            return Phase.DRIFTED
        case (
            (Phase.DETECTING, "drift.none" | "drift.suspected" | "drift.continues")
            | (Phase.LEARNING, "model.judged")
            | (_, "model.rejected")
        ):
            return Phase.DRIFTED
    return phase


def _is_check_start(event: Event) -> bool:
    accepted = event.type == "intent" and event.data.get("verdict") == "act" and event.subject == "workflow/detector"
    return accepted or event.type == "predictions.counted"


@dataclass(frozen=True, kw_only=True)
class LoopOutcome:
    events: tuple[Event, ...]
    responses: tuple[Responses, ...]
    models: dict[str, str]
    """The model's address, by revision of the service."""

    seconds: float
    """From the first prediction to the promotion."""

    history: tuple[tuple[float, tuple[Responses, ...]], ...] = ()
    """Cumulative responses over time."""

    @property
    def failed(self) -> int:
        return sum(response.failed for response in self.responses)

    @property
    def sent(self) -> int:
        return sum(response.sent for response in self.responses)

    def compute_accuracy(self, kind: str, model: str) -> float | None:
        """Return the accuracy of a version on digits of a kind, from 0 to 1; None: it predicted none."""
        rows = [row for row in self.responses if row.kind == kind and self.models.get(row.revision) == model]
        right, count = sum(row.right for row in rows), sum(row.right + row.wrong for row in rows)
        return right / count if count else None

    def score_answers(self) -> list[ScoredAnswers]:
        """Return the correct answers of each version over time."""
        answers, before = list[ScoredAnswers](), dict[str, tuple[int, int]]()
        least = max(MIN_ANSWERS, self.sent // 40)
        for at, responses in self.history:
            last = at == self.history[-1][0]
            for revision in dict.fromkeys(
                response.revision for response in responses if response.revision in self.models
            ):
                rows = [response for response in responses if response.revision == revision]
                right, count = sum(row.right for row in rows), sum(row.right + row.wrong for row in rows)
                old_right, old_count = before.get(revision, (0, 0))
                if count - old_count >= (1 if last else least):
                    before[revision] = right, count
                    version = f"V{self.models[revision].rpartition('/')[2]}"
                    answers.append(ScoredAnswers(at=at, version=version, right=right - old_right, n=count - old_count))
        return answers

    @property
    def order(self) -> list[str]:
        """Return the model's versions in the order in which they were served, the champion last."""
        models = list(dict.fromkeys(self.models.values()))
        promoted = [event.data.get("version") for event in self.events if event.type == "model.promoted"]
        if promoted:
            champion = f"{models[0].rpartition('/')[0] if models else ''}/{promoted[-1]}"
            return [*(model for model in models if model != champion), champion]
        return models

    def as_json(self) -> dict[str, Any]:
        kinds = ("clean", "drifted")
        return {
            "seconds": self.seconds,
            "sent": self.sent,
            "failed": self.failed,
            "accuracy": {model: {kind: self.compute_accuracy(kind, model) for kind in kinds} for model in self.order},
            "versions": [version.model_dump() for version in collect_versions(self.events)],
            "events": [event.model_dump() for event in select_loop_events(self.events)],
        }


def run_loop(
    client: ControlClient,
    app: Application,
    traffic: TrafficProgram,
    *,
    models: Callable[[], dict[str, str]],
    tell: Callable[[Event], None],
    look: Callable[[Phase, Sequence[Responses]], None],
    startup_s: float = 0.0,
    timeout_s: float | None = None,
    tail_s: float = TAIL_S,
    counted_s: float = COUNT_TIMEOUT_S,
) -> LoopOutcome:
    """Send digits until the agents have promoted a better model, and ``tail_s`` longer.

    ``models`` returns the model of each revision; ``tell`` is called with each event, ``look`` a few times a second.
    ``startup_s`` is how long the demo took until now; it extends the limit on a slow machine. ``timeout_s`` None: the
    limit is derived from it.
    """
    limit_s = max(TIMEOUT_S, TIMEOUT_TIMES * startup_s) if timeout_s is None else timeout_s
    began, phase, revisions = time.time(), Phase.CLEAN, models()
    since = began
    events: list[Event] = []
    traffic.send(phase.order)
    promoted: float | None = None
    event_stream = _stream_events(client, app.name, client.newest_event(), until=began + limit_s + tail_s + counted_s)
    for event in event_stream:
        if promoted is None and time.time() > began + limit_s:
            break
        look(phase, traffic.responses)
        if event is not None:
            events.append(event)
            if event.type == "run.failed":
                name, error = event.subject.partition("/")[2], event.data.get("error")
                raise StepFailedError(
                    f"The run {name} that an agent started failed: {error}. See: scanflow logs {name}"
                )
            if (now := advance_phase(phase, event)) != phase:
                phase, since = now, time.time()
                traffic.send(phase.order)
            tell(event)
            revisions |= models() if event.type in {"service.changed", "action.succeeded", "model.promoted"} else {}
        if phase is Phase.PROMOTED:
            promoted = promoted or time.time()
            if time.time() > promoted + tail_s:
                break
    if promoted is None:
        raise UnavailableError(
            f"No better model was promoted within {limit_s:.0f} s, and start-up took {startup_s:.0f} s. The last "
            f"{time.time() - since:.0f} s it was {phase.activity}.{_format_refusal(events)} If the demo has stopped "
            "the control plane, start it again: scanflow up; then see what the agents did: scanflow why; and what they "
            "saw: scanflow events"
        )
    traffic.stop()
    revisions |= models()
    until = time.time() + counted_s
    for event in event_stream:
        if event is not None:
            events.append(event)
            tell(event)
        if time.time() > until or _is_counted(events, traffic.responses, revisions):
            break
    return LoopOutcome(
        events=tuple(events),
        responses=traffic.responses,
        models=revisions,
        seconds=promoted - began,
        history=tuple(traffic.history),
    )


def _format_refusal(events: Sequence[Event]) -> str:
    refused = [event for event in events if event.type == "intent" and event.data.get("verdict") == "refuse"]
    if not refused:
        return ""
    request = refused[-1].data
    return f" Last refused request: {request.get('primitive')} by {request.get('agent')}. {request.get('reason')}"


def _is_counted(events: Sequence[Event], responses: Sequence[Responses], models: Mapping[str, str]) -> bool:
    """Return whether the events count all requests to the champion; they are reported seconds after the responses."""
    champion = next(str(event.data.get("version")) for event in reversed(events) if event.type == "model.promoted")
    revisions = [revision for revision, model in models.items() if model.rpartition("/")[2] == champion]
    sent = sum(response.sent for response in responses if response.revision in revisions)
    return sum(count.requests for count in request_counts(events) if count.version == f"V{champion}") >= sent


def format_loop(loop: LoopOutcome, report: Path) -> list[str]:
    """Return a summary of the loop."""
    old, new = loop.order[0], loop.order[-1]
    before, after = (format_percent(loop.compute_accuracy("drifted", model)) for model in (old, new))
    return [
        "",
        f"  champion  {old} → {new}, {loop.seconds:.0f} s after the first prediction",
        f"  accuracy  clean {format_percent(loop.compute_accuracy('clean', old))}; drifted {before}, then {after}",
        f"  requests  {loop.sent:,} sent, {loop.failed} failed",
        f"  report    {report}",
    ]


def render_report(client: ControlClient, app: Application, loop: LoopOutcome) -> str:
    """Return the report of the loop as a page."""
    facts = {
        "predictions": f"{loop.sent:,}",
        "failed": f"{loop.failed:,}",
        "drifted, before": format_percent(loop.compute_accuracy("drifted", loop.order[0])),
        "drifted, after": format_percent(loop.compute_accuracy("drifted", loop.order[-1])),
        "until promoted": f"{loop.seconds:.0f} s",
    }
    labels, counted = fetch_labels(client, app.name), "Over all digits that were sent: the demo knows their labels."
    return report_page(app.name, loop.events, labels, facts=facts, answers=loop.score_answers(), counted=counted)


def _stream_events(client: ControlClient, app: str, last: int, *, until: float) -> Iterator[Event | None]:
    """Yield the application's events as they happen, and None a few times a second, until a time."""
    waiting: queue.Queue[Event | ScanflowError] = queue.Queue()

    def listen() -> None:
        try:
            for event in client.events_after(last, app=app):
                waiting.put(event)
        except ScanflowError as error:
            waiting.put(error)

    threading.Thread(target=listen, daemon=True).start()
    while time.time() < until:
        try:
            received = waiting.get(timeout=_POLL_S)
        except queue.Empty:
            yield None
            continue
        if isinstance(received, ScanflowError):
            raise received
        yield received
