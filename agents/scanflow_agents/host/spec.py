"""What an agent's folder says to its host: ``agent.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.files import load_json
from scanflow.errors import InvalidError, NotFoundError, did_you_mean


class AgentSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    application: dict[str, Any]
    """As ``scanflow.app.files`` writes it."""

    source: str | None = None
    """The file that the application came from; its folder is where the agent's own files are looked for first."""

    agent: str
    server: str | None = None
    """``http://127.0.0.1:46666``. None: nobody is told where the agent is, and what it wants waits."""

    store: str | None = None
    """The server's database, a SQLite file of this machine. None: it has another."""

    token: str | None = None
    port: int = Field(default=0, ge=0, le=65535)
    """Where it listens. 0: any."""

    host: str = "127.0.0.1"
    """The address that it listens on. Whoever hosts it elsewhere sees to who can reach it there."""

    url: str | None = None
    """Where others find it. None: at the address that it listens on."""

    home: str
    """The home folder, where the embedded tracker is."""

    tracker_uri: str | None = None
    sensor_limit_s: float = Field(default=60.0, gt=0)
    """After so long a firing is given up."""

    grace_s: float = Field(default=60.0, gt=0)
    """How late a firing may begin; later it counts as missed."""

    misfire: str = Field(default="run_once", pattern="^(run_once|skip)$")
    """What is done about what fell due while the agent was down: fire once for all of it, or only count it."""

    beat_s: float = Field(default=5.0, gt=0)
    """How often the server is told where the agent is."""

    def parse(self) -> tuple[Application, Agent]:
        app = load_json(json.dumps(self.application))
        names = [agent.name for agent in app.agents]
        if self.agent not in names:
            raise NotFoundError(
                f"The application {app.name!r} has no agent {self.agent!r}.{did_you_mean(self.agent, names)}"
            )
        return app, app.agents[names.index(self.agent)]


def read_spec(folder: Path) -> AgentSpec:
    path = folder / "agent.json"
    try:
        return AgentSpec.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no {str(path)!r}. The server writes it: scanflow up") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InvalidError(f"{str(path)!r} cannot be used: {where}: {first['msg']}.") from error
