"""Build the objects of a service that answers named clients: its Secret, and Traefik's routes to it. Pure.

The Gateway API has no client certificates in Traefik, so these are Traefik's own kinds. Traefik chooses the certificate
and the demand for a client's by the host of the handshake, so that the service has a host of its own, for HTTP and
gRPC. Traefik ends TLS to balance single calls, and passes the client's certificate on in a header, over TLS with the
service's certificate: instances believe the header of nobody else.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.online.traffic import (
    GRPC_PORT,
    HTTP_PORT,
    Routing,
    build_object,
    build_weights,
    format_authority,
)
from scanflow.http.tls_files import TlsFiles

ROUTE_KINDS: Final = ("Middleware", "TLSOption", "ServersTransport", "IngressRoute")
TLS_FOLDER: Final = "/scanflow/tls"
"""Where pods mount the Secret."""

CERTIFICATE, KEY, AUTHORITY, REVOKED = "tls.crt", "tls.key", "ca.crt", "revoked.pem"
"""The keys of the Secret: the first three are those that Traefik reads."""

_ENTRY_POINT: Final = "websecure"  # the name in Traefik's chart
_GRPC: Final = "HeaderRegexp(`Content-Type`, `^application/grpc`)"


def format_gateway_name(namespace: str, name: str) -> str:
    """Return the common name of the certificate of a service, with which the Gateway calls its instances."""
    return f"gateway.{name}.{namespace}"


def format_tls_secret_name(service: str) -> str:
    return f"service-{service}-tls"


def build_pod_tls(namespace: str, name: str) -> TlsFiles:
    """Return what instances serve TLS with, in their pods."""
    files = {
        key: f"{TLS_FOLDER}/{file}"
        for key, file in (("certificate", CERTIFICATE), ("key", KEY), ("authority", AUTHORITY), ("revoked", REVOKED))
    }
    return TlsFiles(**files, gateway=format_gateway_name(namespace, name))


def build_tls_secret(name: str, namespace: str, labels: Mapping[str, str], files: Mapping[str, bytes]) -> Manifest:
    """Return the Secret with the certificate of a service, and what its clients' are verified with."""
    return build_manifest(
        "Secret",
        {"name": format_tls_secret_name(name), "namespace": namespace, "labels": dict(labels)},
        type="kubernetes.io/tls",
        data={file: base64.b64encode(content).decode() for file, content in files.items()},
    )


def build_closed_routes(routing: Routing, *, grpc: bool) -> list[Manifest]:
    """Return the objects with which Traefik routes the requests of named clients to a service."""
    host = format_authority(routing.namespace, routing.name, routing.domain)
    secret = format_tls_secret_name(routing.name)
    options: dict[str, Mapping[str, Any]] = {
        "Middleware": {"passTLSClientCert": {"pem": True}},
        "TLSOption": {
            "minVersion": "VersionTLS12",
            "sniStrict": True,
            "clientAuth": {"clientAuthType": "RequireAndVerifyClientCert", "secretNames": [secret]},
        },
        "ServersTransport": {"serverName": host, "rootCAs": [{"secret": secret}], "certificatesSecrets": [secret]},
        "IngressRoute": {
            "entryPoints": [_ENTRY_POINT],
            "routes": [
                *([_build_rule(routing, f"Host(`{host}`) && {_GRPC}", GRPC_PORT)] if grpc else []),
                _build_rule(routing, f"Host(`{host}`)", HTTP_PORT),
            ],
            "tls": {"secretName": secret, "options": {"name": routing.name}},
        },
    }
    return [build_object(kind, routing, options[kind]) for kind in ROUTE_KINDS]


def _build_rule(routing: Routing, match: str, port: int) -> Manifest:
    services = [
        {"name": name, "port": port, "weight": weight, "scheme": "https", "serversTransport": routing.name}
        for name, weight in build_weights(routing)
    ]
    return {"kind": "Rule", "match": match, "middlewares": [{"name": routing.name}], "services": services}
