"""Requests to servers without TLS. A client of httpx2's own reads the world's authorities first, which takes 30 ms."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2

from scanflow.transport.clients import build_tls_context

NO_AUTHORITIES = build_tls_context("http://")


def http_client(**options: Any) -> httpx2.Client:
    return httpx2.Client(verify=NO_AUTHORITIES, **options)


HTTP = http_client(
    limits=httpx2.Limits(max_keepalive_connections=0), cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[]))
)
"""As ``httpx2.get`` and its like: each request has a connection of its own, and no cookie is kept."""
