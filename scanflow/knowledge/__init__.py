"""The knowledge base: records of applications, runs and models. MLflow behind a small port.

Every name is loaded when it is first used, so importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanflow.knowledge.knowledge_port import KnowledgeBase
    from scanflow.knowledge.memory import MemoryKnowledge

__all__ = ["KnowledgeBase", "MemoryKnowledge", "open_knowledge"]

_HOMES = {"KnowledgeBase": "knowledge_port", "MemoryKnowledge": "memory"}


def open_knowledge(
    home: Path,
    tracker_uri: str | None = None,
    *,
    connect_timeout_s: float = 5.0,
    served: bool = False,
    token: str | None = None,
) -> KnowledgeBase:
    """Return the knowledge base on MLflow: the tracker at ``tracker_uri``, or SQLite inside ``home``. Opens nothing
    yet.

    With ``served``, the server that ``scanflow up`` starts over the home's tracker is spoken to while it runs: that
    takes a process no second and 150 MiB for MLflow. So does ``token``, for a tracking server that asks for one.

    Raises:
        MissingExtraError: MLflow is not installed.
        InvalidError: the address is none that MLflow and scanflow both know.
    """
    from scanflow.knowledge.mlflow.mlflow_knowledge import MlflowKnowledge
    from scanflow.knowledge.step_environment import locate_tracker

    place = locate_tracker(home, tracker_uri)
    return MlflowKnowledge(place, connect_timeout_s=connect_timeout_s, served=served, token=token)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
