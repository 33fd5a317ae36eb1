"""The demo's loop: a service is asked for digits, agents watch over it, and what they do is told as it happens."""

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
from scanflow.deployer.remote_travel import packed
from scanflow.errors import ScanflowError, StepFailedError, UnavailableError
from scanflow.reports.page import loop_report
from scanflow.reports.story import loop_events, versions_of
from scanflow.transport import Server, path_of
from scanflow_client.scenario import BEGIN, Scenario, after
from scanflow_client.traffic import Answered, Traffic

__all__ = ["Loop", "loop_lines", "newest_event", "report_of", "run_loop", "start_agents"]

SERVICE = "serve"
LONGEST_S = 600.0
"""After so long without a promotion the demo gives up."""

TAIL_S = 4.0
"""For how long the new champion is asked, so that it can be compared with the one before."""

_LOOK_S = 0.25
_MOST_EVENTS = 10_000


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What happened."""

    events: tuple[Event, ...]
    answered: tuple[Answered, ...]
    models: dict[str, str]
    """The model's address, by revision of the service."""

    seconds: float
    """From the first prediction to the promotion."""

    @property
    def failed(self) -> int:
        """How many predictions failed."""
        return sum(one.failed for one in self.answered)

    @property
    def sent(self) -> int:
        """How many predictions were asked for."""
        return sum(one.sent for one in self.answered)

    def accuracy(self, kind: str, model: str) -> float | None:
        """Return how well a version has read digits of a kind, from 0 to 1; None: it was not asked for any."""
        rows = [one for one in self.answered if one.kind == kind and self.models.get(one.revision) == model]
        right, count = sum(one.right for one in rows), sum(one.right + one.wrong for one in rows)
        return right / count if count else None

    @property
    def order(self) -> list[str]:
        """The model's versions in the order in which they were put to use, the champion last."""
        found = list(dict.fromkeys(self.models.values()))
        name = found[0].rpartition("/")[0] if found else ""
        promoted = [one.data.get("version") for one in self.events if one.type == "model.promoted"]
        return [*(one for one in found if not promoted or one != f"{name}/{promoted[-1]}"), *_last(name, promoted)]

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "seconds": self.seconds,
            "sent": self.sent,
            "failed": self.failed,
            "accuracy": {
                model: {kind: self.accuracy(kind, model) for kind in ("clean", "drifted")} for model in self.order
            },
            "versions": [one.model_dump() for one in versions_of(self.events)],
            "events": [one.model_dump() for one in loop_events(self.events)],
        }


def start_agents(server: Server, app: Application, source: Path) -> list[str]:
    """Have the application's agents run; return their names."""
    body = packed(app, source)
    for agent in app.agents:
        server.put(path_of("agents", app.name, agent.name), body)
    return [agent.name for agent in app.agents]


def newest_event(server: Server) -> int:
    """Return the number of the newest event."""
    return int(server.get(path_of("status"))["counts"].get("events", 0))


def run_loop(
    server: Server,
    app: Application,
    traffic: Traffic,
    *,
    models: Callable[[], dict[str, str]],
    tell: Callable[[Event], None],
    look: Callable[[Scenario, Sequence[Answered]], None],
    longest_s: float = LONGEST_S,
    tail_s: float = TAIL_S,
) -> Loop:
    """Send digits until the agents have promoted a better model, and a little longer.

    Args:
        server: Where the agents report.
        app: Whose agents they are.
        traffic: What sends.
        models: Says which model each revision of the service has.
        tell: Is told of each event.
        look: Is called a few times a second.
        longest_s: How long it may take.
        tail_s: For how long the new champion is asked.

    Raises:
        StepFailedError: a run that the agents began failed.
        UnavailableError: nothing was promoted in time, or the server went away.
    """
    began, scenario, known = time.time(), BEGIN, models()
    events: list[Event] = []
    traffic.tell(scenario.order)
    promoted: float | None = None
    for event in _heard(server, app.name, newest_event(server), until=began + longest_s):
        look(scenario, traffic.answered)
        if event is not None:
            events.append(event)
            if event.type == "run.failed":
                raise _run_failed(event)
            if (now := after(scenario, event)) != scenario:
                scenario = now
                traffic.tell(scenario.order)
            tell(event)
            known |= models() if event.type in {"service.changed", "action.succeeded", "model.promoted"} else {}
        if scenario.phase == "promoted":
            promoted = promoted or time.time()
            if time.time() > promoted + tail_s:
                break
    if promoted is None:
        raise UnavailableError(
            f"No better model was promoted within {longest_s:.0f} s. Have the control plane up again, if the demo has "
            "ended it: scanflow up; then see what the agents did: scanflow why; and what they saw: scanflow events"
        )
    traffic.stop()
    return Loop(events=tuple(events), answered=traffic.answered, models=known | models(), seconds=promoted - began)


def loop_lines(loop: Loop, report: Path) -> list[str]:
    """Return what a person wants to know of it."""
    old, new = loop.order[0], loop.order[-1]
    rows = []
    for kind in ("clean", "drifted"):
        before, now = (_percent(loop.accuracy(kind, model)) for model in (old, new))
        rows.append(f"{kind} {before}" if kind == "clean" else f"{kind} {before}, then {now}")
    return [
        "",
        f"  champion  {old} → {new}, {loop.seconds:.0f} s after the first prediction",
        f"  accuracy  of what the service answered: {'; '.join(rows)}",
        f"  requests  {loop.sent:,} sent, {loop.failed} failed",
        f"  report    {report}",
    ]


def report_of(app: Application, loop: Loop) -> str:
    """Return the report as a page."""
    old, new = loop.order[0], loop.order[-1]
    facts = {
        "predictions": f"{loop.sent:,}",
        "failed": f"{loop.failed:,}",
        "drifted, before": _percent(loop.accuracy("drifted", old)),
        "drifted, after": _percent(loop.accuracy("drifted", new)),
        "until promoted": f"{loop.seconds:.0f} s",
    }
    return loop_report(
        title=f"The loop of {app.name}",
        events=loop_events(loop.events, app=app.name),
        versions=versions_of(loop.events),
        facts=facts,
    )


def _heard(server: Server, app: str, last: int, *, until: float) -> Iterator[Event | None]:
    """Yield the application's events as they come, and None now and then; end at a time."""
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
            found = waiting.get(timeout=_LOOK_S)
        except queue.Empty:
            yield None
            continue
        if isinstance(found, ScanflowError):
            raise found
        yield found


def _run_failed(event: Event) -> StepFailedError:
    name = event.subject.partition("/")[2]
    error = event.data.get("error")
    return StepFailedError(f"The run {name} that an agent began failed: {error}. See: scanflow logs {name}")


def _last(name: str, promoted: Sequence[Any]) -> list[str]:
    return [f"{name}/{promoted[-1]}"] if promoted else []


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
