"""The specification of an agent for its host: ``agent.json`` in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.application_files import load_json
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.http.tls_files import TlsFiles


class AgentSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    application: dict[str, Any]
    """The document of ``scanflow.app.application_files``."""

    source: str | None = None
    """The application's file; the agent's own files are looked up in its folder first."""

    agent: str
    server: str | None = None
    """``http://127.0.0.1:46666``. None: the agent sends no heartbeats, and its intents wait."""

    store: str | None = None
    """The server's database, if it is a SQLite file of this machine."""

    token: str | None = None
    """Its own token for the server."""

    peer_token: str | None = None
    """The token of the agents of its application among themselves. None: the same as ``token``."""

    port: int = Field(default=0, ge=0, le=65535)
    """The port that it listens on. 0: any."""

    host: str = "127.0.0.1"
    """The address that it listens on. Access to another address must be restricted by other means."""

    url: str | None = None
    """Its public URL. None: the address that it listens on."""

    tls: TlsFiles | None = None
    """What it serves TLS with. None: it serves without."""

    home: str
    """The home folder, where the embedded tracker is."""

    tracker_uri: str | None = None
    sensor_limit_s: float = Field(default=60.0, gt=0)
    """The timeout of a firing."""

    heartbeat_s: float = Field(default=5.0, gt=0)
    """The least time between two heartbeats, while nobody looks at the agent on the server's pages."""

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
