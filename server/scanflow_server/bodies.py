"""What is sent to the server and what it sends back, where no record of the library says it already."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Header, Query
from fastapi import Path as InPath
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from scanflow.agent.records import AgentView, SensorReport
from scanflow.app.application import Application
from scanflow.app.files import load_json
from scanflow.backends.service_change import Sizing
from scanflow.errors import InvalidError
from scanflow_server.access import TEAM_KEYS
from scanflow_server.store.keys import OWN

_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_DEEPEST = 100


def check_text(value: Any, depth: int = 0) -> Any:
    """Refuse values that JSON or the database cannot hold: a lone surrogate, an infinite number, too deep a tree."""
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidError("A text holds the character 0. Remove it.")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidError(f"A text holds half of a character at {error.start}. Write it whole.") from None
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidError(f"{value!r} is no number that JSON has. Write null.")
    elif isinstance(value, Mapping | list | tuple):
        if depth > _DEEPEST:
            raise InvalidError(f"It is nested deeper than {_DEEPEST} levels. Look for a bracket too many.")
        for inner in value:
            check_text(inner, depth + 1)
            if isinstance(value, Mapping):
                check_text(value[inner], depth + 1)
    return value


Document = Annotated[dict[str, Any], AfterValidator(check_text)]

Text = Annotated[str, AfterValidator(check_text), Field(max_length=4096)]


def _refuse_reserved_key(key: str | None) -> str | None:
    for prefix in (OWN, TEAM_KEYS):
        if key is not None and key.startswith(prefix):
            raise ValueError(f"keys that begin with {prefix!r} are the server's own: begin yours otherwise")
    return key


Key = Annotated[
    str | None,
    AfterValidator(_refuse_reserved_key),
    Header(alias="Idempotency-Key", min_length=1, max_length=200, pattern=r"^[ -~]+$"),
]
"""A wish's own name: sent again with the same name, it is not acted on again."""

Name = Annotated[str, InPath(pattern=_LABEL, max_length=63)]
RunName = Annotated[str, InPath(pattern=r"^(@latest(-[0-9]{1,6})?|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$", max_length=100)]


Named = Annotated[str | None, Query(max_length=128, pattern=r"^[ -~]+$")]
"""By what a list is filtered. None: it is not."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class AppBody(_Body):
    """An application."""

    application: Document
    """As ``scanflow.app.files.dump_json`` writes it: ``schema``, ``name``, ``workflows`` and so on."""

    source: Text | None = None


class RunBody(AppBody):
    """A run that is wanted."""

    workflow: Text | None = None
    """Which of its workflows; null: the only batch workflow."""

    parameters: Document = Field(default_factory=dict)
    """Changes: ``epochs`` for every step that has it, ``train.epochs`` for one."""


class ResumeBody(_Body):
    """What a run goes on with; nothing: what its file says now."""

    application: Document | None = None
    source: Text | None = None


class SpinBody(ResumeBody):
    """A step that is to be run again."""

    step: Text
    parameters: Document = Field(default_factory=dict)


class DeployBody(AppBody):
    """A service that is wanted."""

    workflow: Text | None = None
    sizing: Sizing | None = None
    port: int | None = Field(default=None, ge=1, le=65535)


class Begun(_Body):
    """An operation that was begun."""

    operation: str


class Operation(_Body):
    """A change of a service on its way."""

    id: str
    kind: str
    service: str
    state: Literal["running", "succeeded", "failed"]
    progress: list[str]
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None


class ApplicationView(_Body):
    """An application as it is kept."""

    name: str
    team: str
    environment: str
    application: dict[str, Any]
    source: str | None
    revision: int
    updated: float


class HereBody(_Body):
    """Where an agent says that it is."""

    url: Annotated[str, AfterValidator(check_text), Field(pattern=r"^https?://[!-~]+$", max_length=500)]
    pid: int = Field(ge=1, le=2**31 - 1)
    sensors: list[SensorReport] | None = Field(default=None, max_length=1000)


class TrackerStatus(_Body):
    """The tracker, as far as it can be known without asking it for anything."""

    url: str | None
    ready: bool


class Status(_Body):
    """The server, and what there is."""

    version: str
    home: str
    database: str
    tracker: TrackerStatus
    started: float
    pid: int
    agents: list[AgentView]
    counts: dict[str, int]


def read_application(document: Mapping[str, Any], source: str | None = None) -> Application:
    """Parse an application and make its folder absolute."""
    app = load_json(json.dumps(document))
    folder = Path(app.app_dir)
    if not folder.is_absolute():
        if source is None or not Path(source).is_absolute():
            raise InvalidError(
                f"The application's app_dir {str(app.app_dir)!r} is relative, and the server has no folder that it "
                "could start from. Send an absolute app_dir, or the absolute path of its file as 'source'."
            )
        app = app.replace(app_dir=str(Path(source).parent / folder))
    return app


def check_name(name: str, app: Application) -> None:
    """Refuse an application sent to another name than its own."""
    if app.name != name:
        raise InvalidError(f"The application is named {app.name!r}, and was sent as {name!r}. Send it to its own name.")
