"""Where the server of ``scanflow up`` listens, by which name it is reached, and its certificate."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scanflow.errors import UsageError
from scanflow.http.security import is_loopback_host
from scanflow.pki import (
    LOCAL_HOSTS,
    SERVER,
    check_certificate_files,
    choose_name,
    get_authority_file,
    get_public_name,
    is_address,
    open_authority,
    read_certificate_hosts,
)

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    host: str = LOOPBACK
    """The address to listen on."""

    name: str = LOOPBACK
    """How clients on this machine reach it."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    """The home's own authority, if that issued the certificate."""

    allowed_hosts: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """The variables for the server."""
        files = {"SCANFLOW_TLS_CERT": self.certificate, "SCANFLOW_TLS_KEY": self.key}
        return {
            "SCANFLOW_SERVER_HOST": self.host,
            **{name: str(file) for name, file in files.items() if file is not None},
            **({"SCANFLOW_ALLOWED_HOSTS": ",".join(self.allowed_hosts)} if self.allowed_hosts else {}),
        }

    def format_url(self, port: int) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{'http' if self.certificate is None else 'https'}://{name}:{port}"


def choose_server_address(home: Path, *, tls: bool, environ: Mapping[str, str] | None = None) -> ServerAddress:
    """Return where the server listens by its variables, with a certificate of the home's authority where ``tls`` asks
    for one and none is given.

    Raises:
        UsageError: other machines would reach it without TLS, or a certificate is not for the address.
    """
    variables = os.environ if environ is None else environ
    host = variables.get("SCANFLOW_SERVER_HOST") or LOOPBACK
    files = [variables.get(name) or "" for name in ("SCANFLOW_TLS_CERT", "SCANFLOW_TLS_KEY")]
    names = _list_names(variables)
    local = LOOPBACK if is_loopback_host(host) or _is_any(host) else host
    if any(files):
        certificate, key = check_certificate_files(*(Path(file) if file else None for file in files))
        public = get_public_name(variables)
        local = choose_name([local, *([public] if public else [])], read_certificate_hosts(certificate), certificate)
        return ServerAddress(host=host, name=local, certificate=certificate, key=key, allowed_hosts=names)
    if tls:
        return _issue_own(home, host, local, names)
    if not is_loopback_host(host) and not variables.get("SCANFLOW_BEHIND_PROXY"):
        raise UsageError(
            f"SCANFLOW_SERVER_HOST is {host!r}, which other machines reach: tokens would be sent unencrypted. Use TLS: "
            "scanflow up --tls"
        )
    return ServerAddress(host=host, name=local, allowed_hosts=names)


def _issue_own(home: Path, host: str, local: str, names: tuple[str, ...]) -> ServerAddress:
    authority = open_authority(home)
    reached = [] if is_loopback_host(host) else [*([] if _is_any(host) else [host]), socket.gethostname().lower()]
    hosts = tuple(dict.fromkeys([*LOCAL_HOSTS, *reached, *names]))
    issued = authority.ensure(SERVER, hosts)
    allowed = tuple(name for name in hosts if name not in LOCAL_HOSTS)
    file = get_authority_file(home)
    return ServerAddress(
        host=host, name=local, certificate=issued.certificate, key=issued.key, authority=file, allowed_hosts=allowed
    )


def _list_names(variables: Mapping[str, str]) -> tuple[str, ...]:
    names = [name.strip().lower() for name in variables.get("SCANFLOW_ALLOWED_HOSTS", "").split(",")]
    public = get_public_name(variables)
    return tuple(dict.fromkeys(name for name in (*names, public) if name and name != "*"))


def _is_any(host: str) -> bool:
    return is_address(host) and ipaddress.ip_address(host).is_unspecified
