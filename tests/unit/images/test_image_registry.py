"""A registry, asked whether it has an image."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from scanflow.images.image_registry import has_image


class Registry(BaseHTTPRequestHandler):
    """Has one image, and another one for those who say who they are."""

    def do_HEAD(self) -> None:
        status = {"/v2/team/scanflow/shop/manifests/1": 200, "/v2/private/manifests/1": 401}.get(self.path, 404)
        self.send_response(status if "oci.image.manifest" in self.headers["Accept"] else 406)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_registry_has_an_image_or_is_not_known_to(address: str) -> None:
    assert has_image(f"{address}/team/scanflow/shop:1", insecure=True)
    assert not has_image(f"{address}/team/scanflow/shop:2", insecure=True)
    assert not has_image(f"{address}/private:1", insecure=True)
    assert not has_image("shop:1", insecure=True)
    assert not has_image(f"{address}/team/scanflow/shop:1"), "it has no certificate"


def test_a_registry_that_is_not_there_has_nothing() -> None:
    assert not has_image("127.0.0.1:9/shop:1", insecure=True)
