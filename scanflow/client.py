"""The thesis' import path: ``from scanflow.client import ScanflowClient``."""

from __future__ import annotations

from scanflow_client.client import Client
from scanflow_client.thesis import ScanflowClient, ScanflowDeployClient, ScanflowDeployerClient
from scanflow_client.tracker import ScanflowTrackerClient

__all__ = ["Client", "ScanflowClient", "ScanflowDeployClient", "ScanflowDeployerClient", "ScanflowTrackerClient"]
