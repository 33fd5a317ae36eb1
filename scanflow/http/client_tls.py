"""TLS of a program that calls another over HTTP: whom it trusts, and the certificate that it shows."""

from __future__ import annotations

import ssl
from pathlib import Path

from scanflow.errors import UsageError


def add_client_files(context: ssl.SSLContext, authority: str, certificate: str, key: str) -> None:
    """Have a client trust an authority beside those of the context, and show a certificate; empty: none.

    Raises:
        UsageError: a file cannot be used.
    """
    try:
        if authority:
            context.load_verify_locations(Path(authority).expanduser())
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"The file {authority!r} of certificates cannot be used: {error}. Name another file: SCANFLOW_TLS_CA"
        ) from error
    try:
        if certificate:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"The client certificate {certificate!r} and its key {key!r} cannot be used: {error}. Name others: "
            "SCANFLOW_TLS_CLIENT_CERT and SCANFLOW_TLS_CLIENT_KEY"
        ) from error
