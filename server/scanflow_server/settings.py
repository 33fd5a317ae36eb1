"""What the server can be told, from the environment and the command line, read once where it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from scanflow.errors import InvalidError, UsageError
from scanflow.http_security import is_loopback_host
from scanflow.settings import Settings

PORT = 46666


class ServerSettings(BaseModel):
    """Settings of one server, each read from a variable of the environment; an empty one counts as unset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: Settings = Field(default_factory=Settings)
    host: str = "127.0.0.1"
    """``SCANFLOW_SERVER_HOST``: where it listens. Whoever reaches it with a token may run programs as this user; beyond
    loopback it is only listened on with TLS."""

    port: int = Field(default=PORT, ge=0, le=65535)
    """``SCANFLOW_SERVER_PORT``. 0: any that is free; the log says which."""

    tls_cert: Path | None = None
    """``SCANFLOW_TLS_CERT``: a file with the server's certificate, and those it depends on, in PEM. Unset: plain HTTP,
    which is only served on loopback."""

    tls_key: Path | None = None
    """``SCANFLOW_TLS_KEY``: the file with the certificate's private key, in PEM."""

    allowed_hosts: str = ""
    """``SCANFLOW_ALLOWED_HOSTS``: names under which the server may be reached beside its address and loopback's,
    separated by commas. A request for any other is refused, as a page may send it by DNS rebinding."""

    database_url: SecretStr | None = None
    """``SCANFLOW_DATABASE_URL``: where what is wanted is kept, ``sqlite:////a/file.db`` or
    ``postgresql://user:password@host/database``. A database belongs to one home. Unset: a SQLite file inside it."""

    max_runs: int = Field(default_factory=lambda: max(4, 2 * (os.cpu_count() or 1)), ge=1)
    """``SCANFLOW_MAX_RUNS``: how many runs are driven at once; more of them wait. Each takes a process of 60 MB."""

    max_streams: int = Field(default=256, ge=1)
    """``SCANFLOW_MAX_STREAMS``: how many responses are streamed at once: events, logs, progress. Each agent that fires
    on events has one, and so has each command that watches. More are refused with 503, and clients try again."""

    keep_events: int = Field(default=200_000, ge=0)
    """``SCANFLOW_KEEP_EVENTS``: how many events are kept, and of what agents wanted as many on which nothing was done.
    0: however many. The default takes about 100 MB, and is a day of two events a second."""

    keep_events_days: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """``SCANFLOW_KEEP_EVENTS_DAYS``: how long events are kept, in days, counted from when this server listed them. 0:
    however old. A month, so that what a service did before its last release can still be looked up."""

    keep_ended_days: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """``SCANFLOW_KEEP_ENDED_DAYS``: how long it is remembered, in days, how a change of a service, a drive of a run, or
    an action of an agent went, from its end on. 0: for ever. Runs themselves stay: this is what the server alone knows
    of them. A month, as for events, which tell of the same."""

    keep_keys_days: float = Field(default=7.0, ge=0, allow_inf_nan=False)
    """``SCANFLOW_KEEP_KEYS_DAYS``: how long a used idempotency key is known, in days. 0: for ever. A week: longer than
    any client of ours tries again, and than most machines are away."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the settings from ``environ`` (default: this process' own)."""
        source = os.environ if environ is None else environ
        names = {field: field.upper() for field in cls.model_fields if field != "library"}
        names |= {"host": "SERVER_HOST", "port": "SERVER_PORT"}
        found = {field: text for field, name in names.items() if (text := source.get(f"SCANFLOW_{name}", ""))}
        try:
            return cls.model_validate({"library": Settings.from_environment(source), **found})
        except ValidationError as error:
            first = error.errors()[0]
            name = f"SCANFLOW_{names[str(first['loc'][0])]}"
            raise InvalidError(f"The environment variable {name} is not usable: {first['msg']}.") from error

    def check_exposure(self) -> None:
        """Refuse to be reached from other machines in the clear."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("TLS takes a certificate and its key. Set both: SCANFLOW_TLS_CERT and SCANFLOW_TLS_KEY")
        for file in filter(None, (self.tls_cert, self.tls_key)):
            if not file.expanduser().is_file():
                raise UsageError(f"There is no file {str(file)!r}. Name others: SCANFLOW_TLS_CERT, SCANFLOW_TLS_KEY")
        if self.tls_cert is None and not is_loopback_host(self.host):
            raise UsageError(
                f"The server is not opened to other machines on {self.host!r} without TLS: tokens would travel in the "
                "clear. Set SCANFLOW_TLS_CERT and SCANFLOW_TLS_KEY to the files of a certificate and its key, and "
                "SCANFLOW_ALLOWED_HOSTS to the names it is reached by; or keep it on this machine: --host 127.0.0.1"
            )

    @property
    def names(self) -> frozenset[str]:
        given = {one.strip().lower() for one in self.allowed_hosts.split(",")}
        return frozenset(given | {self.host.lower()}) - {""}

    @property
    def home(self) -> Path:
        return self.library.home.expanduser().absolute()

    @property
    def folder(self) -> Path:
        return self.home / "server"

    @property
    def database(self) -> str:
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.folder / 'scanflow.db'}"
