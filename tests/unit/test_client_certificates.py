"""Which clients are let in by their certificates, and the list of revoked ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from scanflow.errors import UsageError
from scanflow.http.client_certificates import (
    CHECK_S,
    PeerCertificate,
    RevocationList,
    Revocations,
    read_revocations,
    refuse_client,
)
from scanflow.http.tls import ServerTls, create_tls
from scanflow.http.tls_files import TlsFiles
from scanflow.pki import CertificateAuthority, find_revocations_file, list_own_hosts, prepare_tls, renew_certificate
from scanflow.settings import Settings

NOW = 1_000_000.0
ADA = PeerCertificate("ada", 7, NOW + 60)
SUBJECT = ((("organizationName", "o"),), (("commonName", "ada"),))


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    authority = CertificateAuthority(tmp_path)
    authority.create("test")
    return authority


@pytest.mark.parametrize(
    ("peer", "revoked", "status", "words"),
    [
        (ADA, RevocationList(), None, ""),
        (ADA, RevocationList(frozenset({8}), NOW + 1), None, ""),
        (None, RevocationList(), 403, "has shown none. Get one, scanflow pki issue NAME"),
        (PeerCertificate("eve", 7, NOW + 60), RevocationList(), 403, "CN=eve is not one of them"),
        (PeerCertificate("adam", 7, NOW + 60), RevocationList(), 403, "CN=adam is not one of them"),
        (PeerCertificate(None, 7, NOW + 60), RevocationList(), 403, "without a single CN is not one of them"),
        (ADA, RevocationList(frozenset({7})), 403, "CN=ada is revoked"),
        (PeerCertificate("ada", 7, NOW), RevocationList(), 403, "CN=ada has expired"),
        (ADA, RevocationList(problem="no such file."), 503, "cannot be used: no such file."),
        (ADA, RevocationList(expires=NOW), 503, "list of revoked ones has expired"),
    ],
)
def test_who_is_let_in(peer: PeerCertificate | None, revoked: RevocationList, status: int | None, words: str) -> None:
    refusal = refuse_client(peer, {"CN=ada"}, revoked, NOW)
    assert (None if refusal is None else refusal.status) == status
    assert refusal is None or words in refusal.detail


def test_a_certificate_with_several_common_names_is_nobodys() -> None:
    document = {"subject": SUBJECT, "serialNumber": "0A", "notAfter": "Jan  1 00:00:00 2030 GMT"}
    expires = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    assert PeerCertificate.from_ssl(document) == PeerCertificate("ada", 10, expires)
    twice = document | {"subject": (*SUBJECT, (("commonName", "eve"),))}
    assert PeerCertificate.from_ssl(twice) == PeerCertificate(None, 10, expires)
    assert PeerCertificate.from_ssl({}) is None


def test_a_certificate_in_pem_says_the_same(authority: CertificateAuthority) -> None:
    issued = authority.issue("ada")
    expected = PeerCertificate("ada", int(issued.serial, 16), issued.expires.timestamp())
    assert PeerCertificate.from_pem(issued.certificate.read_bytes()) == expected


def test_a_revocation_holds_as_soon_as_the_list_is_looked_at_again(authority: CertificateAuthority) -> None:
    monotonic, file = Time(), authority.file.with_name("revoked.pem")
    serial = int(authority.issue("ada").serial, 16)
    revocations = Revocations(file, authority.file, monotonic=monotonic)
    assert serial not in revocations.read().serials
    authority.revoke("ada")
    assert serial not in revocations.read().serials
    monotonic.now = CHECK_S
    assert revocations.read().serials == {serial}
    file.unlink()
    monotonic.now = 2 * CHECK_S
    assert revocations.read().problem == "No such file or directory."  # its path is not for clients
    assert Revocations(None, authority.file).read() == RevocationList()


def test_a_list_that_cannot_be_trusted_says_why(tmp_path: Path, authority: CertificateAuthority) -> None:
    file = authority.file.with_name("revoked.pem")
    other = CertificateAuthority(tmp_path / "other")
    other.create("test")
    assert "not signed by the authority" in str(read_revocations(file, other.file).problem)
    file.write_text("nonsense")
    assert read_revocations(file, authority.file).problem
    past = CertificateAuthority(tmp_path / "past", clock=lambda: datetime.now(UTC) - timedelta(days=4000))
    past.create("test")
    outdated = read_revocations(past.file.with_name("revoked.pem"), past.file)
    assert outdated.problem is None
    assert outdated.expires < datetime.now(UTC).timestamp()


def test_a_home_without_a_word_serves_without_tls(tmp_path: Path) -> None:
    assert prepare_tls(Settings(home=tmp_path)) is None
    assert not (tmp_path / "pki").exists()


def test_a_home_issues_one_certificate_for_all_that_it_serves(tmp_path: Path) -> None:
    authority, settings = CertificateAuthority(tmp_path), Settings(home=tmp_path, tls=True)
    files = prepare_tls(settings)
    (issued,) = authority.list_issued()
    assert files == TlsFiles(
        certificate=str(issued.certificate),
        key=str(issued.key),
        authority=str(authority.file),
        revoked=str(authority.file.with_name("revoked.pem")),
    )
    assert set(list_own_hosts()) == set(issued.hosts)
    assert prepare_tls(settings) == files
    assert authority.list_issued() == [issued]


def test_a_certificate_for_more_hosts_stays_for_those_that_it_was_for(authority: CertificateAuthority) -> None:
    authority.ensure("server", ["a.example"])
    assert set(authority.ensure("server", ["b.example"]).hosts) == {"a.example", "b.example"}


def test_the_homes_own_certificate_is_renewed_a_month_before_it_expires(tmp_path: Path) -> None:
    past = CertificateAuthority(tmp_path, clock=lambda: datetime.now(UTC) - timedelta(days=370))
    past.create("test")
    old = past.ensure("server", ["models.example"])
    files = TlsFiles(certificate=str(tmp_path / "given.pem"), key=str(tmp_path / "given.key"))
    renew_certificate(tmp_path, files)
    authority = CertificateAuthority(tmp_path)
    assert authority.list_issued() == [old]
    own = TlsFiles(certificate=str(old.certificate), key=str(old.key))
    renew_certificate(tmp_path, own)
    renewed, former = authority.list_issued()
    assert renewed.serial != old.serial == former.serial
    assert "models.example" in renewed.hosts
    renew_certificate(tmp_path, own)
    assert authority.list_issued() == [renewed, former]
    assert authority.revoke("server").serial == renewed.serial
    assert all(issued.revoked for issued in authority.list_issued())


def test_given_files_are_used_by_the_name_that_they_are_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authority: CertificateAuthority
) -> None:
    local, public = authority.issue("local", ["localhost"]), authority.issue("public", ["models.example"])
    home = tmp_path / "home"
    settings = Settings(home=home, tls_cert=local.certificate, tls_key=local.key)
    files = prepare_tls(settings)
    assert files is not None
    assert (files.name, files.authority, files.revoked) == ("localhost", "", "")
    monkeypatch.setenv("SCANFLOW_TLS_CA", str(authority.file))
    monkeypatch.setenv("SCANFLOW_TLS_CRL", str(tmp_path / "list.pem"))
    files = prepare_tls(settings)
    assert files is not None
    assert (files.authority, files.revoked) == (str(authority.file), str(tmp_path / "list.pem"))
    monkeypatch.delenv("SCANFLOW_TLS_CRL")
    assert find_revocations_file(home, authority.file) is None  # another authority's
    with pytest.raises(UsageError, match=r"is for models\.example, and not for 127\.0\.0\.1"):
        prepare_tls(Settings(home=home, tls_cert=public.certificate, tls_key=public.key))
    with pytest.raises(UsageError, match="Set SCANFLOW_TLS_CERT and SCANFLOW_TLS_KEY"):
        prepare_tls(Settings(home=home, tls_cert=public.certificate))


def test_client_certificates_need_tls_and_files_that_can_be_read(tmp_path: Path) -> None:
    assert create_tls(None, None) is None
    with pytest.raises(UsageError, match="Client certificates need TLS"):
        create_tls(None, ["CN=ada"])
    with pytest.raises(UsageError, match=r"cannot be used: .* Name others: SCANFLOW_TLS_CERT"):
        ServerTls(TlsFiles(certificate=str(tmp_path / "a"), key=str(tmp_path / "b")))


def test_a_renewed_certificate_is_taken_and_a_broken_one_is_not(authority: CertificateAuthority) -> None:
    monotonic, issued = Time(), authority.issue("server", ["localhost"])
    tls = ServerTls(TlsFiles(certificate=str(issued.certificate), key=str(issued.key)), monotonic=monotonic)
    first = tls.get_context()
    authority.revoke("server")
    authority.issue("server", ["localhost"])
    assert tls.get_context() is first
    monotonic.now = CHECK_S
    renewed = tls.get_context()
    assert renewed is not first
    issued.certificate.write_text("half")
    monotonic.now = 2 * CHECK_S
    assert tls.get_context() is renewed
