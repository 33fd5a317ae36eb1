"""Which clients may send requests, by their certificates: decided for each request, so that a revocation holds for
connections that are open, too."""

from __future__ import annotations

import base64
import logging
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from cryptography import x509

FORWARDED: Final = "x-forwarded-tls-client-cert"
"""The header in which a gateway passes a client's certificate on."""

CHECK_S: Final = 2.0
"""How often files of certificates are looked at, in seconds."""

_log = logging.getLogger(__name__)
_HOW: Final = "Get one, scanflow pki issue NAME, and name its file: SCANFLOW_TLS_CLIENT_CERT"
_LEAD: Final = "This service answers clients by their certificates"


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """A client's certificate, whose chain TLS has verified."""

    name: str | None
    """The common name of its subject; None: it has none, or several."""

    serial: int
    expires: float
    """In seconds since 1970."""

    @classmethod
    def from_ssl(cls, certificate: Mapping[str, Any] | None) -> PeerCertificate | None:
        """Read what :meth:`ssl.SSLObject.getpeercert` returns; None: the client has shown none."""
        if not certificate:
            return None
        names = [value for part in certificate["subject"] for kind, value in part if kind == "commonName"]
        return cls(
            names[0] if len(names) == 1 else None,
            int(certificate["serialNumber"], 16),
            ssl.cert_time_to_seconds(certificate["notAfter"]),
        )

    @classmethod
    def from_pem(cls, text: bytes) -> PeerCertificate:
        """Read a certificate in PEM."""
        from cryptography import x509

        return cls.from_x509(x509.load_pem_x509_certificate(text))

    @classmethod
    def from_x509(cls, certificate: x509.Certificate) -> PeerCertificate:
        from cryptography.x509.oid import NameOID

        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return cls(
            str(names[0].value) if len(names) == 1 else None,
            certificate.serial_number,
            certificate.not_valid_after_utc.timestamp(),
        )


def read_forwarded(values: Sequence[str], authorities: Sequence[x509.Certificate]) -> PeerCertificate | None:
    """Return the client's certificate that a gateway passes on; None: there is not exactly one, or of no authority.

    Args:
        values: The values of the header: the PEM's Base64 without lines, as Traefik's ``passTLSClientCert`` writes it;
            with commas between the certificates of a chain, the client's first.
        authorities: Who may have issued it: the gateway has verified the chain, and it is verified again.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    if len(values) != 1:
        return None
    try:
        certificate = x509.load_der_x509_certificate(
            base64.b64decode(unquote(values[0]).partition(",")[0], validate=True)
        )
    except ValueError:
        return None
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return PeerCertificate.from_x509(certificate)
    return None


@dataclass(frozen=True, slots=True)
class RevocationList:
    serials: frozenset[int] = frozenset()
    expires: float = float("inf")
    """When the authority's next list is due, in seconds since 1970."""

    problem: str | None = None
    """Why it cannot be used: then nobody is let in."""


@dataclass(frozen=True, slots=True)
class ClientRefusal:
    status: int
    """403, or 503 where the client is not at fault."""

    detail: str


def refuse_client(
    peer: PeerCertificate | None, clients: Collection[str], revoked: RevocationList, now: float
) -> ClientRefusal | None:
    """Return why a client is refused; None: it is let in.

    Args:
        peer: Its certificate; None: it has shown none.
        clients: The subjects that are let in, ``CN=NAME``.
        revoked: The authority's list.
        now: Seconds since 1970.
    """
    if peer is None:
        return ClientRefusal(403, f"{_LEAD}, and this connection has shown none. {_HOW}")
    if f"CN={peer.name}" not in clients:
        name = "without a single CN" if peer.name is None else f"CN={peer.name}"
        return ClientRefusal(403, f"{_LEAD}, and {name[:80]} is not one of them. See: Serving.clients")
    if revoked.problem is not None:
        return ClientRefusal(503, f"{_LEAD}, and its list of revoked ones cannot be used: {revoked.problem}")
    if now >= revoked.expires:
        return ClientRefusal(503, f"{_LEAD}, and its list of revoked ones has expired. Have the authority write one.")
    if peer.serial in revoked.serials:
        return ClientRefusal(403, f"The certificate CN={peer.name} is revoked. Get another: scanflow pki issue NAME")
    if now >= peer.expires:
        return ClientRefusal(403, f"The certificate CN={peer.name} has expired. Get another: scanflow pki issue NAME")
    return None


def read_revocations(file: Path, authority: Path) -> RevocationList:
    """Read the list of revoked certificates of an authority, RFC 5280's in PEM.

    Where it cannot be read, or another has signed it, the list says so.
    """
    from cryptography import x509

    try:
        revocations = x509.load_pem_x509_crl(file.read_bytes())
        authorities = x509.load_pem_x509_certificates(authority.read_bytes())
    except OSError as error:  # its text names the file, which is none of the client's business
        _log.warning("The list of revoked certificates cannot be used: %s", error)
        return RevocationList(problem=f"{error.strerror}.")
    except ValueError as error:
        _log.warning("The list of revoked certificates %s cannot be used: %s", file, error)
        return RevocationList(problem="it is not PEM, or is damaged.")
    if not any(revocations.is_signature_valid(signer.public_key()) for signer in authorities):  # type: ignore[arg-type]
        return RevocationList(problem="it is not signed by the authority of the clients.")
    expires = revocations.next_update_utc
    return RevocationList(
        frozenset(entry.serial_number for entry in revocations),
        float("inf") if expires is None else expires.timestamp(),
    )


class Revocations:
    """The list in a file, read again when the file has changed."""

    def __init__(self, file: Path | None, authority: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``file``: None if the authority has no list."""
        self._file, self._authority, self._monotonic = file, authority, monotonic
        self._list = RevocationList()
        self._stamp: tuple[int, int, int] | None = None
        self._checked = float("-inf")

    def read(self) -> RevocationList:
        """Return the list, at most :data:`CHECK_S` old."""
        now = self._monotonic()
        if self._file is None or now - self._checked < CHECK_S:
            return self._list
        self._checked = now
        stamp = read_stamp(self._file)
        if stamp is None or stamp != self._stamp:
            self._stamp, self._list = stamp, read_revocations(self._file, self._authority)
        return self._list


def read_stamp(file: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written; None: it is not there."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
