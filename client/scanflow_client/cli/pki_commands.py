"""``scanflow pki``: the home's certificate authority."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from scanflow_client.cli.command_help import DocumentedCommand
from scanflow_client.cli.command_options import PLAIN_HELP, JsonOption, load_settings
from scanflow_client.cli.command_output import respond

if TYPE_CHECKING:
    from scanflow.pki import CertificateAuthority

pki = typer.Typer(help="Issue and revoke certificates of the home's own authority.", **PLAIN_HELP)
NameArgument = Annotated[str, Argument(metavar="NAME", help="The common name (CN): letters, digits, - and .")]


@pki.command("init", cls=DocumentedCommand)
def init_authority(
    name: Annotated[
        str | None, Argument(metavar="[NAME]", help="The authority's name. Default: this machine's.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create the authority. scanflow up --tls does so, too.

    Examples:
        scanflow pki init
        scanflow pki init scanflow.example.com
    """
    authority = _open_authority()
    authority.create(name or f"scanflow.{socket.gethostname()}")
    respond(
        {"authority": str(authority.file)},
        as_json,
        lambda: [
            f"Created an authority: {authority.file}",
            "Clients elsewhere need this file: SCANFLOW_TLS_CA. Issue a certificate: scanflow pki issue NAME",
        ],
    )


@pki.command("issue", cls=DocumentedCommand)
def issue_certificate(
    name: NameArgument,
    host: Annotated[
        list[str] | None, Option("--host", metavar="HOST", help="A server's name or address. Repeatable.")
    ] = None,
    days: Annotated[int, Option("--days", min=1, max=3650, help="How long it is valid.")] = 397,
    as_json: JsonOption = False,
) -> None:
    """Issue a certificate and its key for a client; with --host for a server, too.

    Examples:
        scanflow pki issue ann
        scanflow pki issue server --host server.example.com --days 90
    """
    issued = _open_authority().issue(name, host or [], days=days)
    respond(
        issued,
        as_json,
        lambda: [
            f"Issued a certificate for {name}, valid until {issued.expires:%Y-%m-%d}: {issued.certificate}",
            f"Its key: {issued.key}",
        ],
    )


@pki.command("revoke", cls=DocumentedCommand)
def revoke_certificate(name: NameArgument, as_json: JsonOption = False) -> None:
    """Revoke the certificate of a name.

    Examples:
        scanflow pki revoke ann
    """
    revoked = _open_authority().revoke(name)
    respond(revoked, as_json, lambda: [f"Revoked: {name}, serial {revoked.serial}"])


@pki.command("list", cls=DocumentedCommand)
def list_certificates(as_json: JsonOption = False) -> None:
    """List the certificates that the authority issued.

    Examples:
        scanflow pki list
    """
    from scanflow_client.formatting.certificate_text import format_certificates

    issued = _open_authority().list_issued()
    respond(issued, as_json, lambda: [format_certificates(issued)])


def _open_authority() -> CertificateAuthority:
    from scanflow.pki import CertificateAuthority

    return CertificateAuthority(load_settings().home)
