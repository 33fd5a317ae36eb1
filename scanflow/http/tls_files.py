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
