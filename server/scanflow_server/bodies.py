"""The bodies of requests and responses, as far as they are not records of the library."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Header, Query
from fastapi import Path as InPath
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from scanflow.agent.agent_records import AgentView, SensorReport
from scanflow.app.application import Application
from scanflow.app.application_files import load_document
from scanflow.app.parameters import refuse_mask
from scanflow.backends.service_change import Sizing
from scanflow.errors import InvalidError
from scanflow.text.times import LAST_TIME
from scanflow_server.request_problems import LABEL
from scanflow_server.store.keys import OWN_PREFIX
from scanflow_server.token_roles import TEAM_KEYS

_MAX_DEPTH = 100


def check_text(value: Any, depth: int = 0) -> Any:
    """Refuse values that JSON or the database cannot hold: a lone surrogate, an infinite number, too deep a tree."""
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidError("A string contains the null character. Remove it.")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidError(
                f"A string contains a lone surrogate at position {error.start}. Write the whole character."
            ) from None
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidError(f"{value!r} is not a number in JSON. Write null.")
    elif isinstance(value, Mapping | list | tuple):
        if depth > _MAX_DEPTH:
            raise InvalidError(f"The value is nested deeper than {_MAX_DEPTH} levels. Check for an extra bracket.")
        for inner in value:
            check_text(inner, depth + 1)
            if isinstance(value, Mapping):
                check_text(value[inner], depth + 1)
    return value


def check_time(what: str, at: float | None) -> None:
    """Refuse a time that has no date."""
    if at is not None and not 0 <= at <= LAST_TIME:
        raise InvalidError(f"{what} is {at!r}, which is no time from 1970 to 9999. Send seconds since the epoch.")


def check_line(what: str, text: str) -> None:
    """Refuse text that would not be shown on one line as it is."""
    if not text.isprintable():
        raise InvalidError(f"{what} {text!r:.60} contains a line break or a control character. Remove it.")


def _check_sensor_times(sensors: list[SensorReport] | None) -> list[SensorReport] | None:
    for sensor in sensors or ():
        check_time(f"The last firing of the sensor {sensor.name!r:.60}", sensor.last)
        check_time(f"The next firing of the sensor {sensor.name!r:.60}", sensor.next)
    return sensors


Document = Annotated[dict[str, Any], AfterValidator(check_text), AfterValidator(refuse_mask)]

Text = Annotated[str, AfterValidator(check_text), Field(max_length=4096)]

Digests = Annotated[dict[str, Annotated[str, Field(max_length=128)]], AfterValidator(check_text)]


def _refuse_reserved_key(key: str | None) -> str | None:
    for prefix in (OWN_PREFIX, TEAM_KEYS):
        if key is not None and key.startswith(prefix):
            raise ValueError(f"keys with the prefix {prefix!r} are reserved for the server: use another prefix")
    return key


Key = Annotated[
    str | None,
    AfterValidator(_refuse_reserved_key),
    Header(alias="Idempotency-Key", min_length=1, max_length=200, pattern=r"^[ -~]+$"),
]
"""An idempotency key: a repeated request with the same key has no further effect."""

Name = Annotated[str, InPath(pattern=LABEL, max_length=63)]
TokenName = Annotated[str, InPath(pattern=r"^[!-.0-~]+$", max_length=128)]
"""The name of a token: a label, or a person's with a number."""

RunName = Annotated[str, InPath(pattern=r"^(@latest(-[0-9]{1,6})?|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$", max_length=100)]


Named = Annotated[str | None, Query(max_length=128, pattern=r"^[ -~]+$")]
"""A filter of a list. None: no filter."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class AppBody(_Body):
    """An application."""

    application: Document
    """As ``scanflow.app.application_files.dump_json`` writes it: ``schema``, ``name``, ``workflows`` and so on."""

    source: Text | None = None


class RunBody(AppBody):
    """A requested run."""

    workflow: Text | None = None
    """The name of the workflow; null: the only batch workflow."""

    parameters: Document = Field(default_factory=dict)
    """Parameters to set: ``epochs`` for every step that has it, ``train.epochs`` for one step."""

    functions: Digests = Field(default_factory=dict)
    """A digest of each step's function: when the run is resumed, steps whose function was changed are named."""

    refresh_cache: bool = False
    """Run cached steps although their outputs are in the cache."""


class ResumeBody(_Body):
    """The application with which a run continues; empty: the one that its file defines now."""

    application: Document | None = None
    source: Text | None = None
    functions: Digests = Field(default_factory=dict)
    """A digest of each step's function."""


class SpinBody(_Body):
    """A step to run again, with an application as in :class:`ResumeBody`."""

    application: Document | None = None
    source: Text | None = None
    step: Text
    parameters: Document = Field(default_factory=dict)
    texts: Annotated[dict[str, str], AfterValidator(check_text), AfterValidator(refuse_mask)] = Field(
        default_factory=dict
    )
    """Parameters given as text: each is of the type of its present value, else JSON where it is JSON."""


class DeployBody(AppBody):
    """A requested service."""

    workflow: Text | None = None
    sizing: Sizing | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    is_copy: bool = False
    """Whether it is served for a while beside the application: that stays stored as it is."""


class OperationAccepted(_Body):
    """A started operation."""

    operation: str


class Operation(_Body):
    """A change of a service in progress."""

    id: str
    kind: str
    service: str
    state: Literal["running", "succeeded", "failed"]
    progress: list[str]
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None


class ApplicationView(_Body):
    """A stored application."""

    name: str
    team: str
    environment: str
    application: dict[str, Any]
    source: str | None
    revision: int
    updated: float


class HeartbeatBody(_Body):
    """The address that an agent reports."""

    url: Annotated[str, AfterValidator(check_text), Field(pattern=r"^https?://[!-~]+$", max_length=500)]
    pid: int = Field(ge=1, le=2**31 - 1)
    sensors: Annotated[list[SensorReport] | None, Field(max_length=1000), AfterValidator(_check_sensor_times)] = None


class TrackerStatus(_Body):
    """The tracker, described without a request to it."""

    proxied: bool = False
    """Whether it is reached through this server, with its tokens."""

    url: str | None
    ready: bool


class Status(_Body):
    """The server and its resources."""

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
    app = load_document(document)
    folder = Path(app.app_dir)
    if not folder.is_absolute():
        if source is None or not Path(source).is_absolute():
            raise InvalidError(
                f"The application's app_dir {str(app.app_dir)!r} is relative, and the server has no base folder for "
                "it. Send an absolute app_dir, or the absolute path of its file as 'source'."
            )
        app = app.replace(app_dir=str(Path(source).parent / folder))
    return app


def check_name(name: str, app: Application) -> None:
    """Refuse an application sent under a name other than its own."""
    if app.name != name:
        raise InvalidError(
            f"The application is named {app.name!r}, but was sent under the name {name!r}. Use its own name."
        )
