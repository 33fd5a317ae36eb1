"""Settings from environment variables, read once when a program starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from scanflow.environment_variables import list_variables, read_settings
from scanflow.http.home_token import read_home_token
from scanflow.http.security import is_loopback_host, parse_host_name


def _parse_options(value: Any) -> Any:
    """Read ``name=value,name=value``."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError("write name=value, separated by commas")
    return {name.strip(): text.strip() for name, _, text in pairs}


class Settings(BaseModel):
    """Settings of one process. Each field is read from ``SCANFLOW_<FIELD>``; an empty one counts as unset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Field(default_factory=lambda: Path.home() / ".scanflow")
    """The folder with runs, their logs, cached environments and the embedded tracker. Default: ``~/.scanflow``."""

    tracker_uri: str | None = None
    """An MLflow tracking server or database, in MLflow's notation. Unset: SQLite inside ``home``."""

    model_sources: str = ""
    """Places outside of the tracker's own artifact store from which registered models may be loaded, separated by
    commas: ``s3://models/,file:///srv/models``. A model is code. Unset: none."""

    url: str | None = None
    """The server that the command line uses. Unset: the one that runs in ``home``, if any."""

    token: SecretStr | None = None
    """The token for that server. Unset: the token of ``home``, which is sent to this machine only."""

    tls: bool = False
    """Whether what runs in ``home``, its server, services and agents, serves over TLS, with a certificate of the home's
    own authority. ``scanflow up --tls`` says the same."""

    tls_cert: Path | None = None
    """A certificate and its chain, in PEM, to serve over TLS with in its place."""

    tls_key: Path | None = None
    """The private key of that certificate, in PEM."""

    backend: str | None = None
    """``local``, ``memory``, or one that a package adds. Unset: the application's, else ``local``."""

    backend_options: Annotated[Mapping[str, str], BeforeValidator(_parse_options)] = Field(default_factory=dict)
    """Options of the backend, in addition to its own variables: ``serving=seldon,kubeconfig=/home/me/kubeconfig``."""

    slots: int | None = Field(default=None, ge=1)
    """Number of cores that steps may use at once. Unset: the cores this process may use."""

    max_fan_out: int = Field(default=10_000, ge=1)
    """The widest fan-out accepted at run time; a longer list fails its step."""

    @property
    def serves_tls(self) -> bool:
        return self.tls or self.tls_cert is not None or self.tls_key is not None

    def find_token(self, url: str) -> str | None:
        """Return the token to send to the server at ``url``; None: there is none that it could be sent."""
        if self.token is not None:
            return self.token.get_secret_value()
        host = parse_host_name(url.partition("://")[2].partition("/")[0].encode("ascii", "replace"))
        return read_home_token(self.home) if is_loopback_host(host) else None

    @classmethod
    def name_variables(cls) -> dict[str, str]:
        """Return the environment variable of each field."""
        return list_variables(cls, "SCANFLOW_")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the settings from ``environ`` (default: this process' own)."""
        return read_settings(cls, cls.name_variables(), environ)
