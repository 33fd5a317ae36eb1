"""The demo's loop: digits are sent to a service while agents watch it, until they promote a better model."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanflow.agent.records import Event
from scanflow.app.application import Application
from scanflow.deployer.serialization import packed
from scanflow.errors import ScanflowError, StepFailedError, UnavailableError
from scanflow.reports.loop_events import loop_events, versions_of
from scanflow.reports.page import loop_report
from scanflow.transport import ServerClient, path_of
from scanflow_client.demo.phases import FIRST, Phase, phase_after
from scanflow_client.demo.traffic import Responses, TrafficProgram
from scanflow_client.formatting.text import percent

SERVICE = "serve"
TIMEOUT_S = 600.0
"""The longest that a promotion may take."""

TAIL_S = 4.0
"""How long traffic goes on after the promotion, so that the new champion can be compared with the old one."""

_POLL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class LoopOutcome:
    """The outcome of the loop."""

    events: tuple[Event, ...]
    responses: tuple[Responses, ...]
    models: dict[str, str]
    """The model's address, by revision of the service."""

    seconds: float
    """From the first prediction to the promotion."""

    @property
    def failed(self) -> int:
        """Return how many predictions failed."""
        return sum(one.failed for one in self.responses)

    @property
    def sent(self) -> int:
        """Return how many predictions were requested."""
        return sum(one.sent for one in self.responses)

    def accuracy(self, kind: str, model: str) -> float | None:
        """Return the accuracy of a version on digits of a kind, from 0 to 1; None: it predicted none."""
        rows = [one for one in self.responses if one.kind == kind and self.models.get(one.revision) == model]
        right, count = sum(one.right for one in rows), sum(one.right + one.wrong for one in rows)
        return right / count if count else None

    @property
    def order(self) -> list[str]:
        """Return the model's versions in the order in which they served, the champion last."""
        found = list(dict.fromkeys(self.models.values()))
        promoted = [one.data.get("version") for one in self.events if one.type == "model.promoted"]
        if promoted:
            champion = f"{found[0].rpartition('/')[0] if found else ''}/{promoted[-1]}"
            return [*(one for one in found if one != champion), champion]
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as JSON can hold it."""
        kinds = ("clean", "drifted")
        return {
            "seconds": self.seconds,
            "sent": self.sent,
            "failed": self.failed,
            "accuracy": {model: {kind: self.accuracy(kind, model) for kind in kinds} for model in self.order},
            "versions": [one.model_dump() for one in versions_of(self.events)],
            "events": [one.model_dump() for one in loop_events(self.events)],
        }


def start_agents(server: ServerClient, app: Application, source: Path) -> list[str]:
    """Start the application's agents; return their names."""
    body = packed(app, source)
    for agent in app.agents:
        server.put(path_of("agents", app.name, agent.name), body)
    return [agent.name for agent in app.agents]


def run_loop(
    server: ServerClient,
    app: Application,
    traffic: TrafficProgram,
    *,
    models: Callable[[], dict[str, str]],
    tell: Callable[[Event], None],
    look: Callable[[Phase, Sequence[Responses]], None],
    timeout_s: float = TIMEOUT_S,
    tail_s: float = TAIL_S,
) -> LoopOutcome:
    """Send digits until the agents have promoted a better model, and ``tail_s`` longer.

    Args:
        server: Where the agents report.
        app: The agents' application.
        traffic: What sends the digits.
        models: Returns the model of each revision of the service.
        tell: Called with each event.
        look: Called a few times a second.
        timeout_s: The longest that it may take.
        tail_s: How long traffic goes on after the promotion.

    Raises:
        StepFailedError: a run that the agents started failed.
        UnavailableError: nothing was promoted in time, or the server does not answer.
    """
    began, phase, known = time.time(), FIRST, models()
    events: list[Event] = []
    traffic.send(phase.order)
    promoted: float | None = None
    newest = int(server.get(path_of("status"))["counts"].get("events", 0))
    for event in _events(server, app.name, newest, until=began + timeout_s):
        look(phase, traffic.responses)
        if event is not None:
            events.append(event)
            if event.type == "run.failed":
                raise _run_failed(event)
            if (now := phase_after(phase, event)) != phase:
                phase = now
                traffic.send(phase.order)
            tell(event)
            known |= models() if event.type in {"service.changed", "action.succeeded", "model.promoted"} else {}
        if phase.name == "promoted":
            promoted = promoted or time.time()
            if time.time() > promoted + tail_s:
                break
    if promoted is None:
        raise UnavailableError(
            f"No better model was promoted within {timeout_s:.0f} s. If the demo has stopped the control plane, start "
            "it again: scanflow up; then see what the agents did: scanflow why; and what they saw: scanflow events"
        )
    traffic.stop()
    return LoopOutcome(
        events=tuple(events), responses=traffic.responses, models=known | models(), seconds=promoted - began
    )


def loop_lines(loop: LoopOutcome, report: Path) -> list[str]:
    """Return a summary of the loop."""
    old, new = loop.order[0], loop.order[-1]
    before, after = (percent(loop.accuracy("drifted", model)) for model in (old, new))
    return [
        "",
        f"  champion  {old} → {new}, {loop.seconds:.0f} s after the first prediction",
        f"  accuracy  clean {percent(loop.accuracy('clean', old))}; drifted {before}, then {after}",
        f"  requests  {loop.sent:,} sent, {loop.failed} failed",
        f"  report    {report}",
    ]


def report_of(app: Application, loop: LoopOutcome) -> str:
    """Return the report as a page."""
    facts = {
        "predictions": f"{loop.sent:,}",
        "failed": f"{loop.failed:,}",
        "drifted, before": percent(loop.accuracy("drifted", loop.order[0])),
        "drifted, after": percent(loop.accuracy("drifted", loop.order[-1])),
        "until promoted": f"{loop.seconds:.0f} s",
    }
    return loop_report(
        title=f"The loop of {app.name}",
        events=loop_events(loop.events, app=app.name),
        versions=versions_of(loop.events),
        facts=facts,
    )


def _events(server: ServerClient, app: str, last: int, *, until: float) -> Iterator[Event | None]:
    """Yield the application's events as they come, and None a few times a second; end at a time."""
    waiting: queue.Queue[Event | ScanflowError] = queue.Queue()

    def listen() -> None:
        try:
            for message in server.events(path_of("events"), after=str(last), app=app):
                waiting.put(Event.model_validate_json(message.data))
        except ScanflowError as error:
            waiting.put(error)

    threading.Thread(target=listen, daemon=True).start()
    while time.time() < until:
        try:
            found = waiting.get(timeout=_POLL_S)
        except queue.Empty:
            yield None
            continue
        if isinstance(found, ScanflowError):
            raise found
        yield found


def _run_failed(event: Event) -> StepFailedError:
    name, error = event.subject.partition("/")[2], event.data.get("error")
    return StepFailedError(f"The run {name} that an agent started failed: {error}. See: scanflow logs {name}")
