"""The one door to httpx: how services are asked for predictions, and how their refusals become our errors again."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanflow.transport.predictions import Answer, Predictions, Reply
    from scanflow.transport.problems import error_of, status_of

__all__ = ["Answer", "Predictions", "Reply", "error_of", "status_of"]

_HOMES = {
    "Answer": "predictions",
    "Predictions": "predictions",
    "Reply": "predictions",
    "error_of": "problems",
    "status_of": "problems",
}


def __getattr__(name: str) -> object:
    """Load a name of the public face when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
