"""One session of the demo: the control plane, the service, the agents and the traffic; started, and stopped again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from scanflow.agent.records import AgentView, Event
from scanflow.app.application import Application
from scanflow.backends.service_change import Deployment
from scanflow.deployer import Deployer
from scanflow.errors import InvalidError
from scanflow.reports.loop_events import loop_event
from scanflow.settings import Settings
from scanflow_client import control_plane
from scanflow_client.control_client import ControlClient
from scanflow_client.demo import loop
from scanflow_client.demo.application import traffic_program
from scanflow_client.demo.traffic import END_S, Responses, TrafficProgram
from scanflow_client.progress import Output, open_output, show_service_changes
from scanflow_client.signals import defer_signals, end_on_signals

SERVICE = "serve"
_STYLES = {"detection": "red", "promotion": "green", "revert": "yellow", "gate": "magenta", "predictions": "blue"}


@contextmanager
def temporary_control_plane(
    settings: Settings, client: ControlClient, say: Callable[[str], None], *, keep: bool
) -> Iterator[None]:
    """Have the control plane up inside; stop it afterwards if this started it and nothing else runs on it."""
    if settings.url is not None:  # it is not on this machine, or not ours to start
        yield
        return
    was_up = control_plane.read_status(settings)["up"]
    with end_on_signals(say, "Ending what the demo started ..."), ExitStack() as stack:
        if not was_up and not keep:
            stack.callback(_end_control_plane, settings)
        raised = control_plane.start_control_plane(settings)
        stops = raised.server and not keep
        say(f"The control plane is up: {raised.up.server.url}" + ("" if raised.server else " (it was before)"))
        if stops and (others := wanted_agents(client)):
            stack.pop_all()
            names = ", ".join(f"{one.name} of {one.app}" for one in others)
            say(f"It stays up, as {names} should run on it. Stop all: scanflow down")
        yield


def _end_control_plane(settings: Settings) -> None:
    if (done := control_plane.stop_control_plane(settings)).running:
        print("\n".join(done.left), file=sys.stderr)


def wanted_agents(client: ControlClient) -> list[AgentView]:
    """Return the agents that should run, without those that ran elsewhere and are no longer heard of."""
    listed = [one for one in client.agents() if one.state not in {"stopped", "stopping"}]
    return [one for one in listed if one.state != "silent" or one.pid is not None]


@dataclass(frozen=True, slots=True)
class DemoSession:
    """The demo's service and agents: what was there before must not be changed or stopped."""

    where: Deployer
    client: ControlClient
    app: Application
    path: Path
    say: Callable[[str], None]
    began: float = field(default_factory=time.time)

    def check_free(self) -> None:
        """Refuse to start where the demo's service or its agents exist already, whoever owns them."""
        agents = [one for one in wanted_agents(self.client) if self._has(one.name) and one.app == self.app.name]
        taken, removal = [], []
        if agents:
            listed = ", ".join(one.name for one in agents)
            taken.append(f"the agents {listed} of {self.app.name} of team {agents[0].team!r}")
            removal.append(f"scanflow agents {self.app.name} --stop")
        for found in self._services():
            taken.append(f"the service {SERVICE!r} of the application {found.app!r} of team {found.team!r}")
            removal.append(f"scanflow delete {SERVICE}")
        if taken:
            raise InvalidError(
                f"The demo needs names that are taken here: {' and '.join(taken)}. Remove them if you no longer need "
                f"them: {'; '.join(removal)}. Or give the demo its own home: SCANFLOW_HOME=/tmp/demo scanflow demo"
            )

    def close_the_loop(self, drifted: Path | None, *, keep: bool, stream: TextIO | None) -> loop.LoopOutcome:
        """Serve the champion, start the agents, send digits, and print events until a better model is promoted.

        What this started is stopped at the end, also after an error, unless ``keep``; what was there before is not.
        """
        self.check_free()
        with ExitStack() as stack:
            if not keep:
                stack.callback(self._delete_service)
            with show_service_changes(stream) as observe:
                served = self.where.deploy(Deployment(self.app, SERVICE, source=self.path), observe=observe)
            if not keep:
                stack.callback(self._stop_runs)
                stack.callback(self._stop_agents)
            self.client.start_agents(self.app, source=self.path)
            self.say(f"From here on, the agents act by themselves: {', '.join(one.name for one in self.app.agents)}")
            program, arguments = traffic_program(self.path, served, drifted)
            log = Path(served.folder) / "demo-traffic.log"
            startup_s = time.time() - self.began
            with defer_signals():
                traffic = stack.enter_context(TrafficProgram(program, *arguments, log=log))
            traffic.wait_until_ready(startup_s)
            screen = DemoScreen(stack.enter_context(open_output(stream)))
            return loop.run_loop(
                self.client,
                self.app,
                traffic,
                models=self._models,
                tell=screen.show,
                look=screen.look,
                startup_s=startup_s,
            )

    def _has(self, agent: str) -> bool:
        return any(one.name == agent for one in self.app.agents)

    def _owns(self, app: str, team: str) -> bool:
        return (app, team) == (self.app.name, self.app.team)

    def _services(self) -> list[Any]:
        return [one for one in self.where.services() if one.name == SERVICE]

    def _models(self) -> dict[str, str]:
        revisions = self.where.service(SERVICE).revisions
        return {one.id: next(iter(one.models.values()), "?") for one in revisions}

    def _delete_service(self) -> None:
        if any(self._owns(one.app, one.team) for one in self._services()):
            self.where.delete(SERVICE)

    def _stop_runs(self) -> None:
        """Stop what the agents began and the demo did not wait for."""
        for one in self.where.runs(limit=100):
            if one.state == "running" and self._owns(one.app, one.team) and one.created >= self.began:
                self.where.stop(one.name)
                self.where.wait(one.name, timeout_s=END_S)

    def _stop_agents(self) -> None:
        """Stop the demo's agents, except those that belong to another team by now."""
        for one in wanted_agents(self.client):
            if self._owns(one.app, one.team) and self._has(one.name):
                self.client.stop_agents(one.full_name)


class DemoScreen:
    """The demo's events as they happen: one line each, once, and in a terminal the current activity below."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._began = time.time()
        self._printed: set[tuple[str, str, str]] = set()

    def show(self, event: Event) -> None:
        """Print an event, unless it repeats a request that was printed before."""
        found = loop_event(event)
        if found is None:
            return
        mark = (found.agent, found.text, "" if found.kind == "other" else str(event.id))
        if mark not in self._printed:
            self._printed.add(mark)
            line = f"  {max(0.0, found.at - self._began):5.0f} s  {found.agent:<9} {found.text}"
            self._output.print(line, _STYLES.get(found.kind, ""))

    def look(self, phase: loop.Phase, responses: Sequence[Responses]) -> None:
        right, count = sum(one.right for one in responses), sum(one.right + one.wrong for one in responses)
        accuracy = f"; {count:,} predictions, {right / count:.0%} correct" if count else ""
        self._output.update(f"{phase.activity}{accuracy}")
