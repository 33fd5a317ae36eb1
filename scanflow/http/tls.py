"""TLS of a program that serves HTTP: its certificate, which may be renewed while it runs, and its clients'."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scanflow.errors import UsageError
from scanflow.http.client_certificates import (
    CHECK_S,
    ClientRefusal,
    PeerCertificate,
    Revocations,
    read_forwarded,
    read_stamp,
    refuse_client,
)
from scanflow.http.tls_files import TlsFiles

if TYPE_CHECKING:
    from cryptography import x509

HANDSHAKE_S: Final = 10.0
"""How long a client may take for the handshake, in seconds."""

_log = logging.getLogger(__name__)


def build_context(files: TlsFiles, *, asks: bool) -> ssl.SSLContext:
    """Build the context of a server; ``asks``: it asks for a client certificate, but does not need one.

    Raises:
        UsageError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"The certificate {files.certificate!r} and its key {files.key!r} cannot be used: {error}. Name others: "
            "SCANFLOW_TLS_CERT and SCANFLOW_TLS_KEY"
        ) from error
    if asks:
        try:
            context.load_verify_locations(files.authority)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"The authority {files.authority!r} of client certificates cannot be used: {error}. Name another: "
                "SCANFLOW_TLS_CA"
            ) from error
        context.verify_mode = ssl.CERT_OPTIONAL  # who has none gets an answer that says so
    return context


def create_tls(files: TlsFiles | None, clients: Collection[str] | None) -> ServerTls | None:
    """Return the TLS of a socket; None: it speaks none.

    Raises:
        UsageError: a file cannot be used, or certificates are asked for without TLS.
    """
    if files is None:
        if clients is not None:
            raise UsageError("Client certificates need TLS, and there is none. Turn it on: SCANFLOW_TLS=1")
        return None
    return ServerTls(files, clients)


class ServerTls:
    """The TLS of a listening socket, and which clients it answers."""

    def __init__(
        self,
        files: TlsFiles,
        clients: Collection[str] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clients``: the subjects that are let in, ``CN=NAME``; None: no certificate is asked for.

        Raises:
            UsageError: a file cannot be used.
        """
        self.files = files
        self.clients = None if clients is None else frozenset(clients)
        self._monotonic, self._clock = monotonic, clock
        self._revocations = Revocations(
            Path(files.revoked) if files.revoked else None, Path(files.authority), monotonic=monotonic
        )
        self._stamps = self._read_stamps()
        self._checked = monotonic()
        self._context = build_context(files, asks=self.clients is not None)
        authorities = self._read_authorities() if self.clients is not None and files.gateway else ()
        self._read_forwarded = lru_cache(1024)(partial(read_forwarded, authorities=authorities))

    def get_context(self) -> ssl.SSLContext:
        """Return the context for a new connection, with the certificate as its files are now."""
        if self.has_changed():
            try:
                self._context = build_context(self.files, asks=self.clients is not None)
            except UsageError as error:
                _log.warning("The certificate is not renewed: %s", error)
        return self._context

    def has_changed(self) -> bool:
        """Return whether the files have changed since this was asked; they are looked at every
        :data:`CHECK_S`."""
        now = self._monotonic()
        if now - self._checked < CHECK_S:
            return False
        self._checked = now
        before, self._stamps = self._stamps, self._read_stamps()
        return before != self._stamps

    def refuse(self, peer: PeerCertificate | None, forwarded: Sequence[str] = ()) -> ClientRefusal | None:
        """Return why a request of a client is refused; None: it is let in. Called for each request.

        Args:
            peer: The certificate of the connection; None: it has none.
            forwarded: The values of the header :data:`FORWARDED`, believed from the gateway only.
        """
        if self.clients is None:
            return None
        revoked, now = self._revocations.read(), self._clock()
        if peer is not None and self.files.gateway and peer.name == self.files.gateway:
            refusal = refuse_client(peer, {f"CN={peer.name}"}, revoked, now)
            if refusal is not None:
                return refusal
            peer = self._read_forwarded(tuple(forwarded))
        return refuse_client(peer, self.clients, revoked, now)

    def _read_authorities(self) -> Sequence[x509.Certificate]:
        from cryptography import x509

        return x509.load_pem_x509_certificates(Path(self.files.authority).read_bytes())

    def _read_stamps(self) -> list[tuple[int, int, int] | None]:
        return [read_stamp(Path(file)) for file in (self.files.certificate, self.files.key, self.files.authority)]
