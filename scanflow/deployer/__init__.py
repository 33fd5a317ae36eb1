"""The one way to run and serve applications: the port, the deployer that works inside this process, and the one that
asks a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.deployer.port import Deployer, InstanceLogs, RunRequest, TaskLog

if TYPE_CHECKING:
    from scanflow.deployer.remote import RemoteDeployer

__all__ = ["Deployer", "EmbeddedDeployer", "InstanceLogs", "RemoteDeployer", "RunRequest", "TaskLog"]


def __getattr__(name: str) -> object:
    """Load the remote deployer, and httpx with it, when it is first asked for."""
    if name != "RemoteDeployer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scanflow.deployer.remote import RemoteDeployer

    return RemoteDeployer
