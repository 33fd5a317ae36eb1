"""A browser in which somebody has logged in, with a role and a team of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from tests.http_requests import http_client
from tests.page_reader import PageReader, log_in
from tests.unit.server.server_rows import Api
from tests.waiting import patient


class Browser:
    def __init__(self, client: httpx2.Client, key: str) -> None:
        self.client, self.key = client, key

    def get(self, path: str) -> str:
        """Return a page, whose elements have to be closed in order."""
        response = self.client.get(path)
        assert response.status_code == 200, (path, response.status_code, response.text)
        PageReader(response.text)
        return response.text

    def read(self, path: str) -> PageReader:
        return PageReader(self.get(path))

    def post(self, path: str, **fields: str) -> httpx2.Response:
        """Send a form with the key of the session, as the page's script does."""
        return self.client.post(path, data={"session_key": self.key, **fields})


@contextmanager
def browsing(api: Api, name: str = "ada", role: str = "editor", team: str | None = None) -> Iterator[Browser]:
    token = api.post("/tokens", json={"name": name, "role": role, "team": team}).json()["token"]
    address = str(api.base_url).removesuffix("/api/v1/")
    with http_client(base_url=address, follow_redirects=True, timeout=patient(60)) as client:
        client.headers["origin"] = address
        yield Browser(client, log_in(client, token))
