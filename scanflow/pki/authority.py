"""A home's own certificate authority: certificates for its server and for clients, and their revocation.

Its files are below ``pki`` of the home: the authority's certificate, which clients are given, its key, the certificates
that it issued with their keys, and the list of revoked ones (RFC 5280). The key never leaves the home.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scanflow.errors import InvalidError, MissingExtraError, NotFoundError
from scanflow.files.private import create_private_folder
from scanflow.installation import explain_install
from scanflow.names import check_common_name
from scanflow.processes.shared_files import hold_lock, write_atomically

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DAYS: Final = 397
"""How long a certificate is valid, in days: browsers accept no more than 398."""

REVOKED: Final = "revoked.pem"
"""The file beside the authority's with the list of revoked certificates."""

HOST: Final = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*")
_AUTHORITY_DAYS: Final = 3650
_SKEW: Final = timedelta(minutes=5)


def get_authority_file(home: Path) -> Path:
    """Return the file with the certificate of a home's authority, which may not be there."""
    return home.expanduser().absolute() / "pki" / "authority.pem"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    name: str
    """The common name (CN)."""

    serial: str
    """In hexadecimal."""

    hosts: tuple[str, ...]
    """The names and addresses of the machine that it is for; empty: it is a client's only."""

    expires: datetime
    revoked: datetime | None
    certificate: Path
    key: Path
    """Of one whose name has a newer certificate: gone."""

    def describe_state(self, now: datetime) -> str:
        """Return ``valid``, ``expired`` or ``revoked``."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if now >= self.expires else "valid"


class CertificateAuthority:
    """The authority in a folder ``pki``. Several processes may use it at once."""

    def __init__(self, home: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.file = get_authority_file(home)
        self._folder, self._clock = self.file.parent, clock
        self._key_file = self._folder / "authority.key"
        self._revocations = self._folder / REVOKED
        self._issued, self._former = self._folder / "issued", self._folder / "former"

    @property
    def is_created(self) -> bool:
        return self.file.is_file() and self._key_file.is_file()

    def create(self, name: str) -> None:
        """Create the authority's key and certificate.

        Raises:
            InvalidError: it is there: all its certificates would be worth nothing.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        with self._hold():
            if self.file.exists() or self._key_file.exists():
                raise InvalidError(
                    f"There is an authority in {str(self._folder)!r}, whose certificates another one would make "
                    "invalid. Issue one: scanflow pki issue NAME"
                )
            key, subject = _generate_key(), _make_name(check_common_name(name))
            builder = _begin(subject, subject, key.public_key(), self._clock(), _AUTHORITY_DAYS)
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            builder = builder.add_extension(_allow_use("key_cert_sign", "crl_sign"), critical=True)
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            certificate = builder.sign(key, hashes.SHA256())
            write_atomically(self._key_file, _encode_key(key))
            write_atomically(self.file, _encode(certificate))
            self._write_revocations(certificate, key, [])

    def issue(self, name: str, hosts: Sequence[str] = (), *, days: int = DAYS) -> IssuedCertificate:
        """Issue a certificate for a client, and with ``hosts`` for a server, too.

        Raises:
            InvalidError: the name or a host is none, or a valid certificate has the name.
            NotFoundError: there is no authority.
        """
        with self._hold():
            earlier = next((record for record in self._read_issued() if record.name == name), None)
            if earlier is not None and earlier.describe_state(self._clock()) == "valid":
                raise InvalidError(
                    f"{name!r} has a certificate that is valid until {earlier.expires:%Y-%m-%d}. Revoke it first: "
                    f"scanflow pki revoke {name}"
                )
            return self._issue(name, hosts, days)

    def ensure(self, name: str, hosts: Sequence[str], *, left: timedelta = timedelta(days=30)) -> IssuedCertificate:
        """Return the certificate of a server that is valid for ``hosts`` and for a while; issue one if there is none.

        Raises:
            InvalidError: a host is none.
            NotFoundError: there is no authority.
        """
        with self._hold():
            record = next((record for record in self._read_issued() if record.name == name), None)
            if record is not None and record.revoked is None:
                if record.expires - self._clock() > left and set(hosts) <= set(record.hosts):
                    return record
                hosts = [*hosts, *record.hosts]  # another program may be reached by those
            return self._issue(name, hosts, DAYS)

    def revoke(self, name: str) -> IssuedCertificate:
        """Revoke the certificates of a name, also of those before a renewal; return the newest.

        Raises:
            NotFoundError: it has none that is not revoked.
        """
        with self._hold():
            serials = [issued.serial for issued in self.list_issued() if issued.name == name and not issued.revoked]
            if not serials:
                raise NotFoundError(f"{name!r} has no certificate to revoke. List them: scanflow pki list")
            authority, key = self._load()
            revoked = [*self._read_revocations(), *((int(serial, 16), self._clock()) for serial in serials)]
            self._write_revocations(authority, key, revoked)
            return next(record for record in self._read_issued() if record.name == name)

    def list_issued(self) -> list[IssuedCertificate]:
        """Return all certificates by name; that which a name has now comes first."""
        former = sorted(self._read(self._former), key=lambda record: record.expires, reverse=True)
        return sorted([*self._read_issued(), *former], key=lambda record: record.name)

    @contextmanager
    def _hold(self) -> Iterator[None]:
        _check_installed()
        with hold_lock(create_private_folder(self._folder) / "lock"):
            yield

    def _load(self) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            certificate = x509.load_pem_x509_certificate(self.file.read_bytes())
            key: Any = load_pem_private_key(self._key_file.read_bytes(), password=None)
        except FileNotFoundError:
            raise NotFoundError(
                f"There is no authority in {str(self._folder)!r}. Create one: scanflow pki init"
            ) from None
        except ValueError as error:
            raise InvalidError(
                f"The authority in {str(self._folder)!r} cannot be read: {error}. Restore its files from a backup."
            ) from error
        return certificate, key

    def _issue(self, name: str, hosts: Sequence[str], days: int) -> IssuedCertificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID

        authority, key = self._load()
        own, subject = _generate_key(), _make_name(check_common_name(name))
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        public = key.public_key()
        builder = _begin(subject, authority.subject, own.public_key(), self._clock(), days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_allow_use("digital_signature"), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_make_host(host) for host in dict.fromkeys(hosts)])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(key, hashes.SHA256())
        create_private_folder(self._issued)
        self._keep_former(name)
        write_atomically(self._issued / f"{name}.key", _encode_key(own))
        write_atomically(self._issued / f"{name}.pem", _encode(certificate) + _encode(authority))
        return next(record for record in self._read_issued() if record.name == name)

    def _keep_former(self, name: str) -> None:
        """Keep the certificate that a name has now, to list it, beside the new one: it may be in use, or revoked."""
        if former := next((record for record in self._read_issued() if record.name == name), None):
            create_private_folder(self._former)
            write_atomically(self._former / f"{name}.{former.serial}.pem", former.certificate.read_bytes())

    def _read_issued(self) -> Iterator[IssuedCertificate]:
        """Read the newest certificate of each name."""
        return self._read(self._issued)

    def _read(self, folder: Path) -> Iterator[IssuedCertificate]:
        from cryptography import x509

        revoked = dict(self._read_revocations())
        for file in folder.glob("*.pem"):
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
            yield IssuedCertificate(
                name=file.stem.removesuffix(f".{certificate.serial_number:x}"),
                serial=f"{certificate.serial_number:x}",
                hosts=tuple(read_hosts(certificate)),
                expires=certificate.not_valid_after_utc,
                revoked=revoked.get(certificate.serial_number),
                certificate=file,
                key=file.with_suffix(".key"),
            )

    def _read_revocations(self) -> list[tuple[int, datetime]]:
        from cryptography import x509

        try:
            revocations = x509.load_pem_x509_crl(self._revocations.read_bytes())
        except FileNotFoundError:
            return []
        return [(entry.serial_number, entry.revocation_date_utc) for entry in revocations]

    def _write_revocations(
        self, authority: x509.Certificate, key: EllipticCurvePrivateKey, revoked: Collection[tuple[int, datetime]]
    ) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        now = self._clock()
        builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
        builder = builder.last_update(now).next_update(now + timedelta(days=_AUTHORITY_DAYS))
        for serial, at in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at).build()
            builder = builder.add_revoked_certificate(entry)
        write_atomically(self._revocations, builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


def open_authority(home: Path) -> CertificateAuthority:
    """Return the authority of a home, created if there is none."""
    authority = CertificateAuthority(home)
    if not authority.is_created:
        authority.create(f"scanflow.{socket.gethostname()}"[:64].rstrip("-."))
    return authority


def read_certificate_hosts(file: Path) -> list[str]:
    """Return the names and addresses that a server's certificate is for.

    Raises:
        InvalidError: the file has none.
    """
    _check_installed()
    from cryptography import x509

    try:
        return list(read_hosts(x509.load_pem_x509_certificate(file.read_bytes())))
    except (OSError, ValueError) as error:
        raise InvalidError(f"{str(file)!r} holds no certificate: {error}. Write it in PEM.") from error


def read_hosts(certificate: x509.Certificate) -> Iterator[str]:
    """Return the names and addresses of a certificate's subject."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    yield from names.get_values_for_type(x509.DNSName)
    yield from map(str, names.get_values_for_type(x509.IPAddress))


def _check_installed() -> None:
    if find_spec("cryptography") is None:
        raise MissingExtraError(
            f"Certificates need the package cryptography, which is not installed. {explain_install('server')}"
        )


def _make_name(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _make_host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not HOST.fullmatch(host) or len(host) > 253:
            raise InvalidError(f"{host!r} is no host. Write a name or an address: models.example, 10.0.0.7") from None
        return x509.DNSName(host)


def _begin(subject: x509.Name, issuer: x509.Name, public: Any, now: datetime, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _SKEW).not_valid_after(now + timedelta(days=days))


def _allow_use(*uses: str) -> x509.KeyUsage:
    from cryptography import x509

    every = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{use: use in uses for use in every})


def _generate_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _encode(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _encode_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
