"""The home's certificate authority: OpenSSL, through Python's own ssl, is who accepts and refuses its certificates."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scanflow.errors import InvalidError, NotFoundError
from scanflow.pki import CertificateAuthority, IssuedCertificate, find_authority_file, read_certificate_hosts


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> CertificateAuthority:
    authority = CertificateAuthority(tmp_path, clock=clock)
    authority.create("scanflow.test")
    return authority


def shake_hands(
    authority: CertificateAuthority,
    server: IssuedCertificate,
    name: str,
    *,
    client: IssuedCertificate | None = None,
    is_checked: bool = False,
) -> str | None:
    """Return the common name that the server learns of its client; ssl.SSLError: one refuses the other."""
    wants = ssl.create_default_context(cafile=authority.file)
    serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serves.load_cert_chain(server.certificate, server.key)
    if client is not None:
        wants.load_cert_chain(client.certificate, client.key)
        serves.load_verify_locations(authority.file)
        serves.verify_mode = ssl.CERT_REQUIRED
    if is_checked:
        serves.load_verify_locations(authority.file.with_name("revoked.pem"))
        serves.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = wants.wrap_bio(to_client, to_server, server_hostname=name)
    right = serves.wrap_bio(to_server, to_client, server_side=True)
    waiting = [left, right]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    assert waiting == []
    subject: Any = (right.getpeercert() or {}).get("subject", ())
    return next((value for part in subject for key, value in part if key == "commonName"), None)


@pytest.mark.parametrize("name", ["models.example", "127.0.0.1", "::1"])
def test_a_server_is_accepted_by_each_of_its_names(authority: CertificateAuthority, name: str) -> None:
    issued = authority.issue("server", ["models.example", "127.0.0.1", "::1"])
    assert issued.hosts == ("models.example", "127.0.0.1", "::1")
    assert read_certificate_hosts(issued.certificate) == list(issued.hosts)
    shake_hands(authority, issued, name)


@pytest.mark.parametrize("name", ["other.example", "127.0.0.2"])
def test_a_server_is_refused_by_another_name(authority: CertificateAuthority, name: str) -> None:
    with pytest.raises(ssl.SSLError, match=r"mismatch|not valid for"):
        shake_hands(authority, authority.issue("server", ["models.example", "127.0.0.1"]), name)


def test_a_clients_certificate_names_it_and_serves_nothing(authority: CertificateAuthority) -> None:
    server, ada = authority.issue("server", ["a.example"]), authority.issue("ada")
    assert shake_hands(authority, server, "a.example", client=ada) == "ada"
    with pytest.raises(ssl.SSLError):
        shake_hands(authority, ada, "a.example")


def test_another_authoritys_certificates_are_refused(authority: CertificateAuthority, tmp_path: Path) -> None:
    other = CertificateAuthority(tmp_path / "other")
    other.create("scanflow.test")
    with pytest.raises(ssl.SSLError, match=r"unable to get|self.signed|verify failed"):
        shake_hands(authority, other.issue("server", ["a.example"]), "a.example")


def test_a_revoked_certificate_is_refused_and_a_new_one_of_its_name_accepted(authority: CertificateAuthority) -> None:
    server, ada, bo = authority.issue("server", ["a.example"]), authority.issue("ada"), authority.issue("bo")
    issued_certificate = IssuedCertificate(**{name: getattr(ada, name) for name in IssuedCertificate.__slots__})
    certificate, key = ada.certificate.read_bytes(), ada.key.read_bytes()
    authority.revoke("ada")
    assert [record.serial for record in authority.list_issued() if record.revoked is not None] == [ada.serial]
    with pytest.raises(ssl.SSLError, match="revoked"):
        shake_hands(authority, server, "a.example", client=ada, is_checked=True)
    assert shake_hands(authority, server, "a.example", client=bo, is_checked=True) == "bo"
    again = authority.issue("ada")
    assert shake_hands(authority, server, "a.example", client=again, is_checked=True) == "ada"
    issued_certificate.certificate.write_bytes(certificate)
    issued_certificate.key.write_bytes(key)
    with pytest.raises(ssl.SSLError, match="revoked"):
        shake_hands(authority, server, "a.example", client=issued_certificate, is_checked=True)


def test_states_are_listed_by_name(authority: CertificateAuthority, clock: Clock) -> None:
    authority.issue("carl", days=1)
    authority.issue("bo")
    authority.issue("ada")
    authority.revoke("bo")
    clock.now += timedelta(days=2)
    states = [(issued.name, issued.describe_state(clock.now)) for issued in authority.list_issued()]
    assert states == [("ada", "valid"), ("bo", "revoked"), ("carl", "expired")]
    assert authority.issue("carl").describe_state(clock.now) == "valid"
    again = authority.issue("bo")
    authority.revoke("bo")
    third = authority.issue("bo")
    states = [(issued.name, issued.describe_state(clock.now)) for issued in authority.list_issued()]
    bos = [("bo", "valid"), ("bo", "revoked"), ("bo", "revoked")]
    assert states == [("ada", "valid"), *bos, ("carl", "valid"), ("carl", "expired")]
    assert [issued.serial for issued in authority.list_issued()][1:3] == [third.serial, again.serial]
    assert not any(issued.key.exists() for issued in authority.list_issued()[2:4])


def test_a_servers_certificate_is_kept_while_it_is_right(authority: CertificateAuthority, clock: Clock) -> None:
    first = authority.ensure("server", ["a.example"])
    assert authority.ensure("server", ["a.example"]).serial == first.serial
    second = authority.ensure("server", ["a.example", "b.example"])
    assert (second.serial != first.serial, second.hosts) == (True, ("a.example", "b.example"))
    clock.now += timedelta(days=380)
    assert authority.ensure("server", ["b.example"]).serial != second.serial
    authority.revoke("server")
    assert authority.ensure("server", ["b.example"]).describe_state(clock.now) == "valid"


def test_what_cannot_be_issued_is_refused(authority: CertificateAuthority, tmp_path: Path) -> None:
    authority.issue("ada")
    for name, hosts, words in (
        ("ada", [], r"'ada' has a certificate.*Revoke it first: scanflow pki revoke ada"),
        ("../ada", [], r"is no name of a certificate"),
        ("x" * 65, [], r"is no name of a certificate"),
        ("bo", ["a b"], r"'a b' is no host"),
        ("bo", ["https://a.example"], r"is no host"),
    ):
        with pytest.raises(InvalidError, match=words):
            authority.issue(name, hosts)
    with pytest.raises(InvalidError, match="There is an authority"):
        authority.create("again")
    for name in "bo", "ada", "ada":
        if name == "ada" and all(record.revoked is None for record in authority.list_issued()):
            authority.revoke(name)
            continue
        with pytest.raises(NotFoundError, match=f"'{name}' has no certificate to revoke"):
            authority.revoke(name)
    with pytest.raises(NotFoundError, match=r"There is no authority.*scanflow pki init"):
        CertificateAuthority(tmp_path / "empty").issue("ada")


def list_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def test_its_files_are_private(authority: CertificateAuthority) -> None:
    authority.issue("ada")
    modes = {stat.S_IMODE(file.stat().st_mode) for file in list_files(authority.file.parent)}
    assert modes == {0o600}


def test_the_homes_own_authority_is_trusted_unless_another_is_named(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCANFLOW_TLS_CA", raising=False)
    monkeypatch.setenv("SCANFLOW_HOME", str(tmp_path / "empty"))
    assert find_authority_file() is None
    monkeypatch.setenv("SCANFLOW_HOME", str(tmp_path))
    assert find_authority_file() == authority.file
    monkeypatch.setenv("SCANFLOW_TLS_CA", "/other.pem")
    assert find_authority_file() == Path("/other.pem")
