"""Where the contenders are installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Places:
    ours: Path
    peers: Path
    """Metaflow, Prefect and a bare web application."""

    servers: Path
    """MLServer and MLflow."""

    checkout: Path

    @property
    def python(self) -> Path:
        return self.ours / "python"

    @property
    def peer_python(self) -> Path:
        return self.peers / "python"
