"""The server's settings, from the environment and the command line, read once at the start."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from scanflow.environment_variables import list_variables, read_settings
from scanflow.errors import UsageError
from scanflow.http.security import is_loopback_host
from scanflow.settings import Settings
from scanflow_server.sign_in_settings import SignInSettings

PORT = 46666


class ServerSettings(BaseModel):
    """Settings of one server, each read from a variable of the environment; an empty one counts as unset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: Settings = Field(default_factory=Settings)
    host: str = "127.0.0.1"
    """``SCANFLOW_SERVER_HOST``: the address to listen on. A client with a token may run programs as this user; beyond
    loopback it requires TLS."""

    port: int = Field(default=PORT, ge=0, le=65535)
    """``SCANFLOW_SERVER_PORT``: the port to listen on. 0: any free port; the log shows it."""

    token: SecretStr | None = None
    """``SCANFLOW_SERVER_TOKEN``: the token of the home. Unset: the existing one, else a random one."""

    public_url: str | None = None
    """``SCANFLOW_PUBLIC_URL``: the URL of this server for agents. Unset: the address it listens on."""

    behind_proxy: bool = False
    """``SCANFLOW_BEHIND_PROXY``: whether to allow plain HTTP beyond loopback, because only a proxy that terminates TLS
    (a gateway, a service mesh) can reach the server. Every request still needs a token."""

    lease: str | None = None
    """``SCANFLOW_SERVER_LEASE``: the lease that this server must hold to act, in the backend's terms:
    ``namespace/name`` on a cluster. Unset: it acts at once."""

    name: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}", min_length=1)
    """``SCANFLOW_SERVER_NAME``: the name of this server as holder of a lease; its pod's name on a cluster. Default:
    host name and process id."""

    tls_cert: Path | None = None
    """``SCANFLOW_TLS_CERT``: a file with the server's certificate and its chain, in PEM. Unset: plain HTTP, only on
    loopback."""

    tls_key: Path | None = None
    """``SCANFLOW_TLS_KEY``: the file with the certificate's private key, in PEM."""

    tls_ca: Path | None = None
    """``SCANFLOW_TLS_CA``: a file with the certificate authority, in PEM, if it is your own. Scanflow's clients use the
    same variable."""

    allowed_hosts: str = ""
    """``SCANFLOW_ALLOWED_HOSTS``: host names of the server besides its address and loopback's, separated by commas.
    Requests for any other are refused, against DNS rebinding."""

    team_folders: str = ""
    """``SCANFLOW_TEAM_FOLDERS``: folders of this server's machine, separated by colons, that applications sent with a
    team's token may name as theirs, if they do not run on this machine. Unset: none, so that no team can make the
    server hand out files (a token, a key) that only the server may read; such applications bring an image."""

    tracker_token: SecretStr | None = None
    """``SCANFLOW_TRACKER_TOKEN``: the token of the MLflow server at ``SCANFLOW_TRACKER_URI``, if that is this server's
    own (``python -m scanflow_server.mlflow_server --port``): it is then served below ``/mlflow``. Unset: a tracker with
    an address is not."""

    database_url: SecretStr | None = None
    """``SCANFLOW_DATABASE_URL``: the server's database, ``sqlite:////a/file.db`` or
    ``postgresql://user:password@host/database``. A database belongs to one home. Unset: a SQLite file inside it."""

    max_runs: int = Field(default_factory=lambda: max(4, 2 * (os.cpu_count() or 1)), ge=1)
    """``SCANFLOW_MAX_RUNS``: the most runs driven at once; more wait. Each takes a process of 60 MB. Default:
    twice the cores, but 4 at least."""

    max_streams: int = Field(default=256, ge=1)
    """``SCANFLOW_MAX_STREAMS``: the most streamed responses at once: events, logs, progress. Each agent with event
    triggers has one, and so has each command that watches. One token may have a quarter of them and one team half, so
    that none keeps the others out: raise it where a team has more than 100 agents. More are refused with 503, and
    clients retry."""

    max_requests: int = Field(default=64, ge=1)
    """``SCANFLOW_MAX_REQUESTS``: the most requests answered at once. One token has a quarter of them and one team half;
    more wait, and do not keep others waiting. Of one token 16 times as many wait as are answered in all: more are
    refused with 429, and clients repeat them. A thread for each that reads or writes the database, of which there are
    40."""

    max_team_mib: int = Field(default=10_240, ge=0)
    """``SCANFLOW_MAX_TEAM_MIB``: how much one team's events, samples to label and requested runs may take in the
    database, in MiB. 0: unlimited. What exceeds it is refused with 413 before any of it is stored; events and ended
    runs are deleted with age. The default is a hundred times what the events take that are kept by default."""

    keep_events: int = Field(default=200_000, ge=0)
    """``SCANFLOW_KEEP_EVENTS``: the most events kept, and as many intents that were not acted on. 0: unlimited. The
    default takes about 100 MB, and holds a day at two events per second."""

    keep_events_days: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """``SCANFLOW_KEEP_EVENTS_DAYS``: how long events are kept, in days, since this server recorded them. 0: forever. A
    month, so that the events before a service's last release are still there."""

    keep_ended_days: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """``SCANFLOW_KEEP_ENDED_DAYS``: how long ended changes of services, drives of runs and actions of agents are kept,
    in days. 0: forever. Runs themselves stay: only the server's own records of them are deleted. A month, as for
    events."""

    keep_keys_days: float = Field(default=7.0, ge=0, allow_inf_nan=False)
    """``SCANFLOW_KEEP_KEYS_DAYS``: how long used idempotency keys are kept, in days. 0: forever. A week: longer than
    clients retry, and longer than most machines are offline."""

    sign_in: SignInSettings | None = None
    """``SCANFLOW_OIDC_...``: the provider of OpenID Connect at which people sign in. Unset: they use tokens."""

    keep_audit_days: float = Field(default=365.0, ge=0, allow_inf_nan=False)
    """``SCANFLOW_KEEP_AUDIT_DAYS``: how long the audit log is kept, in days. 0: forever. A year: audits are yearly."""

    @classmethod
    def name_variables(cls) -> dict[str, str]:
        """Return the environment variable of each field but those that have variables of their own."""
        variables = list_variables(cls, "SCANFLOW_")
        variables |= {field: f"SCANFLOW_SERVER_{field.upper()}" for field in ("host", "lease", "name", "port", "token")}
        return {field: name for field, name in variables.items() if field not in {"library", "sign_in"}}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the settings from ``environ`` (default: this process' own)."""
        sign_in = SignInSettings.from_environment(os.environ if environ is None else environ)
        given = {"library": Settings.from_environment(environ), "sign_in": sign_in}
        return read_settings(cls, cls.name_variables(), environ, given=given)

    def check_exposure(self) -> None:
        """Refuse to listen beyond loopback without TLS."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("TLS needs a certificate and its key. Set both: SCANFLOW_TLS_CERT and SCANFLOW_TLS_KEY")
        for file in filter(None, (self.tls_cert, self.tls_key, self.tls_ca)):
            if not file.expanduser().is_file():
                raise UsageError(f"The file {str(file)!r} does not exist. Fix SCANFLOW_TLS_CERT or SCANFLOW_TLS_KEY.")
        if self.tls_cert is None and not self.behind_proxy and not is_loopback_host(self.host):
            raise UsageError(
                f"The server does not listen for other machines on {self.host!r} without TLS: tokens would be sent "
                "unencrypted. Set SCANFLOW_TLS_CERT and SCANFLOW_TLS_KEY to the files of a certificate and its key, "
                "and SCANFLOW_ALLOWED_HOSTS to its host names; or listen on this machine only: --host 127.0.0.1. If "
                "only a proxy that terminates TLS can reach it, set SCANFLOW_BEHIND_PROXY=1"
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
