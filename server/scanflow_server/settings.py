"""The server's settings, from the environment and the command line, read once at the start."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from scanflow.environment_variables import read_settings, variables_of
from scanflow.errors import UsageError
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

    token: SecretStr | None = None
    """``SCANFLOW_SERVER_TOKEN``: becomes the token of the home. Unset: the one that is there, else a random one."""

    public_url: str | None = None
    """``SCANFLOW_PUBLIC_URL``: where agents find this server. Unset: where it listens."""

    behind_proxy: bool = False
    """``SCANFLOW_BEHIND_PROXY``: whether plain HTTP may be listened on beyond loopback, since what is in front of it (a
    gateway, a service mesh) ends TLS and is all that reaches it. Every request needs a token all the same."""

    lease: str | None = None
    """``SCANFLOW_SERVER_LEASE``: what this server must hold to act, as its backend names it: ``namespace/name`` on a
    cluster. Until then it stands by. Unset: it acts at once."""

    name: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}", min_length=1)
    """``SCANFLOW_SERVER_NAME``: what this server is called where it holds a lease; its pod's name on a cluster. Unset:
    its machine and process."""

    tls_cert: Path | None = None
    """``SCANFLOW_TLS_CERT``: a file with the server's certificate, and those it depends on, in PEM. Unset: plain HTTP,
    which is only served on loopback."""

    tls_key: Path | None = None
    """``SCANFLOW_TLS_KEY``: the file with the certificate's private key, in PEM."""

    tls_ca: Path | None = None
    """``SCANFLOW_TLS_CA``: a file with the authority that signed the certificate, in PEM, where that is your own.
    Clients of ours take it from the same variable."""

    allowed_hosts: str = ""
    """``SCANFLOW_ALLOWED_HOSTS``: names under which the server may be reached beside its address and loopback's,
    separated by commas. A request for any other is refused, as a page may send it by DNS rebinding."""

    team_folders: str = ""
    """``SCANFLOW_TEAM_FOLDERS``: folders of this server's machine, separated by colons, that applications sent with a
    team's token may name as theirs, where what they run is not on this machine. Unset: none, so that no team has the
    server hand it files (a token, a key) that only the server may read; such applications bring an image."""

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
        variables = variables_of(cls, "SCANFLOW_")
        variables |= {field: f"SCANFLOW_SERVER_{field.upper()}" for field in ("host", "lease", "name", "port", "token")}
        return read_settings(cls, variables, environ, given={"library": Settings.from_environment(environ)})

    def check_exposure(self) -> None:
        """Refuse to listen beyond loopback without TLS."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("TLS takes a certificate and its key. Set both: SCANFLOW_TLS_CERT and SCANFLOW_TLS_KEY")
        for file in filter(None, (self.tls_cert, self.tls_key, self.tls_ca)):
            if not file.expanduser().is_file():
                raise UsageError(f"There is no file {str(file)!r}. Name others: SCANFLOW_TLS_CERT, SCANFLOW_TLS_KEY")
        if self.tls_cert is None and not self.behind_proxy and not is_loopback_host(self.host):
            raise UsageError(
                f"The server is not opened to other machines on {self.host!r} without TLS: tokens would travel in the "
                "clear. Set SCANFLOW_TLS_CERT and SCANFLOW_TLS_KEY to the files of a certificate and its key, and "
                "SCANFLOW_ALLOWED_HOSTS to the names it is reached by; or keep it on this machine: --host 127.0.0.1. "
                "Where only a proxy that ends TLS reaches it, say so: SCANFLOW_BEHIND_PROXY=1"
            )

    @property
    def names(self) -> frozenset[str]:
        names = {name.strip().lower() for name in self.allowed_hosts.split(",")}
        return frozenset(names | {self.host.lower()}) - {""}

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
