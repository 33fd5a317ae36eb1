"""Where `scanflow up` listens, and what it refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scanflow.errors import UsageError
from scanflow.pki import CertificateAuthority
from scanflow_client.server_address import ServerAddress, choose_server_address


def choose(home: Path, *, tls: bool = False, **variables: str) -> ServerAddress:
    return choose_server_address(home, tls=tls, environ={f"SCANFLOW_{name}": text for name, text in variables.items()})


def issue(home: Path, *hosts: str) -> dict[str, Any]:
    authority = CertificateAuthority(home)
    authority.create("test")
    issued = authority.issue("given", hosts)
    return {"TLS_CERT": str(issued.certificate), "TLS_KEY": str(issued.key)}


def test_without_a_word_it_is_loopback_without_tls(tmp_path: Path) -> None:
    address = choose(tmp_path)
    assert (address.format_url(1), address.environment) == ("http://127.0.0.1:1", {"SCANFLOW_SERVER_HOST": "127.0.0.1"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "models.example"])
def test_other_addresses_than_loopback_need_tls(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match=f"SCANFLOW_SERVER_HOST is '{host}'.*scanflow up --tls"):
        choose(tmp_path, SERVER_HOST=host)
    assert not (tmp_path / "pki").exists()
    assert choose(tmp_path, SERVER_HOST=host, BEHIND_PROXY="1").host == host


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "https://127.0.0.1:1"),
        ("0.0.0.0", "https://127.0.0.1:1"),
        ("10.1.2.3", "https://10.1.2.3:1"),
        ("fd00::1", "https://[fd00::1]:1"),
        ("models.example", "https://models.example:1"),
    ],
)
def test_tls_has_a_certificate_for_the_address_and_all_names(tmp_path: Path, host: str, url: str) -> None:
    address = choose(
        tmp_path, tls=True, SERVER_HOST=host, PUBLIC_URL="https://public.example", ALLOWED_HOSTS="b.example"
    )
    assert (address.format_url(1), address.host) == (url, host or "127.0.0.1")
    (issued,) = CertificateAuthority(tmp_path).list_issued()
    assert {"127.0.0.1", "localhost", "::1", "public.example", "b.example", address.name} <= set(issued.hosts)
    assert address.environment["SCANFLOW_TLS_CERT"] == str(issued.certificate)
    assert {"public.example", "b.example"} <= set(address.environment["SCANFLOW_ALLOWED_HOSTS"].split(","))
    assert "127.0.0.1" not in address.environment["SCANFLOW_ALLOWED_HOSTS"].split(",")


def test_a_given_certificate_is_used_by_a_name_that_it_is_for(tmp_path: Path) -> None:
    files = issue(tmp_path, "models.example", "*.models.example")
    with pytest.raises(
        UsageError, match=r"is for models.example, \*.models.example, and not for 127.0.0.1.*PUBLIC_URL"
    ):
        choose(tmp_path, **files)
    for name in "models.example", "a.models.example":
        address = choose(tmp_path, **files, PUBLIC_URL=f"https://{name}:46666")
        assert (address.format_url(1), address.authority) == (f"https://{name}:1", None)
    with pytest.raises(UsageError, match="and not for"):
        choose(tmp_path, **files, PUBLIC_URL="https://a.b.models.example")


def test_half_of_a_pair_is_refused(tmp_path: Path) -> None:
    files = issue(tmp_path, "127.0.0.1")
    for lacking in files:
        for value in "", str(tmp_path / "missing"):
            with pytest.raises(UsageError, match="TLS needs a certificate and its key, in files"):
                choose(tmp_path, tls=True, **{**files, lacking: value})
