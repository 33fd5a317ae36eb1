"""Ending the agents of a home: asked through the server, waited for, and made to end by the locks that they hold."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from pathlib import Path

from scanflow.errors import ScanflowError
from scanflow.transport import Server, path_of
from scanflow_client.agent_processes import AgentProcess, living_agents, wait_until_ended

__all__ = ["Ending"]

_ENDED = {"stopped", "failed"}

Place = tuple[str, str]
"""An application's name and an agent's."""


class Ending:
    """The agents of one home on their way out, and what became of each."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._asked: list[Place] = []
        self._failed: list[tuple[list[Place], str]] = []
        self._by_force: dict[Place, int] = {}
        self._served: list[str] = []

    def living(self) -> list[AgentProcess]:
        """Return those whose processes live."""
        return living_agents(self._home)

    def ask(self, server: Server) -> None:
        """Have the server end each; one that it cannot end keeps no other from being asked."""
        try:
            listed = [one for one in server.get(path_of("agents")) if one.get("state") not in _ENDED]
            self._served = [one["name"] for one in server.get(path_of("services"))]
        except ScanflowError as error:
            self.cannot_ask(error)
            return
        for app, name in ((one["app"], one["name"]) for one in listed):
            try:
                server.delete(path_of("agents", app, name))
            except ScanflowError as error:
                self._failed.append(([(app, name)], str(error)))
            else:
                self._asked.append((app, name))

    def cannot_ask(self, error: ScanflowError) -> None:
        """Take note that there is no server to ask, and why."""
        self._failed.append(([_place(one) for one in self.living()], str(error)))

    def wait(self, patience_s: float, *, tell: Callable[[str], None], tell_after_s: float) -> None:
        """Wait for those that were asked: the server ends them the hard way after a while."""
        asked = [one for one in self.living() if _place(one) in self._asked]
        if late := wait_until_ended(asked, min(tell_after_s, patience_s)):
            tell(f"Waiting for {_names(late)} to end, for at most {patience_s:.0f} s.")
            wait_until_ended(late, patience_s - tell_after_s)

    def force(self, grace_s: float) -> None:
        """End those that live now, without a server: with time to tidy up where they were not asked before."""
        left = self.living()
        found = {_place(one): pid for one in left if (pid := one.pid) is not None}
        fresh = [one for one in left if _place(one) not in self._asked]
        _signal(fresh, signal.SIGTERM)
        wait_until_ended(fresh, grace_s)
        late = [one for one in left if one.lives]
        _signal(late, signal.SIGKILL)
        living = {_place(one) for one in wait_until_ended(late, grace_s)}
        self._by_force = {place: pid for place, pid in found.items() if place not in living}

    @property
    def stopped(self) -> list[str]:
        """What was ended, for people."""
        running = {_place(one) for one in self.living()}
        by_server = [one for one in self._asked if one not in running and one not in self._by_force]
        return [
            *(_told(one) for one in by_server),
            *(f"{_told(one)} (process {pid}), which the server did not" for one, pid in self._by_force.items()),
        ]

    @property
    def left(self) -> list[str]:
        """What was not ended, or not for good, for people."""
        lines = []
        for places, why in self._failed:
            who = ", ".join(_told(one) for one in places) or "agents"
            again = any(one in self._by_force for one in places)  # it still wants what was ended without it
            then = f", so the next 'scanflow up' starts {_it(places)} again" if again else ""
            lines.append(f"The server could not be asked to end {who}{then}: {why}")
        lines += [_runs_on(one) for one in self.living()]
        if self._served:
            lines.append(f"{', '.join(self._served)} go on answering. End one: scanflow delete {self._served[0]}")
        return lines

    def left_to(self, server: str) -> list[str]:
        """Return that those which live are another's to end."""
        living = self.living()
        return [f"{_names(living)} run on: {server}"] if living else []

    @property
    def running(self) -> list[str]:
        """The agents that live."""
        return [_name(one) for one in self.living()]


def _signal(some: Collection[AgentProcess], number: int) -> None:
    for one in some:
        one.signal(number)


def _place(one: AgentProcess) -> Place:
    return one.app, one.name


def _told(place: Place) -> str:
    return f"the agent {place[1]!r} of {place[0]}"


def _name(one: AgentProcess) -> str:
    return f"{one.name} of {one.app}"


def _names(some: Collection[AgentProcess]) -> str:
    return ", ".join(_name(one) for one in some)


def _it(some: Collection[Place]) -> str:
    return "it" if len(some) == 1 else "them"


def _runs_on(one: AgentProcess) -> str:
    pid = one.pid
    what = f"the process {pid}" if pid is not None else f"whoever holds {str(one.folder / 'lock')!r} (lslocks tells)"
    return f"The agent {one.name!r} of {one.app} runs on, and cannot be ended. End {what}, and ask again: scanflow down"
