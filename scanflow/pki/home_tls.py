"""What a home's programs serve TLS with, and whom its clients trust: given files, else those of its own authority."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from scanflow.errors import UsageError
from scanflow.http.tls_files import TlsFiles
from scanflow.pki.authority import (
    HOST,
    REVOKED,
    CertificateAuthority,
    get_authority_file,
    open_authority,
    read_certificate_hosts,
)
from scanflow.settings import Settings

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
SERVER: Final = "server"
"""The name of the certificate that a home's server, services and agents serve with."""


def find_authority_file(home: Path | None = None) -> Path | None:
    """Return the file of an authority that is trusted beside the system's: that in ``SCANFLOW_TLS_CA``, else the home's
    own; None: neither is there. ``home``: None for that of the environment."""
    if named := os.environ.get("SCANFLOW_TLS_CA"):
        return Path(named)
    own = get_authority_file(home or Settings.from_environment().home)
    return own if own.is_file() else None


def find_client_certificate() -> tuple[Path, Path] | None:
    """Return the certificate that clients of services show, and its key: that in ``SCANFLOW_TLS_CLIENT_CERT``, with the
    key beside it, or in ``SCANFLOW_TLS_CLIENT_KEY``; None: there is none."""
    if not (named := os.environ.get("SCANFLOW_TLS_CLIENT_CERT")):
        return None
    certificate = Path(named).expanduser().absolute()
    key = os.environ.get("SCANFLOW_TLS_CLIENT_KEY")
    return certificate, Path(key).expanduser().absolute() if key else certificate.with_suffix(".key")


def find_revocations_file(home: Path, authority: Path) -> Path | None:
    """Return the list of the certificates that an authority has revoked: that in ``SCANFLOW_TLS_CRL``, else the one
    beside the home's own authority; None: it has none."""
    if named := os.environ.get("SCANFLOW_TLS_CRL"):
        return Path(named)
    own = get_authority_file(home)
    return own.with_name(REVOKED) if authority.resolve() == own.resolve() else None


def list_own_hosts() -> tuple[str, ...]:
    """Return the names and addresses by which this machine reaches itself."""
    name = socket.gethostname().lower()
    return (*LOCAL_HOSTS, *([name] if HOST.fullmatch(name) else []))


def prepare_tls(settings: Settings) -> TlsFiles | None:
    """Return what services and agents of a home serve TLS with; None: they serve without.

    Where no certificate is given, the home's own authority issues one, and is created for it.

    Raises:
        UsageError: a given certificate cannot be used on this machine.
    """
    if not settings.serves_tls:
        return None
    name = ""
    if settings.tls_cert is not None or settings.tls_key is not None:
        certificate, key = check_certificate_files(settings.tls_cert, settings.tls_key)
        public = get_public_name(os.environ)
        names = ["127.0.0.1", "localhost", *([public] if public else [])]
        name = choose_name(names, read_certificate_hosts(certificate), certificate)
    else:
        issued = open_authority(settings.home).ensure(SERVER, list_own_hosts())
        certificate, key = issued.certificate, issued.key
    authority = find_authority_file(settings.home)
    revoked = None if authority is None else find_revocations_file(settings.home, authority)
    return TlsFiles(
        certificate=str(certificate),
        key=str(key),
        name=name,
        authority="" if authority is None else str(authority.expanduser().absolute()),
        revoked="" if revoked is None else str(revoked.expanduser().absolute()),
    )


def renew_certificate(home: Path, files: TlsFiles) -> None:
    """Issue the home's own certificate again if it expires soon; whoever serves with it takes the new one.

    Raises:
        NotFoundError: the authority is gone.
    """
    authority = CertificateAuthority(home)
    if Path(files.certificate).parent == authority.file.parent / "issued":
        authority.ensure(SERVER, list_own_hosts())


def check_certificate_files(certificate: Path | None, key: Path | None) -> tuple[Path, Path]:
    """Return the absolute paths of a given certificate and its key.

    Raises:
        UsageError: one of them is missing.
    """
    files = [file.expanduser().absolute() for file in (certificate, key) if file is not None]
    if len(files) < 2 or not all(file.is_file() for file in files):
        raise UsageError("TLS needs a certificate and its key, in files. Set SCANFLOW_TLS_CERT and SCANFLOW_TLS_KEY")
    return files[0], files[1]


def choose_name(names: Sequence[str], hosts: Collection[str], certificate: Path) -> str:
    """Return the first of some names and addresses that a certificate, which is for ``hosts``, is for.

    Raises:
        UsageError: it is for none of them.
    """
    for name in names:
        wildcard = f"*.{name.partition('.')[2]}"
        if name in hosts or (not is_address(name) and wildcard in hosts):
            return name
    raise UsageError(
        f"The certificate {str(certificate)!r} is for {', '.join(hosts) or 'no host'}, and not for {names[0]}, where "
        "clients on this machine reach the server. Name it by one of those: SCANFLOW_PUBLIC_URL=https://NAME:PORT"
    )


def get_public_name(variables: Mapping[str, str]) -> str:
    """Return the host of a server's public address; empty: it has none."""
    return urlsplit(variables.get("SCANFLOW_PUBLIC_URL", "")).hostname or ""


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
