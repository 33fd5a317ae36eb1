"""What is there before the demo starts, which it must not change or stop; and the end of what it started."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from scanflow.app.application import Application
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import Deployer
from scanflow.errors import InvalidError
from scanflow.transport import ServerClient, path_of


def check_free(where: Deployer, server: ServerClient, app: Application, service: str) -> None:
    """Check that neither the demo's service nor its agents exist already.

    Raises:
        InvalidError: they do, whoever owns them; the message says how to remove them.
    """
    names = {one.name for one in app.agents}
    agents = [one for one in wanted_agents(server) if one["app"] == app.name and one["name"] in names]
    found = _service(where, service)
    taken, removal = [], []
    if agents:
        listed = ", ".join(one["name"] for one in agents)
        taken.append(f"the agents {listed} of {app.name} of team {agents[0]['team']!r}")
        removal.append(f"scanflow agents {app.name} --stop")
    if found:
        taken.append(f"the service {service!r} of the application {found.app!r} of team {found.team!r}")
        removal.append(f"scanflow delete {service}")
    if taken:
        raise InvalidError(
            f"The demo needs names that are taken here: {' and '.join(taken)}. Remove them if you no longer need them: "
            f"{'; '.join(removal)}. Or give the demo its own home: SCANFLOW_HOME=/tmp/demo scanflow demo"
        )


def wanted_agents(server: ServerClient) -> list[dict[str, Any]]:
    """Return the agents that should run, without those that ran elsewhere and are no longer heard of."""
    listed = [one for one in server.get(path_of("agents")) if one["state"] not in {"stopped", "stopping"}]
    return [one for one in listed if one["state"] != "silent" or one.get("pid") is not None]


def delete_service(where: Deployer, app: Application, service: str) -> None:
    """Delete the application's service, if it exists and belongs to the application."""
    found = _service(where, service)
    if found is not None and (found.app, found.team) == (app.name, app.team):
        where.delete(service)


def stop_agents(server: ServerClient, app: Application, names: Collection[str]) -> None:
    """Stop these agents of the application, except those that belong to another team by now."""
    for one in wanted_agents(server):
        if (one["app"], one["team"]) == (app.name, app.team) and one["name"] in names:
            server.delete(path_of("agents", app.name, one["name"]))


def _service(where: Deployer, name: str) -> ServiceRecord | None:
    return next((one for one in where.services() if one.name == name), None)
