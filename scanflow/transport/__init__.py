"""The one door to httpx: how servers and services are asked, and how their refusals become our errors again."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanflow.transport.predictions import Answer, Predictions, Reply
    from scanflow.transport.problems import PROBLEM_JSON, error_of, problem_of, refusal_of, status_of
    from scanflow.transport.server import Server, answers, path_of
    from scanflow.transport.sse import Message

__all__ = [
    "PROBLEM_JSON",
    "Answer",
    "Message",
    "Predictions",
    "Reply",
    "Server",
    "answers",
    "error_of",
    "path_of",
    "problem_of",
    "refusal_of",
    "status_of",
]

_HOMES = {
    "PROBLEM_JSON": "problems",
    "Answer": "predictions",
    "Message": "sse",
    "Predictions": "predictions",
    "Reply": "predictions",
    "Server": "server",
    "answers": "server",
    "error_of": "problems",
    "path_of": "server",
    "problem_of": "problems",
    "refusal_of": "problems",
    "status_of": "problems",
}


def __getattr__(name: str) -> object:
    """Load a name of the public face when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
