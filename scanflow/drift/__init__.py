"""Drift: whether new data differs from what a model was trained on, and whether a model is better than the one in use.

``detection`` and ``retraining`` make the workflows that agents run; they are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scanflow.drift.workflows import detection, retraining

__all__ = ["detection", "retraining"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.workflows"), name)
