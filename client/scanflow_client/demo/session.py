"""A session of the demo: starts and stops the control plane, the service, the agents and the traffic."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from scanflow.agent.agent_records import AgentView, Event
from scanflow.app.application import Application
from scanflow.backends.service_change import Deployment
from scanflow.deployer import Deployer
from scanflow.errors import InvalidError
from scanflow.reports.loop_events import parse_loop_event
from scanflow.settings import Settings
from scanflow_client import control_plane
from scanflow_client.control_client import ControlClient
from scanflow_client.demo import loop
from scanflow_client.demo.demo_application import get_traffic_program
from scanflow_client.demo.demo_traffic import END_S, Responses, TrafficProgram
from scanflow_client.progress import Output, open_output, show_service_changes
from scanflow_client.signals import defer_signals, end_on_signals

SERVICE = "serve"
_STYLES = {"detection": "red", "promotion": "green", "revert": "yellow", "gate": "magenta", "predictions": "blue"}


@contextmanager
def provide_control_plane(
    settings: Settings, client: ControlClient, say: Callable[[str], None], *, keep: bool
) -> Iterator[None]:
    """Start the control plane; stop it afterwards if this call started it and nothing else runs on it."""
    if settings.url is not None:  # another machine's, or not ours to start
        yield
        return
    was_up = control_plane.read_status(settings)["up"]
    with end_on_signals(say, "Stopping what the demo started ..."), ExitStack() as stack:
        if not was_up and not keep:
            stack.callback(_end_control_plane, settings)
        result = control_plane.start_control_plane(settings)
        stops = result.server and not keep
        say(f"The control plane is up: {result.up.server.url}" + ("" if result.server else " (already running)"))
        if stops and (others := list_desired_agents(client)):
            stack.pop_all()
            names = ", ".join(f"{agent.name} of {agent.app}" for agent in others)
            say(f"It stays up, as {names} should run on it. Stop all: scanflow down")
        yield


def _end_control_plane(settings: Settings) -> None:
    if (done := control_plane.stop_control_plane(settings)).running:
        print("\n".join(done.left), file=sys.stderr)


def list_desired_agents(client: ControlClient) -> list[AgentView]:
    """Return the agents that should run, without silent ones of other machines."""
    listed = [agent for agent in client.agents() if agent.state not in {"stopped", "stopping"}]
    return [agent for agent in listed if agent.state != "silent" or agent.pid is not None]


@dataclass(frozen=True, slots=True)
class DemoSession:
    """The demo's service and agents; existing services and agents are not changed or stopped."""

    deployer: Deployer
    client: ControlClient
    app: Application
    path: Path
    say: Callable[[str], None]
    began: float = field(default_factory=time.time)

    def check_free(self) -> None:
        """Raise if the demo's service or its agents exist already, whoever owns them."""
        agents = [
            agent
            for agent in list_desired_agents(self.client)
            if self._has_agent(agent.name) and agent.app == self.app.name
        ]
        taken, removal = [], []
        if agents:
            listed = ", ".join(agent.name for agent in agents)
            taken.append(f"the agents {listed} of {self.app.name} of team {agents[0].team!r}")
            removal.append(f"scanflow agents {self.app.name} --stop")
        for service in self._list_services():
            taken.append(f"the service {SERVICE!r} of the application {service.app!r} of team {service.team!r}")
            removal.append(f"scanflow delete {SERVICE}")
        if taken:
            raise InvalidError(
                f"The demo needs names that are taken here: {' and '.join(taken)}. Remove them if you no longer need "
                f"them: {'; '.join(removal)}. Or give the demo its own home: SCANFLOW_HOME=/tmp/demo scanflow demo"
            )

    def close_the_loop(
        self,
        drifted: Path | None,
        *,
        keep: bool,
        stream: TextIO | None,
        follow: Callable[[Event], None] = lambda _event: None,
    ) -> loop.LoopOutcome:
        """Serve the champion, start the agents, send digits, and print events until a better model is promoted.

        ``follow`` is called with each event of the application.

        Everything that this started is stopped at the end, also after an error, unless ``keep``.
        """
        self.check_free()
        with ExitStack() as stack:
            if not keep:
                stack.callback(self._delete_service)
            with show_service_changes(stream) as observe:
                served = self.deployer.deploy(Deployment(self.app, SERVICE, source=self.path), observe=observe)
            if not keep:
                stack.callback(self._stop_runs)
                stack.callback(self._stop_agents)
            self.client.start_agents(self.app, source=self.path)
            self.say(
                f"From here on, the agents act by themselves: {', '.join(agent.name for agent in self.app.agents)}"
            )
            program, arguments = get_traffic_program(self.path, served, drifted)
            log = Path(served.folder) / "demo-traffic.log"
            startup_s = time.time() - self.began
            with defer_signals():
                traffic = stack.enter_context(TrafficProgram(program, *arguments, log=log))
            traffic.wait_until_ready(startup_s)
            screen = DemoScreen(stack.enter_context(open_output(stream)))

            def tell(event: Event) -> None:
                screen.show(event)
                follow(event)

            return loop.run_loop(
                self.client,
                self.app,
                traffic,
                models=self._list_models,
                tell=tell,
                look=screen.show_progress,
                startup_s=startup_s,
            )

    def _has_agent(self, agent: str) -> bool:
        return any(declared.name == agent for declared in self.app.agents)

    def _is_owner(self, app: str, team: str) -> bool:
        return (app, team) == (self.app.name, self.app.team)

    def _list_services(self) -> list[Any]:
        return [service for service in self.deployer.services() if service.name == SERVICE]

    def _list_models(self) -> dict[str, str]:
        revisions = self.deployer.service(SERVICE).revisions
        return {revision.id: next(iter(revision.models.values()), "?") for revision in revisions}

    def _delete_service(self) -> None:
        if any(self._is_owner(service.app, service.team) for service in self._list_services()):
            self.deployer.delete(SERVICE)

    def _stop_runs(self) -> None:
        """Stop the runs that the agents started and that still run."""
        for run in self.deployer.runs(limit=100):
            if run.state == "running" and self._is_owner(run.app, run.team) and run.created >= self.began:
                self.deployer.stop(run.name)
                self.deployer.wait(run.name, timeout_s=END_S)

    def _stop_agents(self) -> None:
        """Stop the demo's agents, except those that now belong to another team."""
        for agent in list_desired_agents(self.client):
            if self._is_owner(agent.app, agent.team) and self._has_agent(agent.name):
                self.client.stop_agents(agent.full_name)


class DemoScreen:
    """Shows the demo's events as they happen, one line each, and in a terminal the current activity below."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._began = time.time()
        self._printed: set[tuple[str, str, str]] = set()

    def show(self, event: Event) -> None:
        """Print an event, unless it repeats a printed request."""
        entry = parse_loop_event(event)
        if entry is None:
            return
        mark = (entry.agent, entry.text, "" if entry.kind == "other" else str(event.id))
        if mark not in self._printed:
            self._printed.add(mark)
            line = f"  {max(0.0, entry.at - self._began):5.0f} s  {entry.agent:<9} {entry.text}"
            self._output.print(line, _STYLES.get(entry.kind, ""))

    def show_progress(self, phase: loop.Phase, responses: Sequence[Responses]) -> None:
        right, count = (
            sum(response.right for response in responses),
            sum(response.right + response.wrong for response in responses),
        )
        accuracy = f"; {count:,} predictions, {right / count:.0%} correct" if count else ""
        self._output.update(f"{phase.activity}{accuracy}")
