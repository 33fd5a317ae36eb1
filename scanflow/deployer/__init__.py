"""The one way to run and serve applications: the port, and the deployer that works inside this process."""

from __future__ import annotations

from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.deployer.port import Deployer

__all__ = ["Deployer", "EmbeddedDeployer"]
