"""Stopping the agents of a home: through the server, and without it where it cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from scanflow.errors import ScanflowError
from scanflow.transport import ServerClient, path_of
from scanflow_client.agent_processes import AgentProcess, living_agents, wait_until_ended

_ENDED = {"stopped", "failed"}
Place = tuple[str, str]
"""An application's name and an agent's."""


class AgentShutdown:
    """The agents of one home on their way out, and the outcome for each."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._asked: list[Place] = []
        self._failed: list[tuple[list[Place], str]] = []
        self._killed: dict[Place, int] = {}
        self._services: list[str] = []

    def living(self) -> list[AgentProcess]:
        """Return the agents whose processes live."""
        return living_agents(self._home)

    def request(self, server: ServerClient) -> None:
        """Have the server stop each agent; an error for one does not keep the others running."""
        try:
            listed = [one for one in server.get(path_of("agents")) if one.get("state") not in _ENDED]
            self._services = [one["name"] for one in server.get(path_of("services"))]
        except ScanflowError as error:
            self.server_failed(error)
            return
        for place in ((one["app"], one["name"]) for one in listed):
            try:
                server.delete(path_of("agents", *place))
            except ScanflowError as error:
                self._failed.append(([place], str(error)))
            else:
                self._asked.append(place)

    def server_failed(self, error: ScanflowError) -> None:
        """Record that no server could be asked, and why."""
        self._failed.append(([one.place for one in self.living()], str(error)))

    def wait(self, timeout_s: float, *, tell: Callable[[str], None], tell_after_s: float) -> None:
        """Wait for the agents that were asked; the server kills them after a while."""
        asked = [one for one in self.living() if one.place in self._asked]
        if late := wait_until_ended(asked, min(tell_after_s, timeout_s)):
            tell(f"Waiting for {_names(late)} to stop, for at most {timeout_s:.0f} s.")
            wait_until_ended(late, timeout_s - tell_after_s)

    def kill(self, timeout_s: float) -> None:
        """Stop the agents that still live, without a server; those that were not asked before get time to clean up."""
        left = self.living()
        pids = {one.place: pid for one in left if (pid := one.daemon.pid) is not None}
        for one in left:
            if one.place in self._asked:
                one.daemon.kill()
            else:
                one.daemon.stop()
        living = {one.place for one in wait_until_ended(left, timeout_s)}
        self._killed = {place: pid for place, pid in pids.items() if place not in living}

    @property
    def stopped(self) -> list[str]:
        """Return the agents that were stopped, in words."""
        running = {one.place for one in self.living()}
        by_server = [one for one in self._asked if one not in running and one not in self._killed]
        return [
            *map(_agent, by_server),
            *(f"{_agent(one)} (process {pid}), which the server did not" for one, pid in self._killed.items()),
        ]

    @property
    def left(self) -> list[str]:
        """Return what was not stopped, or not for good, in words."""
        lines = []
        for places, why in self._failed:
            who = ", ".join(map(_agent, places)) or "agents"
            again = any(one in self._killed for one in places)  # the server still wants them
            then = f", so the next 'scanflow up' starts {'it' if len(places) == 1 else 'them'} again" if again else ""
            lines.append(f"The server could not be asked to stop {who}{then}: {why}")
        lines += map(_still_runs, self.living())
        if self._services:
            names = ", ".join(self._services)
            lines.append(f"Services go on serving: {names}. Delete one: scanflow delete {self._services[0]}")
        return lines

    def left_to(self, reason: str) -> list[str]:
        """Return that the living agents are not ours to stop."""
        living = self.living()
        return [f"{_names(living)} still run: {reason}"] if living else []

    @property
    def running(self) -> list[str]:
        """Return the names of the living agents."""
        return [one.label for one in self.living()]


def _agent(place: Place) -> str:
    return f"the agent {place[1]!r} of {place[0]}"


def _names(some: Sequence[AgentProcess]) -> str:
    return ", ".join(one.label for one in some)


def _still_runs(one: AgentProcess) -> str:
    pid = one.daemon.pid
    return f"The agent {one.name!r} of {one.app} still runs. Kill the process {pid}, then try again: scanflow down"
