"""Running and serving applications: the port, the deployer that works inside this process, and the one for
a remote server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanflow.deployer.deployer_port import Deployer, InstanceLogs, RunRequest, TaskLog
from scanflow.deployer.embedded import EmbeddedDeployer

if TYPE_CHECKING:
    from scanflow.deployer.remote import RemoteDeployer

__all__ = ["Deployer", "EmbeddedDeployer", "InstanceLogs", "RemoteDeployer", "RunRequest", "TaskLog"]


def __getattr__(name: str) -> object:
    """Import the remote deployer, and httpx2 with it, on first access."""
    if name != "RemoteDeployer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scanflow.deployer.remote import RemoteDeployer

    return RemoteDeployer
