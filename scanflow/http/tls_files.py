"""The files that a program serves TLS with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of files in PEM."""

    certificate: str
    """The certificate, and its chain."""

    key: str
    name: str = ""
    """What clients on this machine call the program by, as the certificate is for it; empty: its address."""

    authority: str = ""
    """The authority whose client certificates are accepted; empty: none."""

    revoked: str = ""
    """The authority's list of revoked certificates; empty: it has none."""

    gateway: str = ""
    """The common name of the certificate with which a gateway calls, which ends clients' TLS and passes their
    certificates on in the header ``X-Forwarded-Tls-Client-Cert``; empty: nobody's header is believed."""
