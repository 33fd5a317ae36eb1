"""What stands before the demo begins, and so is not the demo's to change or to end; and the end of what it began."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from scanflow.app.application import Application
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import Deployer
from scanflow.errors import InvalidError
from scanflow.transport import Server, path_of

__all__ = ["end_agents", "end_service", "look_before", "wanted_agents"]

_ELSEWHERE = "Or let the demo have a home of its own: SCANFLOW_HOME=/tmp/demo scanflow demo"


def look_before(where: Deployer, server: Server, app: Application, service: str) -> None:
    """See that nothing of the application's is there: its agents would leave alone what a demo changes under them.

    Raises:
        InvalidError: a service or agents are, of whomever; the message says how to end them.
    """
    names = {one.name for one in app.agents}
    agents = [one for one in wanted_agents(server) if one["app"] == app.name and one["name"] in names]
    found = _service(where, service)
    there = [f"the service {service!r} of the application {found.app!r} of team {found.team!r}"] if found else []
    ends = [f"scanflow delete {service}"] if found else []
    if agents:
        listed = ", ".join(one["name"] for one in agents)
        there.insert(0, f"the agents {listed} of {app.name} of team {agents[0]['team']!r}")
        ends.insert(0, f"scanflow agents {app.name} --stop")
    if there:
        raise InvalidError(
            f"The demo needs names that are taken here: {' and '.join(there)}. If you can do without, end that: "
            f"{'; '.join(ends)}. {_ELSEWHERE}"
        )


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
