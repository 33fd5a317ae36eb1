"""Select agents by a target: ``app.py``, ``app.py:tracker``. Loading runs the user's code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.application_loading import load_application
from scanflow.errors import InvalidError, NotFoundError, did_you_mean


def select_agents(target: str | None) -> tuple[Application, Path, Sequence[Agent]]:
    """Return the application of ``FILE[:AGENT]``, its file, and the selected agents."""
    application, source, name = load_application(target, with_functions=False)
    if not application.agents:
        raise InvalidError(
            f"The application {application.name!r} has no agents. Give it one: sf.Application(..., "
            "agents=[sf.Agent(name='tracker', modules=['tracker.py'])])"
        )
    agents = [agent for agent in application.agents if name in {None, agent.name}]
    if not agents:
        names = [agent.name for agent in application.agents]
        raise NotFoundError(
            f"The application {application.name!r} has no agent {name!r}.{did_you_mean(name or '', names)}"
        )
    return application, source, agents
