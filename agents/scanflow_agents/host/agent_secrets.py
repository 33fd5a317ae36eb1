"""The secrets of this agent: masked in all that it prints, records and reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.plain_secrets import list_inherited_sources
from scanflow.app.secrets import Secret, iterate_secrets
from scanflow.files.secret_sources import read_secret_sources, read_secrets
from scanflow.processes.masked_output import OutputMask


def anchor_secrets(app: Application) -> Application:
    """Return an application whose agents refer to files by absolute paths: their process works in another folder."""
    folder = Path(app.app_dir)
    agents = [
        agent.replace(
            parameters=_anchor(agent.parameters, folder),
            sensors=[sensor.replace(parameters=_anchor(sensor.parameters, folder)) for sensor in agent.sensors],
        )
        for agent in app.agents
    ]
    return app.replace(agents=agents)


def _anchor(value: Any, folder: Path) -> Any:
    if isinstance(value, Secret):
        path = folder / Path(value.place).expanduser()
        return Secret(source=f"file:{path.absolute()}") if value.kind == "file" else value
    if isinstance(value, Mapping):
        return {name: _anchor(inner, folder) for name, inner in value.items()}
    return [_anchor(inner, folder) for inner in value] if isinstance(value, list | tuple) else value


def mask_secrets_of(agent: Agent, app: Application, output: OutputMask) -> None:
    """Read the secrets of an agent, and mask them from now on, with what its process inherits.

    Raises:
        InvalidError: there is no secret in one of them.
    """
    own = [secret.source for secret in iterate_secrets([agent.parameters, agent.sensors])]
    secrets = read_secrets(list_inherited_sources(app), Path()) | read_secret_sources(own, Path())
    output.add(secrets.values())
