"""Check whether a registry has an image, by ``HEAD`` of its manifest."""

from __future__ import annotations

import http.client
from typing import Final

TIMEOUT_S: Final = 2.0
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json"
)


def has_image(image: str, *, insecure: bool = False, timeout_s: float = TIMEOUT_S) -> bool:
    """Return whether the registry in an image's name has it.

    No credentials are sent. False where the registry does not answer in time or requires credentials.
    ``insecure``: it speaks plain HTTP.
    """
    host, _, rest = image.partition("/")
    name, _, tag = rest.rpartition(":")
    if not name:
        return False
    kind = http.client.HTTPConnection if insecure else http.client.HTTPSConnection
    connection = kind(host, timeout=timeout_s)
    try:
        connection.request("HEAD", f"/v2/{name}/manifests/{tag}", headers={"Accept": _MANIFESTS})
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
