"""A client's certificate that a gateway passes on in a header: whose header is believed, and which certificate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest

from scanflow.http.client_certificates import PeerCertificate
from scanflow.http.tls import ServerTls
from scanflow.http.tls_files import TlsFiles
from scanflow.pki import CertificateAuthority, IssuedCertificate, find_revocations_file

GATEWAY = "gateway.digits.shop"


class Instance:
    """An instance that answers CN=ada, and its authority."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.now = CertificateAuthority(folder), 0.0
        self.authority.create("test")
        self.own = self.authority.issue(GATEWAY, ["digits.shop"])
        revoked = find_revocations_file(folder, self.authority.file)
        self.files = TlsFiles(
            certificate=str(self.own.certificate),
            key=str(self.own.key),
            authority=str(self.authority.file),
            revoked=str(revoked),
            gateway=GATEWAY,
        )
        self.tls = ServerTls(self.files, ["CN=ada"], monotonic=lambda: self.now)

    def ask(self, peer: IssuedCertificate | None, *forwarded: str) -> str:
        """Return why a request is refused; empty: it is not."""
        shown = None if peer is None else PeerCertificate.from_pem(peer.certificate.read_bytes())
        refusal = self.tls.refuse(shown, forwarded)
        return "" if refusal is None else refusal.detail


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path)


def write(*certificates: IssuedCertificate) -> str:
    """Write certificates as Traefik does."""
    texts = [
        certificate.certificate.read_text(encoding="ascii").partition("-----END")[0] for certificate in certificates
    ]
    return ",".join("".join(text.splitlines()[1:]) for text in texts)


def test_the_header_of_the_gateway_is_believed_and_nobody_elses(instance: Instance) -> None:
    ada, eve = instance.authority.issue("ada"), instance.authority.issue("eve")
    assert instance.ask(instance.own, write(ada)) == ""
    assert instance.ask(instance.own, write(ada, eve)) == ""
    assert instance.ask(instance.own, quote(write(ada), safe="")) == ""
    assert "CN=eve is not one of them" in instance.ask(instance.own, write(eve))
    assert "CN=eve is not one of them" in instance.ask(instance.own, write(eve, ada))
    assert "CN=eve is not one of them" in instance.ask(eve, write(ada))
    assert "has shown none" in instance.ask(None, write(ada))
    assert instance.ask(ada) == "", "clients may call an instance directly, too"


def test_without_a_gateway_no_header_is_believed(instance: Instance, tmp_path: Path) -> None:
    ada = instance.authority.issue("ada")
    instance.tls = ServerTls(
        TlsFiles(certificate=instance.files.certificate, key=instance.files.key, authority=instance.files.authority),
        ["CN=ada"],
    )
    assert f"CN={GATEWAY} is not one of them" in instance.ask(instance.own, write(ada))


def test_a_certificate_of_another_authority_is_nobodys(instance: Instance, tmp_path: Path) -> None:
    other = CertificateAuthority(tmp_path / "other")
    other.create("test")
    ada = instance.authority.issue("ada")
    wrong: Sequence[tuple[str, ...]] = (
        (),
        ("",),
        ("nonsense",),
        (write(other.issue("ada")),),
        (write(ada), write(ada)),
    )
    for values in wrong:
        assert "has shown none" in instance.ask(instance.own, *values), values


def test_a_revocation_holds_behind_the_gateway_and_for_the_gateway(instance: Instance) -> None:
    ada = instance.authority.issue("ada")
    assert instance.ask(instance.own, write(ada)) == ""
    instance.authority.revoke("ada")
    instance.now += 3
    assert "CN=ada is revoked" in instance.ask(instance.own, write(ada))
    renewed = instance.authority.issue("ada")
    assert instance.ask(instance.own, write(renewed)) == ""
    instance.authority.revoke(GATEWAY)
    instance.now += 3
    assert f"CN={GATEWAY} is revoked" in instance.ask(instance.own, write(renewed))
