"""Give the services of a cluster that answer named clients their certificates, of the home's own authority, and the
list of revoked ones, and renew both while they run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import SERVICE, build_labels
from scanflow.backends.kubernetes.online.closed_routes import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    REVOKED,
    build_tls_secret,
    format_gateway_name,
)
from scanflow.backends.kubernetes.online.instance_pods import get_namespace
from scanflow.backends.kubernetes.online.traffic import format_authority
from scanflow.backends.service_spec import ServiceSpec
from scanflow.http.client_certificates import read_stamp
from scanflow.pki import CertificateAuthority, find_revocations_file, open_authority

RENEW_S: Final = 3600.0
"""How often a server looks whether a certificate expires soon, in seconds."""

CONTENT: Final = "scanflow.dev/certificates"
"""An annotation of pods: the hash of their certificates. A kubelet brings a pod's files up to date when it changes, in
seconds; otherwise within its sync period, a minute or more."""


class ServiceCertificates:
    """The certificates of one cluster's services."""

    def __init__(
        self,
        cluster: Cluster,
        home: Path,
        domain: str | None,
        seen: MutableMapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seen``: what was applied last, by service; it outlives this object."""
        self._cluster, self._home, self._domain, self._seen, self._clock = cluster, home, domain, seen, clock

    def apply(self, definition: ServiceSpec) -> None:
        """Apply the Secret of a service with TLS: its certificate, of the home's authority, is created where needed."""
        authority = open_authority(self._home)
        namespace, name = get_namespace(definition), definition.workflow
        hosts = [format_authority(namespace, name, self._domain), f"{name}.{namespace}", f"{name}.{namespace}.svc"]
        issued = authority.ensure(format_gateway_name(namespace, name), hosts)
        revoked = find_revocations_file(self._home, authority.file) or authority.file.with_name(REVOKED)
        files = {CERTIFICATE: issued.certificate, KEY: issued.key, AUTHORITY: authority.file, REVOKED: revoked}
        contents = {file: path.read_bytes() for file, path in files.items()}
        labels = build_labels(definition.app, definition.team, service=name)
        self._cluster.apply(build_tls_secret(name, namespace, labels, contents), force=True)
        digest = hashlib.sha256(b"".join(contents.values())).hexdigest()[:10]
        for pod in self._cluster.find("Pod", namespace, labels=f"{SERVICE}={name}")[0]:
            change = {"metadata": {"annotations": {CONTENT: digest}}}
            self._cluster.patch("Pod", pod["metadata"]["name"], namespace, change)

    def refresh(self, definition: ServiceSpec) -> bool:
        """Apply the Secret again if a certificate was revoked, or may expire soon; return whether it did.

        A home without the authority changes nothing: another one has deployed the service.
        """
        authority = CertificateAuthority(self._home)
        if definition.tls is None or not authority.is_created:
            return False
        state = read_stamp(authority.file.with_name(REVOKED)), int(self._clock() / RENEW_S)
        if self._seen.get(definition.workflow) == state:
            return False
        self.apply(definition)
        self._seen[definition.workflow] = state
        return True
