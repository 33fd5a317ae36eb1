"""The only package that uses httpx2: calls to servers and services."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanflow.transport.server_client import ServerClient, build_path, fetch_json, is_reachable
    from scanflow.transport.service_client import HttpServiceClient, PredictionResponse, Reply
    from scanflow.transport.sse import Message

_HOMES = {
    "PredictionResponse": "service_client",
    "HttpServiceClient": "service_client",
    "Message": "sse",
    "Reply": "service_client",
    "ServerClient": "server_client",
    "is_reachable": "server_client",
    "fetch_json": "server_client",
    "build_path": "server_client",
}

__all__ = [
    "HttpServiceClient",
    "Message",
    "PredictionResponse",
    "Reply",
    "ServerClient",
    "build_path",
    "fetch_json",
    "is_reachable",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
