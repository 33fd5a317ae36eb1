"""Certificates of a home: its own authority, and what its programs serve TLS with."""

from scanflow.pki.authority import (
    CertificateAuthority,
    IssuedCertificate,
    get_authority_file,
    open_authority,
    read_certificate_hosts,
)
from scanflow.pki.home_tls import (
    LOCAL_HOSTS,
    SERVER,
    check_certificate_files,
    choose_name,
    find_authority_file,
    find_client_certificate,
    find_revocations_file,
    get_public_name,
    is_address,
    list_own_hosts,
    prepare_tls,
    renew_certificate,
)

__all__ = [
    "LOCAL_HOSTS",
    "SERVER",
    "CertificateAuthority",
    "IssuedCertificate",
    "check_certificate_files",
    "choose_name",
    "find_authority_file",
    "find_client_certificate",
    "find_revocations_file",
    "get_authority_file",
    "get_public_name",
    "is_address",
    "list_own_hosts",
    "open_authority",
    "prepare_tls",
    "read_certificate_hosts",
    "renew_certificate",
]
