"""What stands before the demo begins, and so is not the demo's to end: a service, and agents, of whomever."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from scanflow.app.application import Application
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import Deployer
from scanflow.errors import InvalidError
from scanflow.transport import Server, path_of

__all__ = ["Standing", "end_agents", "end_service", "look_before", "wanted_agents"]

_ELSEWHERE = "Or let the demo have a home of its own: SCANFLOW_HOME=/tmp/demo scanflow demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What of the application's is there."""

    service: bool
    agents: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """What becomes of it, for people."""
        lines = ["The demo's service is there already: it gets the model of this demo, and is left running."]
        agents = [f"{', '.join(self.agents)} run already: they go on with what they have kept, and are left running."]
        return [*(lines if self.service else []), *(agents if self.agents else [])]


def look_before(where: Deployer, server: Server, app: Application, service: str) -> Standing:
    """Return what of the application's is there.

    Raises:
        InvalidError: what it needs the name of is another's.
    """
    found = _service(where, service)
    if found is not None and not _owns(app, found):
        raise InvalidError(
            f"A service {service!r} is there already, of the application {found.app!r} of team {found.team!r}, and the "
            f"demo needs that name. End it, if you can do without it: scanflow delete {service}. {_ELSEWHERE}"
        )
    names = {one.name for one in app.agents}
    agents = [one for one in wanted_agents(server) if one["app"] == app.name and one["name"] in names]
    others = [one for one in agents if one["team"] != app.team]
    if others:
        raise InvalidError(
            f"The agents {', '.join(one['name'] for one in others)} of {app.name} run already, of the team "
            f"{others[0]['team']!r}, and the demo needs those names. Stop them, if you can do without them: "
            f"scanflow agents {app.name} --stop. {_ELSEWHERE}"
        )
    return Standing(service=found is not None, agents=tuple(one["name"] for one in agents))


def wanted_agents(server: Server) -> list[dict[str, Any]]:
    """Return the agents that are to run, as they are listed; not those that were elsewhere and are heard no more."""
    gone = {"stopped", "stopping"}
    listed = [one for one in server.get(path_of("agents")) if one["state"] not in gone]
    return [one for one in listed if one["state"] != "silent" or one.get("pid") is not None]


def end_service(where: Deployer, app: Application, service: str) -> None:
    """Delete the application's service, if it is there and is the application's."""
    found = _service(where, service)
    if found is not None and _owns(app, found):
        where.delete(service)


def end_agents(server: Server, app: Application, names: Collection[str]) -> None:
    """Have these agents of the application ended, but for those that are another team's by now."""
    for one in wanted_agents(server):
        if (one["app"], one["team"]) == (app.name, app.team) and one["name"] in names:
            server.delete(path_of("agents", app.name, one["name"]))


def _service(where: Deployer, name: str) -> ServiceRecord | None:
    return next((one for one in where.services() if one.name == name), None)


def _owns(app: Application, service: ServiceRecord) -> bool:
    return (service.app, service.team) == (app.name, app.team)
